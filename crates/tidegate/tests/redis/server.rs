//! A real `redis-server` for one test: on a free port of loopback, in a directory of its own, ended with the test.

use std::{
    env, fs,
    net::TcpListener,
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    time::{Duration, Instant},
};

pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    pub(crate) connection: redis::Connection,
}

impl Server {
    pub(crate) fn start() -> Self {
        // Bound and released: between here and Redis somebody else could take it, so try again with another.
        (0..5).find_map(|_| Self::try_start()).expect("redis-server starts (scripts/test installs it)")
    }

    fn try_start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
        let directory = env::temp_dir().join(format!("tidegate-redis-{}-{port}", process::id()));
        fs::create_dir_all(&directory).ok()?;
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(&directory)
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).ok()?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            if let Ok(connection) = client.get_connection() {
                return Some(Self { child, directory, connection });
            }
            std::thread::yield_now();
        }
        None
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
