//! The commands that ask, as a shell sees them: against real servers, real stores, and servers that mean harm.

mod codes;
mod docs;
mod hostile;
mod manual;
mod server;
mod store;

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Command, Output},
};

use tempfile::TempDir;

use super::running::Running;

fn command(folder: &Path) -> Command {
    program(env!("CARGO_BIN_EXE_tidegate"), folder)
}

/// A program that knows nothing of what this machine's environment says of us.
fn program(name: &str, folder: &Path) -> Command {
    let mut command = Command::new(name);
    command.current_dir(folder);
    std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("TIDEGATE_")).for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// Exit code, standard output, standard error.
type Ended = (i32, String, String);

fn ended(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}

/// With no server where one is by default.
fn tidegate(arguments: &[&str]) -> Ended {
    let nobody = "http://127.0.0.1:1";
    let mut command = command(Path::new("."));
    ended(command.env("TIDEGATE_SERVER_URL", nobody).env("TIDEGATE_ADMIN_URL", nobody).args(arguments))
}

/// A server of a file, which is in its folder as `tidegate.toml`.
struct Served {
    _server: Running,
    folder: TempDir,
    http: String,
    admin: String,
}

impl Served {
    fn start(file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("tidegate.toml"), file).expect("a file");
        Self::start_in(folder)
    }

    fn start_in(folder: TempDir) -> Self {
        let server = Running::start(folder.path(), &["--config", "tidegate.toml"]);
        let admin = server.greeting.lines().find_map(|line| line.trim_start().strip_prefix("admin ")).expect("told");
        let admin = admin.trim_start().split(',').next().expect("an address").to_owned();
        Self { http: format!("http://{}", server.address), admin, _server: server, folder }
    }

    fn command(&self) -> Command {
        let mut command = command(self.folder.path());
        command.env("TIDEGATE_SERVER_URL", &self.http).env("TIDEGATE_ADMIN_URL", &self.admin);
        command
    }

    /// Asks this server.
    fn tidegate(&self, arguments: &[&str]) -> Ended {
        ended(self.command().args(arguments))
    }

    /// What is printed, where nothing is wrong.
    fn told(&self, arguments: &[&str]) -> String {
        let (code, printed, said) = self.tidegate(arguments);
        assert_eq!((code, said.as_str()), (0, ""), "{arguments:?}");
        printed
    }

    /// The body of what the server answers to a request without one.
    fn body(base: &str, target: &str) -> String {
        let mut stream = TcpStream::connect(base.trim_start_matches("http://")).expect("connected");
        write!(stream, "GET {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a reply");
        reply.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }
}
