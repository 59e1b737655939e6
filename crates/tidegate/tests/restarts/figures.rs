//! How long it takes to save and to restore many keys, how large that is, and how long a decision waits meanwhile.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tidegate::{Algorithm, Limiter, Policy, Quota, Snapshot};

use crate::from_outside;

#[test]
fn many_keys_are_saved_and_restored() {
    let keys = from_outside("TIDEGATE_KEYS", 20_000);
    // On a disk, if that is what it is: this is to tell what users will see.
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("snapshot");
    println!("{keys} keys, each hit up to three times; seconds");
    let columns = ["save", "restore", "bytes", "bytes per key", "longest decision, ms", "without a save"];
    let [save, restore, bytes, per_key, longest, without] = columns;
    println!("{:16}{save:>8}{restore:>10}{bytes:>12}{per_key:>16}{longest:>22}{without:>16}", "");
    for algorithm in Algorithm::RATES {
        let builder = || {
            let policy = Policy::new("daily", Quota::per_day(1_000)).algorithm(*algorithm);
            Limiter::builder().policy(policy).max_keys(keys + keys / 4)
        };
        let limiter = builder().build().unwrap();
        let name = |number: usize| format!("user:{number}");
        for turn in 1..4 {
            (0..keys).step_by(turn).for_each(|number| assert!(limiter.check(&name(number)).is_allowed()));
        }
        let longest_while = |work: &mut dyn FnMut()| {
            let done = AtomicBool::new(false);
            thread::scope(|scope| {
                let decider = scope.spawn(|| {
                    let mut longest = Duration::ZERO;
                    for number in (0..keys).cycle().take_while(|_| !done.load(Relaxed)) {
                        let (key, begun) = (name(number * 7_919 % keys), Instant::now());
                        let _ = limiter.check(&key);
                        longest = longest.max(begun.elapsed());
                    }
                    longest
                });
                work();
                done.store(true, Relaxed);
                decider.join().unwrap()
            })
        };
        let begun = Instant::now();
        let saved = limiter.save(&path).unwrap();
        let took = begun.elapsed();
        assert_eq!((saved.keys, saved.bytes), (keys, fs::metadata(&path).unwrap().len()));
        // The least of several: others on this machine make threads wait, too, but not every time.
        let least = |work: &mut dyn FnMut()| (0..7).map(|_| longest_while(work)).min().unwrap();
        let longest = least(&mut || assert!(limiter.save(&path).is_ok()));
        let without = least(&mut || {
            let begun = Instant::now();
            while begun.elapsed() < took {
                std::hint::spin_loop();
            }
        });
        limiter.save(&path).unwrap();
        let begun = Instant::now();
        let restored = builder().snapshot(Snapshot::new(&path)).build().unwrap();
        let back = begun.elapsed();
        assert_eq!(restored.usage()[0].keys, keys);
        for number in (0..keys).step_by(997) {
            assert_eq!(restored.remaining(&name(number)), limiter.remaining(&name(number)), "{number}");
        }
        println!(
            "{:16}{:>8.3}{:>10.3}{:>12}{:>16.1}{:>22.2}{:>16.2}",
            algorithm.name(),
            took.as_secs_f64(),
            back.as_secs_f64(),
            saved.bytes,
            saved.bytes as f64 / keys as f64,
            longest.as_secs_f64() * 1e3,
            without.as_secs_f64() * 1e3
        );
    }
}
