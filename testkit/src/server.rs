//! A real `redis-server` (or Valkey) on free ports of loopback, in a directory of its own, ended with its value.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use nix::{time::ClockId, unistd::Pid};
use redis::IntoConnectionInfo;
use tempfile::TempDir;

use crate::{
    certificates::{self, Certificates},
    process::{self, ATTEMPTS, PATIENCE, Process},
};

const SOCKET: &str = "socket";
const LOG: &str = "log";

/// A running server without persistence. Dropping it kills the process and removes its directory; so does the end of this
/// process, however hard.
pub struct Server {
    // Before the directory, as fields drop in this order.
    process: Option<Process>,
    directory: TempDir,
    port: u16,
    tls: Option<(u16, Certificates)>,
    options: ServerBuilder,
}

impl Server {
    /// A `redis-server` on a free port of 127.0.0.1 and on a Unix socket.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The same, with more command line arguments.
    pub fn start_with(arguments: &[&str]) -> Self {
        arguments.iter().fold(Self::builder(), |builder, argument| builder.argument(*argument)).start()
    }

    /// A server with more to choose.
    pub fn builder() -> ServerBuilder {
        ServerBuilder { binary: "redis-server".into(), arguments: Vec::new(), tls: false }
    }

    /// A `valkey-server` from the path, else the one that `scripts/setup` installs, else none. The latter has no TLS.
    pub fn try_valkey() -> Option<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let on_path = env::split_paths(&path).map(|directory| directory.join("valkey-server"));
        let mut binaries = on_path.chain([process::tool("valkey-server")]);
        let binary = binaries.find(|binary| binary.is_file())?;
        Some(Self::builder().binary(binary).start())
    }

    /// `redis://127.0.0.1:PORT/`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// `unix://PATH`
    pub fn unix_url(&self) -> String {
        format!("unix://{}", self.directory.path().join(SOCKET).display())
    }

    /// `rediss://localhost:PORT/`, for a server with TLS.
    pub fn tls_url(&self) -> String {
        format!("rediss://localhost:{}/", self.tls().0)
    }

    /// What a client needs for [`Self::tls_url`].
    pub fn certificates(&self) -> &Certificates {
        &self.tls().1
    }

    fn tls(&self) -> &(u16, Certificates) {
        self.tls.as_ref().expect("the server was built with tls()")
    }

    /// The TCP port, the same after a restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, another one after a restart.
    pub fn pid(&self) -> u32 {
        self.process().id()
    }

    fn process(&self) -> &Process {
        self.process.as_ref().expect("the server was not killed")
    }

    /// A fresh blocking connection over TCP. It sends nothing by itself.
    pub fn connection(&self) -> redis::Connection {
        client(self.url()).get_connection().expect("the server accepts connections")
    }

    /// CPU time of the server so far, user and system, of all its threads.
    pub fn cpu_micros(&self) -> u64 {
        let pid = Pid::from_raw(self.pid().cast_signed());
        let time = ClockId::pid_cpu_clock_id(pid).and_then(ClockId::now).expect("the server runs");
        let micros = Duration::from(time).as_micros();
        u64::try_from(micros).expect("the server is younger than 500,000 years")
    }

    /// `used_memory` of `INFO memory`, in bytes.
    pub fn used_memory(&self) -> u64 {
        self.info("memory", "used_memory")
    }

    /// `total_commands_processed` of `INFO stats`. It includes each command that a script calls, beside the script's own, the
    /// commands with which clients open a connection, the one that the start waits for, and one per earlier call of this or
    /// of [`Self::used_memory`].
    pub fn commands(&self) -> u64 {
        self.info("stats", "total_commands_processed")
    }

    fn info(&self, section: &str, name: &str) -> u64 {
        let info: String = redis::cmd("INFO").arg(section).query(&mut self.connection()).expect("the server answers INFO");
        let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.and_then(|value| value.parse().ok()).expect("the section has the number")
    }

    /// Kills the process and waits for its end. Port and directory are kept for [`Self::restart`].
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Starts again, after a kill if it runs: same ports, same arguments, no data.
    pub fn restart(&mut self) {
        self.kill();
        let started = (0..ATTEMPTS).any(|attempt| {
            // The port can only be busy with something that passes, such as a client's end of a connection.
            thread::sleep(Duration::from_millis(100 * attempt as u64));
            self.launch()
        });
        assert!(started, "{}", self.failure());
    }

    /// Stops the process where it is, and returns once it stands. Its connections stay open.
    pub fn freeze(&self) {
        self.process().freeze();
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.process().thaw();
    }

    /// Whether the process came up on its ports.
    fn launch(&mut self) -> bool {
        let directory = self.directory.path();
        let log = File::create(directory.join(LOG)).expect("the directory is writable");
        let mut command = Command::new(&self.options.binary);
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(directory).arg("--unixsocket").arg(directory.join(SOCKET));
        if let Some((port, _)) = &self.tls {
            command.args(["--tls-port", &port.to_string(), "--tls-auth-clients", "yes"]);
            command.arg("--tls-ca-cert-file").arg(directory.join(certificates::ROOT));
            command.arg("--tls-cert-file").arg(directory.join(certificates::SERVER_CERT));
            command.arg("--tls-key-file").arg(directory.join(certificates::SERVER_KEY));
        }
        command.args(&self.options.arguments);
        command.stderr(log.try_clone().expect("a file can be shared")).stdout(log);

        let process = Process::start(command, directory);
        let process = process.unwrap_or_else(|error| panic!("{}: {error} (scripts/setup installs it)", self.binary()));
        let deadline = Instant::now() + PATIENCE;
        let process = self.process.insert(process);
        // By socket: on the port, somebody else could answer. The socket comes last.
        let client = client(format!("unix://{}", directory.join(SOCKET).display()));
        while Instant::now() < deadline && process.runs() {
            if answers(&client) {
                return true;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.process = None;
        false
    }

    fn failure(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join(LOG)).unwrap_or_default();
        format!("{} does not start:\n{log}", self.binary())
    }

    fn binary(&self) -> String {
        self.options.binary.display().to_string()
    }
}

