//! SIGHUP, in a process of its own.

use std::{
    fs,
    sync::mpsc,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tidegate_server::{
    config::{Config, Sources},
    reload::{Reload, Reloads},
};

#[tokio::test]
async fn sighup_reads_the_file_again_whether_it_has_changed_or_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tidegate.toml");
    fs::write(&path, "[log]\nlevel = \"warn\"").expect("a file");
    let sources = Sources::file(&path);
    let config = sources.load().expect("right");
    let (applied, applications) = mpsc::channel();
    let apply = move |config: &Config| {
        applied.send(config.clone()).expect("somebody listens");
        Ok(())
    };
    let reload = Reload::start(sources, config.clone(), apply).expect("started");

    kill(Pid::this(), Signal::SIGHUP).expect("sent");
    let deadline = Instant::now() + Duration::from_secs(20);
    while reload.counts() != (Reloads { ok: 1, failed: 0 }) {
        assert!(Instant::now() < deadline, "{:?}", reload.counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(applications.try_iter().collect::<Vec<_>>(), [config]);
}
