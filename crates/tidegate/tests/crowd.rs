//! Ten thousand waiters by the machine's clock, half of them with a timeout, in a process of their own: in order, though half of them
//! go, and for next to no CPU while they wait. That nobody is served too early or too late is tested on a clock that stands still.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tidegate::{Algorithm, Limiter, Policy, Quota};
use tokio::task::JoinHandle;

const KEYS: usize = 100;
const EACH: usize = 100;
const LIMIT: u64 = 30;
/// Long enough that all have come before the first is served.
const WINDOW: Duration = Duration::from_secs(4);

/// The CPU time that this process has used, in steps of 10 ms; none where that is not to be read.
fn cpu() -> Duration {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return Duration::ZERO };
    // Behind the name, which may hold anything: the state is the first field, and user and system time are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}

#[tokio::test]
async fn ten_thousand_waiters_cost_next_to_nothing_while_they_wait() {
    let policy = Policy::new("crowd", Quota::new(LIMIT, WINDOW).unwrap()).algorithm(Algorithm::SlidingLog);
    let limiter = Limiter::builder().policy(policy).build().unwrap();
    let served: Arc<[Mutex<Vec<usize>>]> = (0..KEYS).map(|_| Mutex::default()).collect();
    let coming = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    for key in 0..KEYS {
        assert!(limiter.check_n(&key.to_string(), LIMIT).is_allowed());
    }
    let wait = |turn: usize| {
        let (limiter, served, coming) = (limiter.clone(), Arc::clone(&served), Arc::clone(&coming));
        tokio::spawn(async move {
            coming.fetch_add(1, Relaxed);
            let key = (turn % KEYS).to_string();
            let decision = if (turn / KEYS).is_multiple_of(2) {
                limiter.acquire(&key).await
            } else {
                limiter.acquire_timeout(&key, Duration::from_secs(600)).await
            };
            assert!(decision.is_allowed());
            served[turn % KEYS].lock().unwrap().push(turn);
        })
    };
    let tasks: Vec<JoinHandle<()>> = (0..KEYS * EACH).map(wait).collect();
    // In one thread they come into line in the order in which they were made.
    while coming.load(Relaxed) < KEYS * EACH {
        tokio::task::yield_now().await;
    }
    let came = (began.elapsed(), cpu());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let waited = (began.elapsed(), cpu());
    assert!(waited.0 < WINDOW, "they have not come in time");

    let mut left: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
    for (turn, task) in tasks.iter().enumerate() {
        // Half of them, as if at random.
        let draw = (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if draw >> 63 == 0 { task.abort() } else { left[turn % KEYS].push(turn) }
    }
    for task in tasks {
        let _ = task.await;
    }
    let done = (began.elapsed(), cpu());
    let served: Vec<Vec<usize>> = served.iter().map(|served| served.lock().unwrap().clone()).collect();
    assert_eq!(served, left);
    let windows = left.iter().map(|left| left.len() as u64).max().unwrap().div_ceil(LIMIT);
    assert!(done.0 >= WINDOW * windows as u32, "over the limit");
    println!(
        "{} waiters on {KEYS} keys: came in {:?} with {:?} of CPU, waited {:?} with {:?}, half went and half were served in {:?} with {:?}",
        KEYS * EACH,
        came.0,
        came.1,
        waited.0 - came.0,
        waited.1 - came.1,
        done.0 - waited.0,
        done.1 - waited.1,
    );
    assert!(waited.1 - came.1 <= Duration::from_millis(50), "they are busy waiting");
}
