//! The example is run as it is, and is asked over a socket.
#![allow(clippy::unwrap_used)]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// An example that runs until this is dropped.
struct Example {
    process: Child,
    address: String,
}

impl Example {
    fn start(name: &str) -> Self {
        // Cargo builds examples before tests, beside the directory that tests are in.
        let mut path: PathBuf = std::env::current_exe().unwrap();
        path.pop();
        path.pop();
        path.extend(["examples", name]);
        let mut command = Command::new(path);
        command.arg("127.0.0.1:0").stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{name}: {error}; `cargo build --examples` makes it"));
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("http://").unwrap_or_else(|| panic!("{name} says `{line}`")).to_owned();
        Self { process, address }
    }

    /// Status, head and body of the response to a GET.
    fn get(&self, user: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET / HTTP/1.1\r\nhost: example\r\nconnection: close\r\nx-user: {user}\r\n\r\n").unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    fn statuses<const N: usize>(&self, users: [&str; N]) -> [u16; N] {
        users.map(|user| self.get(user).0)
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn actix() {
    let example = Example::start("actix");
    let (status, head, body) = example.get("a");
    assert_eq!(status, 200, "{head}");
    assert!(head.contains(r#"ratelimit: "per-user";r=2;t="#), "{head}");
    assert!(body.contains("allowed: policy `per-user` has 2 of 3 left"), "{body}");
    // Whichever worker is asked.
    assert_eq!(example.statuses(["a", "a", "a"]), [200, 200, 429]);
    // The address has two left: what was denied has cost it nothing.
    assert_eq!(example.statuses(["b", "b", "b"]), [200, 200, 429]);
    let (_, head, body) = example.get("b");
    assert!(head.contains("retry-after: ") && head.contains("application/problem+json"), "{head}");
    assert!(body.contains(r#""violated-policies":["per-address"]"#), "{body}");
}
