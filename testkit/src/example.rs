//! An example of a package as a process that is asked over a socket: it takes an address to listen at, and prints where it does.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// An example that runs until this is dropped.
pub struct Example {
    process: Child,
    address: String,
}

impl Example {
    /// Starts the example of that name of the package whose test this is.
    pub fn start(name: &str) -> Self {
        Self::start_with(name, &[])
    }

    /// The same, with more in its environment.
    pub fn start_with(name: &str, environment: &[(&str, &str)]) -> Self {
        // Cargo builds examples before tests, beside the directory that tests are in.
        let mut path: PathBuf = std::env::current_exe().expect("a test is a file");
        path.pop();
        path.pop();
        path.extend(["examples", name]);
        let mut command = Command::new(path);
        command.arg("127.0.0.1:0").envs(environment.iter().copied()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}; `cargo build --examples` makes it"));
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{name} says `{line}`")).to_owned();
        Self { process, address }
    }

    /// Where it listens: host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Status, head in lower case, and body of the response to a GET.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: example\r\nconnection: close\r\n{headers}\r\n").expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head.to_lowercase(), body.to_owned())
    }

    /// The statuses alone, of several with different headers.
    pub fn statuses<const N: usize>(&self, path: &str, headers: [&[(&str, &str)]; N]) -> [u16; N] {
        headers.map(|headers| self.get(path, headers).0)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
