//! What the tests of faults share: limiters on a server, hits that do not stop, and what is to be seen of them during an outage.

use std::{
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate::{Decision, Limiter, Policy, Quota, Redis, Source, StoreError};
use tidegate_testkit::Server;
use tokio::{runtime::Runtime, task::JoinHandle};

/// The deadline where a test says nothing else. By the library's own, 15 ms, a busy machine is an outage now and then.
pub(crate) const DEADLINE: Duration = Duration::from_millis(100);
/// What a busy machine may add to a deadline.
pub(crate) const NOISE: Duration = Duration::from_millis(200);
/// A server that nothing befalls is so late only where the machine stands still.
const STALL: Duration = Duration::from_millis(50);
/// Within this, decisions are the store's again.
pub(crate) const RETURN: Duration = Duration::from_secs(1);
/// A deadline that no fault of a test exhausts.
pub(crate) const LONG: Duration = Duration::from_secs(20);
/// Hits that ask at once during an outage.
pub(crate) const CALLERS: usize = 8;

static TURNS: RwLock<()> = RwLock::new(());

/// For a test that measures: no other test of this target runs meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test that does not measure.
pub(crate) fn together() -> RwLockReadGuard<'static, ()> {
    TURNS.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn redis(url: &str) -> Redis {
    Redis::new(url).unwrap().deadline(DEADLINE)
}

/// For exactness: every hit is answered by the server, and none from memory.
pub(crate) fn patient(url: &str) -> Redis {
    redis(url).deadline(LONG).deny_cache(Duration::ZERO)
}

/// A limiter that may not have a connection yet.
pub(crate) fn unconnected(runtime: &Runtime, store: Redis, policies: impl IntoIterator<Item = Policy>) -> Limiter<Redis> {
    let _context = runtime.enter();
    Limiter::builder().policies(policies).store(store).build().unwrap()
}

pub(crate) fn limiter(runtime: &Runtime, store: Redis, policies: impl IntoIterator<Item = Policy>) -> Limiter<Redis> {
    let limiter = unconnected(runtime, store, policies);
    until("there is a connection", || limiter.store().status().is_up);
    limiter
}

/// A policy that never denies what these tests ask.
pub(crate) fn wide() -> Policy {
    Policy::new("wide", Quota::per_day(1_000_000_000))
}

pub(crate) fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn is_by(decision: &Decision, source: Source) -> bool {
    decision.outcomes().all(|outcome| outcome.source() == source)
}

/// Who answered for the only policy.
pub(crate) fn source(decision: &Decision) -> Source {
    decision.outcomes().next().unwrap().source()
}

pub(crate) fn used(decision: &Decision) -> u64 {
    decision.outcomes().next().unwrap().used()
}

/// How long since `over` until a decision is the store's.
pub(crate) fn back(runtime: &Runtime, limiter: &Limiter<Redis>, over: Instant) -> Duration {
    let store = || runtime.block_on(limiter.check("first")).is_ok_and(|decision| source(&decision) == Source::Store);
    until("the store is back", store);
    over.elapsed()
}

/// A hit that was answered.
pub(crate) struct Seen {
    asked: Instant,
    answered: Instant,
    pub(crate) answer: Result<Source, StoreError>,
}

impl Seen {
    pub(crate) fn took(&self) -> Duration {
        self.answered - self.asked
    }
}

/// Callers that ask, each for a key of its own, until they are stopped.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<Seen>>>,
}

impl Load {
    pub(crate) fn start(runtime: &Runtime, limiter: &Limiter<Redis>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let caller = |number: usize| {
            let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
            runtime.spawn(async move {
                let key = format!("caller-{number}");
                let mut seen = Vec::new();
                while !stop.load(Relaxed) {
                    let asked = Instant::now();
                    let decision = limiter.check(&key).await;
                    let answered = Instant::now();
                    seen.push(Seen { asked, answered, answer: decision.map(|decision| source(&decision)) });
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                seen
            })
        };
        Self { callers: (0..CALLERS).map(caller).collect(), stop }
    }

    pub(crate) fn stop(self, runtime: &Runtime) -> Vec<Seen> {
        self.stop.store(true, Relaxed);
        self.callers.into_iter().flat_map(|caller| runtime.block_on(caller).unwrap()).collect()
    }
}

/// Asks a server that nothing befalls, without the library, and says how late its worst answer was: what is above the noise then
/// is the machine's.
struct Control {
    stop: Arc<AtomicBool>,
    asker: thread::JoinHandle<Duration>,
}

impl Control {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let server = Server::start();
        let asker = thread::spawn(move || {
            let mut connection = server.connection();
            let mut worst = Duration::ZERO;
            while !stopped.load(Relaxed) {
                let asked = Instant::now();
                thread::sleep(Duration::from_millis(1));
                redis::cmd("PING").exec(&mut connection).unwrap();
                worst = worst.max(asked.elapsed());
            }
            worst
        });
        Self { stop, asker }
    }

