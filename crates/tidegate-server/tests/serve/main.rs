//! The server as its clients see it: real sockets, in this process.

mod admin;
mod bounds;
mod client;
mod decision_log;
mod endpoints;
mod forward_auth;
mod metrics;
mod openapi;
mod redis;
mod reloading;
mod stopping;
mod traces;
mod wrong;

use std::{
    fs,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate_server::{config::Sources, serve::Server};
use tokio::time::sleep;

/// A server that serves this file, at a port of its own.
struct Running {
    server: Server,
    folder: TempDir,
}

impl Running {
    async fn start(file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tidegate.toml");
        fs::write(&path, file).expect("a file");
        let free = || "127.0.0.1:0".to_owned();
        let flags = [("--config", path.display().to_string()), ("--http", free()), ("--admin", free())];
        let sources = Sources::new(flags, |_| None);
        let config = sources.load().unwrap_or_else(|problems| panic!("{problems}"));
        let server = Server::start(sources, config).await.unwrap_or_else(|error| panic!("{error}"));
        Self { server, folder }
    }

    async fn admin(&self) -> client::Client {
        client::Client::connect(self.server.admin().expect("it listens")).await
    }

    /// Waits until that line is among the metrics.
    async fn until_counted(&self, line: &str) {
        let (mut admin, deadline) = (self.admin().await, Instant::now() + Duration::from_secs(30));
        while !admin.admin("GET /metrics", &[], "").await.body.lines().any(|known| known == line) {
            assert!(Instant::now() < deadline, "not counted: {line}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn client(&self) -> client::Client {
        client::Client::connect(self.server.http()).await
    }
}