/// The choices for a [`Server`].
pub struct ServerBuilder {
    binary: PathBuf,
    arguments: Vec<String>,
    tls: bool,
}

impl ServerBuilder {
    /// A name on the path or a path, instead of `redis-server`.
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = binary.into();
        self
    }

    /// One more command line argument.
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Listens on one more port, with TLS, and only to clients with a certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        let directory = TempDir::with_prefix("tidegate-").expect("the temporary directory is writable");
        let tls = self.tls.then(|| (0, Certificates::write(directory.path())));
        let mut server = Server { process: None, directory, port: 0, tls, options: self };
        let started = (0..ATTEMPTS).any(|_| {
            let [one, other] = process::free_ports();
            server.port = one;
            if let Some((port, _)) = &mut server.tls {
                *port = other;
            }
            server.launch()
        });
        assert!(started, "{}", server.failure());
        server
    }
}

/// A client whose connections send nothing by themselves, so that [`Server::commands`] counts what a test asks for.
fn client(url: String) -> redis::Client {
    let info = url.into_connection_info().expect("the URL is valid");
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    redis::Client::open(info.set_redis_settings(settings)).expect("the URL is valid")
}

fn answers(client: &redis::Client) -> bool {
    let timeout = Duration::from_secs(1);
    let Ok(mut connection) = client.get_connection_with_timeout(timeout) else { return false };
    let answer = connection.set_read_timeout(Some(timeout)).and_then(|()| redis::cmd("PING").exec(&mut connection));
    // One that asks for a password is up as well.
    answer.is_ok() || answer.is_err_and(|error| error.code() == Some("NOAUTH"))
}
