//! The servers: ours and throttlecrab's as their users start them, each a process of its own; and one of our making around any limiter
//! on Redis. It knows how each is started and asked, and nothing of how it is measured.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{time::ClockId, unistd::Pid};
use tempfile::TempDir;
use tidegate::{Algorithm, Quota};
use tidegate_load::{Http, Verdict};

use super::{PER_MINUTE, around};
use crate::remote::{self, Site};

/// GCRA, over axum.
pub(crate) const THROTTLECRAB: &str = "throttlecrab-server";
/// A sorted set, one script for each check.
pub(crate) const PLAIN: &str = "plain log, a script per check";
/// Its storage, behind a server of ours.
pub(crate) const LIMITADOR: &str = "limitador's storage";
/// Itself, over actix-web: on Redis two scripts for each check. It is not on crates.io, so it takes part where somebody has built it.
pub(crate) const LIMITADOR_SERVER: &str = "limitador-server";

/// Where the programs are: `scripts/bench` says so.
const OURS_PATH: &str = "TIDEGATE";
const THROTTLECRAB_PATH: &str = "THROTTLECRAB_SERVER";
const LIMITADOR_PATH: &str = "LIMITADOR_SERVER";

/// A server that answers.
pub(crate) struct Contender {
    pub(crate) name: String,
    pub(crate) is_ours: bool,
    pub(crate) target: Http,
    process: Option<Process>,
}

impl Contender {
    /// CPU time of its process so far, user and system, of all threads; of a server in this process, that of all threads but the one that
    /// asks, which is the client.
    pub(crate) fn cpu_micros(&self) -> Result<u64, String> {
        let micros =
            |clock: nix::Result<ClockId>| clock.and_then(ClockId::now).map(|time| Duration::from(time).as_micros() as u64);
        let spent = match &self.process {
            Some(process) => micros(ClockId::pid_cpu_clock_id(Pid::from_raw(process.child.id().cast_signed()))),
            None => micros(Ok(ClockId::CLOCK_PROCESS_CPUTIME_ID))
                .and_then(|all| Ok(all - micros(Ok(ClockId::CLOCK_THREAD_CPUTIME_ID))?)),
        };
        spent.map_err(|error| error.to_string())
    }
}

/// The default algorithm, and the one that the peer has.
pub(crate) fn in_memory() -> Result<Vec<Contender>, String> {
    let mut contenders = vec![ours(Algorithm::SlidingWindow, "memory")?, ours(Algorithm::Gcra, "memory")?, throttlecrab()?];
    contenders.extend(limitador(&["memory"])?);
    Ok(contenders)
}

/// The default algorithm, what the plain script is, and what limitador has.
pub(crate) fn on_redis(site: &Site, peers: Vec<remote::Contender>) -> Result<Vec<Contender>, String> {
    let algorithms = [Algorithm::SlidingWindow, Algorithm::SlidingLog, Algorithm::FixedWindow];
    let mut contenders = algorithms.map(|algorithm| ours(algorithm, &site.url())).into_iter().collect::<Result<Vec<_>, _>>()?;
    let others = remote::contenders::contenders().into_iter().chain(peers);
    for contender in others {
        let name = match contender.name.as_str() {
            "plain log" => PLAIN,
            "limitador" => LIMITADOR,
            _ => continue,
        };
        let address = around::serve(&site.runtime, (contender.connect)(site, Quota::per_minute(u64::from(PER_MINUTE))))?;
        let target = Http::check(&format!("http://{address}"), "user")?;
        contenders.push(Contender { name: name.to_owned(), is_ours: false, target, process: None });
    }
    contenders.extend(limitador(&["redis", &site.url()])?);
    Ok(contenders)
}

