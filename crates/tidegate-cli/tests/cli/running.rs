//! `tidegate serve` as a process.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("serve").args(arguments).current_dir(folder).env("TIDEGATE_ADMIN", "127.0.0.1:0");
    command
}

/// A server, what it has said, and where it listens.
pub(crate) struct Running {
    pub(crate) process: Child,
    output: BufReader<ChildStdout>,
    pub(crate) greeting: String,
    pub(crate) address: String,
}

impl Running {
    pub(crate) fn start(folder: &Path, arguments: &[&str]) -> Self {
        Self::by(command(folder, arguments).args(["--http", "127.0.0.1:0"]))
    }

    pub(crate) fn by(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("it runs");
        let mut output = BufReader::new(process.stdout.take().expect("piped"));
        let mut greeting = String::new();
        while !greeting.contains("curl") {
            assert!(output.read_line(&mut greeting).expect("text") > 0, "{greeting}");
        }
        let address = greeting.split("curl -i 'http://").nth(1).and_then(|rest| rest.split('/').next()).expect("told");
        Self { address: address.to_owned(), process, output, greeting }
    }

    pub(crate) fn get(&self, target: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("connected");
        write!(stream, "GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).expect("one")), signal).expect("sent");
    }

    /// The exit code.
    pub(crate) fn end(self, signal: Signal) -> Option<i32> {
        self.signal(signal);
        self.ended()
    }

    /// The exit code of one that was told to end.
    pub(crate) fn ended(mut self) -> Option<i32> {
        let _ = self.output.read_line(&mut self.greeting);
        self.process.wait().expect("it ends").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
