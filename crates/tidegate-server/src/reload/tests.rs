use std::{fs, os::unix::fs::symlink, path::Path, sync::atomic::AtomicBool, thread, time::Instant};

use tempfile::{TempDir, tempdir};
use tidegate::{Hit, Limiter};

use super::*;

const FAST: Pace = Pace { quiet: Duration::from_millis(2), poll: Duration::from_secs(3600) };

/// Two policies of one limit, so that a decision shows whether it mixes two versions.
fn twins(limit: u64) -> String {
    let policy = |name| format!("[[policy]]\nname = \"{name}\"\nkey = [\"user\"]\nquota = \"{limit}/day\"\n");
    policy("a") + &policy("b")
}

/// As editors do it that do not want to lose the file.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("a file");
    fs::rename(beside, path).expect("renamed");
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(1)).await;
    }
}

struct Rig {
    folder: TempDir,
    limiter: Limiter,
    reload: Reload,
}

impl Rig {
    /// A limiter by the file `path` in a folder that `lay_out` has prepared.
    fn new(pace: Pace, path: &str, lay_out: impl FnOnce(&Path)) -> Self {
        let folder = tempdir().expect("a folder");
        lay_out(folder.path());
        let sources = Sources::file(folder.path().join(path));
        let config = sources.load().expect("right");
        let limiter = Limiter::builder().policies(config.policies().expect("right")).build().expect("right");
        let applied = limiter.clone();
        let apply = move |config: &Config| Ok(applied.configure(config.policies()?)?);
        let reload = Reload::start_at(pace, sources, config, apply).expect("started");
        Self { folder, limiter, reload }
    }

    fn limit(&self) -> u64 {
        self.limiter.policies()[0].quota().limit()
    }

