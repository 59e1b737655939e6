//! Ten thousand waiters by the machine's clock, in a process of their own: in order, though half of them go, and for next to no CPU
//! while they wait. That nobody is served too early or too late is tested on a clock that stands still.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tidegate::{Algorithm, Limiter, Policy, Quota};

const KEYS: usize = 100;
const EACH: usize = 100;
const LIMIT: u64 = 30;
/// Long enough that all have come before the first is served.
const WINDOW: Duration = Duration::from_secs(4);

/// The CPU time that this process has used, in ticks of 10 ms; nothing where that is not to be read.
fn cpu() -> Option<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // Behind the name, which may hold anything: the state is the first field, and user and system time are the 12th and 13th.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().ok()? + fields[12].parse::<u64>().ok()?;
    Some(Duration::from_millis(10 * ticks))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waiters_cost_next_to_nothing_while_they_wait() {
    let policy = Policy::new("crowd", Quota::new(LIMIT, WINDOW).unwrap()).algorithm(Algorithm::SlidingLog);
    let limiter = Limiter::builder().policy(policy).build().unwrap();
    let names: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
    let began = Instant::now();
    for name in &names {
        assert!(limiter.check_n(name, LIMIT).is_allowed());
    }
    let served: Arc<[Mutex<Vec<usize>>]> = (0..KEYS).map(|_| Mutex::default()).collect();
    let (ready, mut is_ready) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for turn in 0..KEYS * EACH {
        let (limiter, name, served, ready) = (limiter.clone(), names[turn % KEYS].clone(), Arc::clone(&served), ready.clone());
        tasks.push(tokio::spawn(async move {
            let mut acquire = Box::pin(limiter.acquire(&name));
            std::future::poll_fn(|context| {
                assert!(acquire.as_mut().poll(context).is_pending(), "it took longer than a window to come");
                std::task::Poll::Ready(())
            })
            .await;
            ready.send(()).unwrap();
            assert!(acquire.await.is_allowed());
            served[turn % KEYS].lock().unwrap().push(turn);
        }));
        // One after the other, so that the order is known.
        is_ready.recv().await.unwrap();
    }
    let (came, cpu_came) = (began.elapsed(), cpu());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (waited, cpu_waited) = (began.elapsed() - came, cpu());

    let mut left: Vec<Vec<usize>> = vec![Vec::new(); KEYS];
    for (turn, task) in tasks.iter().enumerate() {
        // Half of them, as if at random.
        let draw = (turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if draw >> 63 == 0 { task.abort() } else { left[turn % KEYS].push(turn) }
    }
    let (gone, cpu_gone) = (began.elapsed(), cpu());
    for task in tasks {
        let _ = task.await;
    }
    let (done, cpu_done) = (began.elapsed(), cpu());
    for (served, left) in served.iter().zip(&left) {
        let mut served = served.lock().unwrap().clone();
        // Two that are served in one moment may get here in any order: to be far from one's place is another thing.
        for (place, turn) in left.iter().enumerate() {
            let at = served.iter().position(|served| served == turn).expect("it is served");
            assert!(at.abs_diff(place) <= 2, "{turn} is served as number {at} and came as number {place}");
        }
        served.sort_unstable();
        assert_eq!(served, *left);
    }
    let longest = left.iter().map(Vec::len).max().unwrap() as u64;
    assert!(done >= WINDOW * ((longest.div_ceil(LIMIT)) as u32), "over the limit");
    let (Some(cpu_came), Some(cpu_waited), Some(cpu_gone), Some(cpu_done)) = (cpu_came, cpu_waited, cpu_gone, cpu_done) else {
        return;
    };
    println!(
        "{} waiters on {KEYS} keys came in {came:?} for {cpu_came:?} of CPU; waiting {waited:?} took {:?}; half of them gone, the \
         others were served over {:?} for {:?}",
        KEYS * EACH,
        cpu_waited - cpu_came,
        done - gone,
        cpu_done - cpu_gone,
    );
    assert!(cpu_waited - cpu_came <= Duration::from_millis(50), "they are busy waiting");
}
