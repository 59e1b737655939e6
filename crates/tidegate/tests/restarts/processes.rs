//! Processes that are killed while they write, and processes that write to one place. The processes are this test binary, run
//! again for one test that works for its parent.

use std::{
    env, fs,
    hash::{BuildHasher as _, RandomState},
    io::{BufRead as _, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tidegate::{Algorithm, Builder, Hit, Limiter, Policy, Quota, Snapshot};

use crate::{folder, from_outside, names};

const KEYS: usize = 500;
/// With the file and the name of its keys.
const SETTINGS: &str = "TIDEGATE_TEST_WRITER";

/// The name of keys that a writer takes over from the one before it.
const HEIR: &str = "heir";

/// Two policies of which nothing expires while a test runs.
fn builder() -> Builder {
    let quota = Quota::new(1 << 40, Quota::MAX_WINDOW).unwrap();
    let policy = |algorithm: Algorithm| Policy::new(algorithm.name(), quota).algorithm(algorithm);
    let policies = [Algorithm::SlidingWindow, Algorithm::SlidingCounter].map(policy);
    Limiter::builder().policies(policies)
}

fn build(path: &Path) -> Limiter {
    builder().snapshot(Snapshot::new(path)).build().unwrap()
}

/// The costs of all keys of that name under both policies, each once.
fn counts(limiter: &Limiter, name: &str) -> Vec<u64> {
    let of_key = |number| {
        let decision = limiter.peek(Hit::from(&*format!("{name}-{number}")).cost(0));
        decision.outcomes().map(|outcome| outcome.used()).collect::<Vec<_>>()
    };
    let mut counts: Vec<u64> = (0..KEYS).flat_map(of_key).collect();
    counts.dedup();
    counts
}

/// The limiter that a file holds at this moment.
fn restored(path: &Path) -> Limiter {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    let limiter = build(&copy);
    assert!(limiter.store().snapshot_status().restored.unwrap().is_some());
    limiter
}

#[test]
#[ignore = "run by the tests of this file, in processes of their own"]
fn writer() {
    let Ok(settings) = env::var(SETTINGS) else { return };
    let (path, name) = settings.rsplit_once(' ').unwrap();
    let limiter = if name == HEIR { build(Path::new(path)) } else { builder().build().unwrap() };
    for turn in 1 + counts(&limiter, name)[0].. {
        (0..KEYS).for_each(|number| assert!(limiter.check(&format!("{name}-{number}")).is_allowed()));
        limiter.save(path).unwrap();
        println!("saved {turn}");
    }
}

/// A process that counts every key once more and saves, until it is killed.
struct Writer {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    fn start(path: &Path, name: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "processes::writer", "--ignored", "--nocapture"]);
        command.env(SETTINGS, format!("{} {name}", path.display())).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, output }
    }

    /// The next turn that it has saved; nothing once it is dead.
    fn saved(&mut self) -> Option<u64> {
        let mut turns = self.output.by_ref().map_while(Result::ok);
        turns.find_map(|line| line.rsplit_once("saved ").and_then(|(_, turn)| turn.parse().ok()))
    }

    /// Kills it, as no process can prevent, and says what it saved last.
    fn kill(&mut self) -> u64 {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        std::iter::from_fn(|| self.saved()).last().unwrap_or(0)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn killed_writer_leaves_the_old_state_or_the_new_one() {
    let kills = from_outside("TIDEGATE_KILLS", 200);
    let folder = folder();
    let path = folder.path().join("snapshot");
    let unfinished = || names(folder.path()).iter().any(|name| name.starts_with(".snapshot."));
    let (mut last, mut torn) = (0, 0);
    for _ in 0..kills {
        let mut writer = Writer::start(&path, HEIR);
        let first = writer.saved().expect("it saves until it is killed");
        assert_eq!(first, last + 1);
        // Anywhere in the writing of one that follows.
        while !unfinished() {
            thread::yield_now();
        }
        let until = Instant::now() + Duration::from_micros(RandomState::new().hash_one(first) % 3_000);
        while Instant::now() < until {
            thread::yield_now();
        }
        let told = writer.kill().max(first);
        torn += usize::from(unfinished());
        let counts = counts(&restored(&path), HEIR);
        assert!(counts == [told] || counts == [told + 1], "{counts:?} where {told} was saved");
        last = counts[0];
    }
    println!("{kills} processes killed, {torn} of them while they wrote; {last} snapshots");
    assert!(torn > 0, "none was killed while it wrote");
    drop(build(&path));
    assert!(!unfinished(), "what they left is cleared away");
}

#[test]
fn two_writers_on_one_file_never_mix() {
    let folder = folder();
    let path = folder.path().join("snapshot");
    let mut writers = ["one", "two"].map(|name| Writer::start(&path, name));
    writers.iter_mut().for_each(|writer| assert_eq!(writer.saved(), Some(1)));
    let mut seen = [0, 0];
    for _ in 0..from_outside("TIDEGATE_KILLS", 200) {
        let now = restored(&path);
        let [one, two] = ["one", "two"].map(|name| counts(&now, name));
        assert!(one.len() == 1 && two.len() == 1 && (one == [0]) != (two == [0]), "{one:?} {two:?}");
        seen[usize::from(one == [0])] += 1;
    }
    println!("the first of two writers was seen {} times, the second {}", seen[0], seen[1]);
}
