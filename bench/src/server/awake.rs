//! Keeps the cores from sleeping. Where servers, Redis and the client wait for one another, cores fall asleep for microseconds, and on a
//! virtual machine a core that sleeps goes to others and is late to come back: what is measured then is who else is on the machine. So each
//! core has something to do that yields to everything else: mostly at once, but who has had more than its share of late may wait behind it for
//! a tick of the scheduler's. On a machine that is quiet it is better without, and where nobody waits but for the client: that takes a third
//! more time of all then.

use std::{
    process::{Child, Command, Stdio},
    thread,
};

/// For as long as it lives.
pub(crate) struct Awake(Vec<Child>);

/// Ends by itself when the bench has gone.
const BUSY: &str = "while kill -0 $PPID 2>/dev/null; do n=0; while [ $n -lt 100000 ]; do n=$((n + 1)); done; done";

impl Awake {
    /// Does what it can: `chrt` and `taskset` are Linux's.
    pub(crate) fn keep() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let busy = |core: usize| {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", &core.to_string(), "chrt", "--idle", "0", "sh", "-c", BUSY]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
        };
        Self((0..cores).filter_map(|core| busy(core).ok()).collect())
    }

    pub(crate) fn is_kept(&self) -> bool {
        !self.0.is_empty()
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for busy in &mut self.0 {
            let _ = busy.kill();
            let _ = busy.wait();
        }
    }
}