    async fn until_limit(&self, limit: u64) {
        until(&format!("a limit of {limit}"), || self.limit() == limit).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_reloads_with_wrong_files_between_keep_history_and_never_mix() {
    let rounds: u64 = std::env::var("TIDEGATE_RELOADS").map_or(300, |count| count.parse().expect("a number"));
    let rig =
        Rig::new(FAST, "tidegate.toml", |folder| fs::write(folder.join("tidegate.toml"), twins(1_000_000)).expect("a file"));
    let path = rig.folder.path().join("tidegate.toml");
    let (limiter, stop) = (rig.limiter.clone(), Arc::new(AtomicBool::new(false)));
    let stopped = Arc::clone(&stop);
    let traffic = thread::spawn(move || {
        let mut admitted = 0;
        while !stopped.load(Relaxed) {
            let decision = limiter.check(Hit::new().attribute("user", "42"));
            let limits: Vec<u64> = decision.outcomes().map(|outcome| outcome.limit()).collect();
            assert!(limits.len() == 2 && limits[0] == limits[1], "{limits:?}");
            admitted += u64::from(decision.is_allowed());
            thread::sleep(Duration::from_micros(200));
        }
        admitted
    });
    for round in 1..=rounds {
        let wrong = match round % 3 {
            0 => "[[policy]".to_owned(),
            1 => twins(1_000_000 + round).replace("name = \"b\"", "name = \"a\""),
            _ => String::new(),
        };
        let (before, limit) = (rig.reload.counts().failed, rig.limit());
        // In place and by another file in its place.
        if round % 2 == 0 {
            replace(&path, &wrong)
        } else {
            fs::write(&path, &wrong).expect("a file")
        }
        until("a wrong file to be counted", || rig.reload.counts().failed > before).await;
        assert_eq!(rig.limit(), limit);
        replace(&path, &twins(1_000_000 + round));
        rig.until_limit(1_000_000 + round).await;
    }
    stop.store(true, Relaxed);
    let admitted = traffic.join().expect("no decision was mixed");
    let left = rig.limiter.remaining(Hit::new().attribute("user", "42"));
    assert_eq!(left, Some(1_000_000 + rounds - admitted));
    until("the last one to be counted", || rig.reload.counts().ok >= rounds).await;
    let config = rig.reload.config().borrow().clone();
    assert_eq!(config.policies().expect("right"), rig.limiter.policies());
}

/// What watches a folder answers only when nothing is happening there, which nobody is to wait for: not the limiter whose state is to be
/// written when all that has it is gone.
#[test]
fn a_folder_where_something_is_written_without_end_holds_up_nobody() {
    struct Stop(Arc<AtomicBool>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let rig = runtime.block_on(async {
        Rig::new(FAST, "tidegate.toml", |folder| fs::write(folder.join("tidegate.toml"), twins(7)).expect("a file"))
    });
    let written = Arc::new(AtomicU64::new(0));
    // Before the runtime ends, whatever happens.
    let stopping = Stop(Arc::clone(&stop));
    let write = |writer: usize| {
        let (path, stop, written) = (rig.folder.path().join(writer.to_string()), Arc::clone(&stop), Arc::clone(&written));
        thread::spawn(move || {
            // Events in a row that are the same would be one.
            let mut files = ["a", "b"].map(|name| fs::File::create(path.with_extension(name)).expect("a file"));
            while !stop.load(Relaxed) {
                files.iter_mut().for_each(|file| io::Write::write_all(file, b".").expect("written"));
                written.fetch_add(1, Relaxed);
            }
        })
    };
    let writers: Vec<_> = (0..8).map(write).collect();
    // More than is read at once.
    runtime.block_on(until("much to be written", || written.load(Relaxed) > 100_000));
    replace(&rig.folder.path().join("tidegate.toml"), &twins(8));
    runtime.block_on(rig.until_limit(8));
    let (ended, has_ended) = std::sync::mpsc::channel();
    let Rig { folder, limiter, reload } = rig;
    let left = Arc::downgrade(&reload.counts);
    thread::spawn(move || {
        drop((limiter, reload));
        drop(runtime);
        let _ = ended.send(left.strong_count());
    });
    let ended = has_ended.recv_timeout(Duration::from_secs(10));
    drop(stopping);
    writers.into_iter().for_each(|writer| writer.join().expect("nobody minds"));
    assert_eq!(ended, Ok(0));
    drop(folder);
}

#[tokio::test]
async fn a_pipe_in_the_place_of_the_file_is_waited_for_by_nobody() {
    let rig = Rig::new(FAST, "tidegate.toml", |folder| fs::write(folder.join("tidegate.toml"), twins(7)).expect("a file"));
    let (path, failed) = (rig.folder.path().join("tidegate.toml"), rig.reload.counts().failed);
    fs::remove_file(&path).expect("removed");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    until("a pipe to be counted as wrong", || rig.reload.counts().failed > failed).await;
    assert_eq!(rig.limit(), 7);
    replace(&path, &twins(8));
    rig.until_limit(8).await;
}

/// As shells hand one over: `--config <(...)`.
#[tokio::test]
async fn what_came_through_a_pipe_is_right_until_somebody_asks_for_more() {
    let rig = Rig::new(FAST, "tidegate.toml", |folder| {
        let path = folder.join("tidegate.toml");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        thread::spawn(move || fs::write(path, twins(7)).expect("read"));
    });
    for _ in 0..50 {
        sleep(Duration::from_millis(1)).await;
        assert_eq!((rig.limit(), rig.reload.counts().failed), (7, 0));
    }
    replace(&rig.folder.path().join("tidegate.toml"), &twins(8));
    rig.until_limit(8).await;
}

#[tokio::test]
async fn a_link_that_is_pointed_elsewhere_is_followed() {
    // As Kubernetes lays out a volume: the file is a link into a link, and the latter is replaced.
    let rig = Rig::new(FAST, "tidegate.toml", |folder| {
        fs::create_dir(folder.join("..1")).expect("a folder");
        fs::write(folder.join("..1/tidegate.toml"), twins(1)).expect("a file");
        symlink("..1", folder.join("..data")).expect("a link");
        symlink("..data/tidegate.toml", folder.join("tidegate.toml")).expect("a link");
    });
    let folder = rig.folder.path();
    for version in 2..20 {
        let (data, old) = (format!("..{version}"), format!("..{}", version - 1));
        fs::create_dir(folder.join(&data)).expect("a folder");
        fs::write(folder.join(&data).join("tidegate.toml"), twins(version)).expect("a file");
        symlink(&data, folder.join("..data_tmp")).expect("a link");
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).expect("renamed");
        fs::remove_dir_all(folder.join(&old)).expect("removed");
        rig.until_limit(version).await;
    }
    // The file behind the links.
    fs::write(folder.join("..19/tidegate.toml"), twins(77)).expect("a file");
    rig.until_limit(77).await;
}

#[tokio::test]
async fn what_nobody_tells_is_seen_by_looking() {
    let pace = Pace { poll: Duration::from_millis(20), ..FAST };
    // Nobody watches the folder that this link is in.
    let rig = Rig::new(pace, "current/tidegate.toml", |folder| {
        for (name, limit) in [("one", 1), ("two", 2)] {
            fs::create_dir(folder.join(name)).expect("a folder");
            fs::write(folder.join(name).join("tidegate.toml"), twins(limit)).expect("a file");
        }
        symlink("one", folder.join("current")).expect("a link");
    });
    symlink("two", rig.folder.path().join("next")).expect("a link");
    fs::rename(rig.folder.path().join("next"), rig.folder.path().join("current")).expect("renamed");
    rig.until_limit(2).await;
}

#[tokio::test]
async fn a_file_that_is_gone_changes_nothing_and_is_seen_when_it_is_back() {
    let rig = Rig::new(FAST, "tidegate.toml", |folder| fs::write(folder.join("tidegate.toml"), twins(1)).expect("a file"));
    let path = rig.folder.path().join("tidegate.toml");
    fs::remove_file(&path).expect("removed");
    until("a missing file to be counted", || rig.reload.counts().failed == 1).await;
    assert_eq!(rig.limit(), 1);
    fs::write(&path, twins(2)).expect("a file");
    rig.until_limit(2).await;
}

#[test]
fn what_needs_a_restart_is_named() {
    let read = |text: &str| crate::config::parse(text).expect("right");
    let old = read("[store]\nurl = \"redis://:one@host/\"");
    let new = read(
        "[store]\nurl = \"redis://:two@host/\"\non_error = \"deny\"\ndeadline = \"20ms\"\n[listen]\nhttp = \"off\"\n\
         [headers]\ndialect = \"none\"\n[log]\nlevel = \"debug\"",
    );
    assert_eq!(needs_restart(&old, &new), ["listen.http", "store.deadline", "store.url"]);
    assert_eq!(needs_restart(&new, &new), [""; 0]);
}