    fn stop(self) -> Duration {
        self.stop.store(true, Relaxed);
        self.asker.join().unwrap()
    }
}

/// What was seen of an outage.
pub(crate) struct Outage {
    /// The median time of a decision while it lasted.
    pub(crate) median: Duration,
    /// Connections made since the fault.
    pub(crate) connects: u64,
}

/// Measures. Where times are not kept and the machine has stood still meanwhile, as the control tells, that says nothing of the
/// library, and it is tried again: what passes has kept them all.
pub(crate) fn measured<T>(name: &str, mut attempt: impl FnMut() -> Result<T, String>) -> T {
    const TRIES: usize = 4;
    for left in (0..TRIES).rev() {
        let control = Control::start();
        let outcome = attempt();
        let stood = control.stop();
        println!("{name}: a server that nothing befell was late by {stood:?} at worst");
        match outcome {
            Ok(seen) => return seen,
            Err(problem) if stood < STALL || left == 0 => panic!("{name}: {problem}"),
            Err(problem) => println!("{name}: again, the machine stood still: {problem}"),
        }
    }
    unreachable!("the last try returns or panics")
}

/// # Errors
/// When it took longer than that.
pub(crate) fn within(bound: Duration, what: &str, took: Duration) -> Result<(), String> {
    if took <= bound { Ok(()) } else { Err(format!("{what} after {took:?}")) }
}

/// Lets a fault befall a part under load, and cures it. Both closures return when they have taken effect. All the while every
/// hit is answered in time and none by an error: by the store before, by the fallback while the fault lasts, by the store after.
pub(crate) fn outage<T>(
    name: &str,
    limiter: &Limiter<Redis>,
    runtime: &Runtime,
    part: &mut T,
    mut fault: impl FnMut(&mut T),
    lasts: Duration,
    mut cure: impl FnMut(&mut T),
) -> Outage {
    measured(name, || one_outage(name, limiter, runtime, part, &mut fault, lasts, &mut cure))
}

/// One try of an outage.
///
/// # Errors
/// What was too late.
fn one_outage<T>(
    name: &str,
    limiter: &Limiter<Redis>,
    runtime: &Runtime,
    part: &mut T,
    fault: &mut impl FnMut(&mut T),
    lasts: Duration,
    cure: &mut impl FnMut(&mut T),
) -> Result<Outage, String> {
    const HEALTHY: Duration = Duration::from_millis(400);
    let load = Load::start(runtime, limiter);
    thread::sleep(HEALTHY);
    let connects = limiter.store().status().connects;
    let coming = Instant::now();
    fault(part);
    let begun = Instant::now();
    thread::sleep(lasts);
    let curing = Instant::now();
    cure(part);
    let cured = Instant::now();
    let back = back(runtime, limiter, cured);
    let well = Instant::now();
    thread::sleep(HEALTHY);
    let seen = load.stop(runtime);
    let connects = limiter.store().status().connects - connects;

    let between = |from: Instant, to: Instant| seen.iter().filter(move |seen| seen.asked >= from && seen.answered <= to);
    let first = seen.iter().map(|seen| seen.asked).min().unwrap();
    let (before, during, after) = (between(first, coming), between(begun, curing), between(well, Instant::now()));
    let mut times: Vec<Duration> = during.clone().map(Seen::took).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let worst = seen.iter().map(Seen::took).max().unwrap();
    println!(
        "{name}: {} hits, {} during; worst {worst:?}, median during {median:?}; the store's again after {back:?}",
        seen.len(),
        times.len()
    );
    for seen in during {
        assert_eq!(seen.answer, Ok(Source::Fallback), "{name}: while it lasted");
    }
    for seen in &seen {
        assert!(seen.answer.is_ok(), "{name}: {:?}", seen.answer);
    }
    for (phase, healthy) in [("before", before), ("after", after)] {
        let all = healthy.clone().count();
        let elsewhere: Vec<&Seen> = healthy.filter(|seen| seen.answer != Ok(Source::Store)).collect();
        println!("{name}, {phase}: {} of {all} were too late for a store that was well", elsewhere.len());
        // On a busy machine a healthy server can be too late as well: who was not answered by it has waited for it.
        if let Some(early) = elsewhere.iter().find(|seen| seen.took() < DEADLINE) {
            return Err(format!("{phase}, {:?} after {:?}", early.answer, early.took()));
        }
        if all == 0 || elsewhere.len() * 10 > all {
            return Err(format!("{phase}, {} of {all} not by the store", elsewhere.len()));
        }
    }
    within(DEADLINE + NOISE, "a decision came", worst)?;
    within(RETURN, "the store's again", back)?;
    Ok(Outage { median, connects })
}

/// Numbers that look random, the same for the same seed (splitmix64).
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}
