//! Processes that end with their values, and what is needed to start them: ports, and the programs that `scripts/setup` installs.

use std::{
    io,
    net::TcpListener,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::{
        signal::{self, Signal},
        wait::{self, Id, WaitPidFlag},
    },
    unistd::Pid,
};

/// How often a start is worth trying: a free port can be taken by somebody else before the process has it.
pub const ATTEMPTS: usize = 5;
/// How long a process may take until it answers.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Where `scripts/setup` puts the program of that name, if it installs it from a package of another registry than the system's.
pub fn tool(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools").join(name)
}

/// Ports of 127.0.0.1 that are free now. They differ.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").expect("loopback has a free port"));
    listeners.map(|listener| listener.local_addr().expect("the listener is bound").port())
}

/// A process. Dropping it kills it and waits for its end.
pub struct Process {
    child: Child,
    guard: Child,
}

impl Process {
    /// Starts the command. If this process ends before the value is dropped, that one is killed, and the directory removed.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, directory: &Path) -> io::Result<Self> {
        // In groups of their own: an interrupt from the terminal is for the test, and its end is theirs.
        let mut child = command.stdin(Stdio::null()).process_group(0).spawn()?;
        // Its input ends with this process, even when nothing here is dropped any more.
        let guard = Command::new("sh")
            .args(["-c", "read -r _; kill -KILL \"$1\"; rm -rf \"$2\"", "guard", &child.id().to_string()])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .inspect_err(|_| drop(child.kill().and_then(|()| child.wait())))?;
        Ok(Self { child, guard })
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Stops it where it is, and returns once it stands. Its connections stay open.
    pub fn freeze(&self) {
        signal::kill(self.pid(), Signal::SIGSTOP).expect("the process runs");
        // Left waitable, so that a second freeze returns as well.
        wait::waitid(Id::Pid(self.pid()), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT).expect("the process stops");
    }

    /// Lets it go on when it was frozen.
    pub fn thaw(&self) {
        signal::kill(self.pid(), Signal::SIGCONT).expect("the process runs");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard first: once the child is waited for, its number can be another process.
        for child in [&mut self.guard, &mut self.child] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