fn ours(algorithm: Algorithm, store: &str) -> Result<Contender, String> {
    let folder = TempDir::new().map_err(|error| error.to_string())?;
    let file = folder.path().join("tidegate.toml");
    // As long a deadline as nobody needs: every decision is the store's.
    let settings = format!(
        "[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"off\"\n[store]\nurl = \"{store}\"\ndeadline = \"10s\"\n\
         [[policy]]\nname = \"per-user\"\nkey = [\"user\"]\nquota = \"{PER_MINUTE}/min\"\nalgorithm = \"{algorithm}\"\n"
    );
    fs::write(&file, settings).map_err(|error| error.to_string())?;
    let mut command = program(OURS_PATH)?;
    command.arg("serve").arg("--config").arg(&file).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Process::start(command)?;
    process.folder = Some(folder);
    let output = process.child.stdout.take().expect("piped");
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    // It says when it serves, and what to try.
    let url = lines.find_map(|line| Some(format!("http://{}", line.split_once("curl -i 'http://")?.1.split_once('/')?.0)));
    let url = url.ok_or("tidegate serve does not start")?;
    Ok(Contender {
        name: format!("tidegate serve, {algorithm}"),
        is_ours: true,
        target: Http::check(&url, "user")?,
        process: Some(process),
    })
}

fn throttlecrab() -> Result<Contender, String> {
    let (free, port) = free()?;
    let mut command = program(THROTTLECRAB_PATH)?;
    command.args(["--http", "--http-host", "127.0.0.1", "--http-port", &port, "--log-level", "error"]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let process = Process::start(command)?.listening(free, THROTTLECRAB)?;
    // With the quota in every request, as it is asked.
    let quota = format!("\",\"max_burst\":{PER_MINUTE},\"count_per_period\":{PER_MINUTE},\"period\":60}}");
    let target = Http::post(&format!("http://{free}"), "/throttle", ["{\"key\":\"", &quota], |status, body| match status {
        200 if body.starts_with(b"{\"allowed\":true") => Ok(Verdict::Allowed),
        200 => Ok(Verdict::Denied),
        _ => Err(format!("status {status}: {}", body.escape_ascii())),
    })?;
    Ok(Contender { name: THROTTLECRAB.to_owned(), is_ours: false, target, process: Some(process) })
}

/// With this storage; nothing where there is none.
fn limitador(storage: &[&str]) -> Result<Option<Contender>, String> {
    let Ok(mut command) = program(LIMITADOR_PATH) else { return Ok(None) };
    let folder = TempDir::new().map_err(|error| error.to_string())?;
    let file = folder.path().join("limits.yaml");
    let limits = format!(
        "- namespace: bench\n  max_value: {PER_MINUTE}\n  seconds: 60\n  conditions: []\n  variables:\n    - descriptors[0].user\n"
    );
    fs::write(&file, limits).map_err(|error| error.to_string())?;
    let (free, port) = free()?;
    command.args(["-B", "127.0.0.1", "-P", &port]).arg(&file).args(storage);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Process::start(command)?.listening(free, LIMITADOR_SERVER)?;
    process.folder = Some(folder);
    // With headers, as ours answers.
    let body = ["{\"namespace\":\"bench\",\"values\":{\"user\":\"", "\"},\"delta\":1,\"response_headers\":\"DraftVersion03\"}"];
    let target = Http::post(&format!("http://{free}"), "/check_and_report", body, |status, body| match status {
        200 => Ok(Verdict::Allowed),
        429 => Ok(Verdict::Denied),
        _ => Err(format!("status {status}: {}", body.escape_ascii())),
    })?;
    Ok(Some(Contender { name: LIMITADOR_SERVER.to_owned(), is_ours: false, target, process: Some(process) }))
}

/// An address that nobody listens on, and its port.
fn free() -> Result<(SocketAddr, String), String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).map_err(|error| error.to_string())?;
    Ok((free, free.port().to_string()))
}

fn program(variable: &str) -> Result<Command, String> {
    env::var_os(variable).map(Command::new).ok_or_else(|| format!("{variable} does not name a program; use scripts/bench server"))
}

/// A program that ends with its value.
struct Process {
    child: Child,
    /// What it reads from.
    folder: Option<TempDir>,
}

impl Process {
    fn start(mut command: Command) -> Result<Self, String> {
        let child = command.spawn().map_err(|error| format!("{command:?} does not start: {error}"))?;
        Ok(Self { child, folder: None })
    }

    /// The same, when it listens.
    fn listening(self, address: SocketAddr, name: &str) -> Result<Self, String> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                return Err(format!("{name} does not start"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(self)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
