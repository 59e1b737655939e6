//! What becomes of the file, and what is told of it.

use std::{
    fs,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tidegate::{Clock, ConfigError, Limiter, ManualClock, Policy, Quota, Snapshot, SnapshotError};

use crate::{folder, names};

fn build(path: &Path) -> Limiter {
    build_with(Snapshot::new(path)).unwrap()
}

fn build_with(snapshot: Snapshot) -> Result<Limiter, ConfigError> {
    let policy = Policy::new("daily", Quota::per_day(10));
    Limiter::builder().policy(policy).clock(ManualClock::default()).snapshot(snapshot).build()
}

/// What cannot be read is told, and kept; the limiter starts afresh and can write the place again.
fn is_refused(content: &[u8], error: SnapshotError) {
    let folder = folder();
    let path = folder.path().join("snapshot");
    fs::write(&path, content).unwrap();
    let limiter = build(&path);
    assert_eq!(limiter.store().snapshot_status().restored, Err(error), "{}", error);
    assert_eq!(limiter.remaining("a"), Some(10));
    assert_eq!(fs::read(folder.path().join("snapshot.refused")).unwrap(), content);
    assert_eq!(names(folder.path()), ["snapshot.refused"]);
    assert!(limiter.check_n("a", 3).is_allowed());
    drop(limiter);
    assert_eq!(build(&path).remaining("a"), Some(7));
}

#[test]
fn foreign_file_is_refused_and_kept() {
    is_refused(b"{\"not\": \"a snapshot\"}", SnapshotError::Foreign);
    is_refused(&[0; 100_000], SnapshotError::Foreign);
}

#[test]
fn cut_or_empty_file_is_refused_and_kept() {
    is_refused(b"", SnapshotError::Damaged);
    is_refused(b"tidegate\x01\0\0\0\x01", SnapshotError::Damaged);
}

#[test]
fn newer_version_is_refused_and_kept() {
    is_refused(b"tidegate\x02\0\0\0whatever that may be", SnapshotError::Version(2));
}

#[test]
fn no_file_is_no_error() {
    let folder = folder();
    let limiter = build(&folder.path().join("snapshot"));
    let status = limiter.store().snapshot_status();
    assert_eq!((status.restored, status.saved), (Ok(None), None));
    assert_eq!((status.newest, status.failures), (None, 0));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn place_that_cannot_be_written_is_told() {
    let folder = folder();
    let limiter = build(&folder.path().join("missing/snapshot"));
    assert_eq!(limiter.save(folder.path().join("missing/snapshot")), Err(SnapshotError::Io(std::io::ErrorKind::NotFound)));
    assert_eq!(limiter.save(".."), Err(SnapshotError::Io(std::io::ErrorKind::InvalidInput)));
    // A folder in the place is neither read nor moved nor replaced.
    let path = folder.path().join("taken");
    fs::create_dir(&path).unwrap();
    let limiter = build(&path);
    assert!(limiter.store().snapshot_status().restored.is_err());
    assert!(limiter.save(&path).is_err());
    drop(limiter);
    assert_eq!(names(folder.path()), ["taken"]);
}

#[test]
fn file_is_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let path = folder.path().join("snapshot");
    fs::write(&path, "").unwrap();
    let saved = Limiter::in_memory(Quota::per_day(1)).save(&path).unwrap();
    let file = fs::metadata(&path).unwrap();
    assert_eq!((file.permissions().mode() & 0o777, file.len()), (0o600, saved.bytes));
    assert_eq!(names(folder.path()), ["snapshot"]);
}

/// A time that tells by its clones whether anybody still reads it.
struct Watched(Arc<u64>);

impl Clock for Watched {
    fn epoch_micros(&self) -> u64 {
        *self.0
    }
}

#[test]
fn thread_saves_at_intervals_and_ends_with_the_last_handle() {
    let folder = folder();
    let path = folder.path().join("snapshot");
    let watch = Arc::new(1_767_225_600_000_000);
    let build = |snapshot| {
        let policy = Policy::new("daily", Quota::per_day(10));
        Limiter::builder().policy(policy).clock(Watched(Arc::clone(&watch))).snapshot(snapshot).build().unwrap()
    };
    let limiter = build(Snapshot::new(&path).every(Duration::from_millis(2)));
    let other = limiter.clone();
    let _ = limiter.check("a");
    drop(limiter);
    let begun = Instant::now();
    while other.store().snapshot_status().saved.is_none_or(|saved| saved.unwrap().keys != 1) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        thread::yield_now();
    }
    assert!(other.check_n("a", 4).is_allowed());
    drop(other);
    assert_eq!(Arc::strong_count(&watch), 1, "nobody is left");
    assert_eq!(names(folder.path()), ["snapshot"]);
    assert_eq!(build(Snapshot::new(&path)).remaining("a"), Some(5), "the last word was written");
}

#[test]
fn saves_while_others_decide_and_configure() {
    let folder = folder();
    let path = folder.path().join("snapshot");
    let limiter = build(&path);
    let decide = |name: &str| (0..2_000).filter(|number| limiter.check(&format!("{name}-{}", number % 100)).is_allowed()).count();
    thread::scope(|scope| {
        let deciders = ["a", "b"].map(|name| scope.spawn(move || decide(name)));
        scope.spawn(|| (1..200).for_each(|limit| limiter.set_quota("daily", Quota::per_day(10 + limit % 7)).unwrap()));
        let savers = [(), ()].map(|()| scope.spawn(|| (0..50).for_each(|_| assert!(limiter.save(&path).is_ok()))));
        deciders.into_iter().for_each(|decider| assert!(decider.join().unwrap() >= 1_000));
        savers.into_iter().for_each(|saver| saver.join().unwrap());
    });
    limiter.set_quota("daily", Quota::per_day(50)).unwrap();
    limiter.save(&path).unwrap();
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let restored = build(&copy);
    restored.set_quota("daily", Quota::per_day(50)).unwrap();
    for key in ["a-0", "b-99"] {
        assert_eq!(restored.remaining(key), limiter.remaining(key));
    }
}
