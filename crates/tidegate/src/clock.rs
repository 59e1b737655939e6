//! Where time comes from: epoch microseconds, from a system clock that is cheap to read or from one that the caller
//! moves by hand. Nothing else in this crate asks what time it is.

#[cfg(feature = "waiting")]
use std::{
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

#[cfg(feature = "waiting")]
use parking_lot::Mutex;

/// A source of time. It may step in either direction: the algorithms bear it (at most one extra capacity).
pub trait Clock: Send + Sync + 'static {
    /// Microseconds since the Unix epoch, below 2<sup>52</sup> (the year 2112).
    fn epoch_micros(&self) -> u64;

    /// Is ready when this clock has come to show `epoch_micros`, or thereabouts: what waiting callers sleep by, who look
    /// at the clock and sleep again if it was too early. Unless a clock knows better, tokio's timer sleeps for as long as is missing
    /// now.
    #[cfg(feature = "waiting")]
    fn sleep_until(&self, epoch_micros: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(Duration::from_micros(epoch_micros.saturating_sub(self.epoch_micros()))))
    }
}

#[cfg(feature = "waiting")]
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The machine's time: an epoch anchor plus a fast monotonic counter, anchored anew every minute.
#[derive(Clone, Debug)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// The counter when the clock was made.
    start: u64,
    /// Microseconds per tick of the counter, in 2^-64.
    scale: u64,
    anchor: Arc<Anchor>,
}

#[derive(Debug)]
struct Anchor {
    /// Epoch microseconds at `start`. One number, so that a reader never sees half of an update.
    epoch_us: AtomicU64,
    /// When to compare with the machine's clock again, in microseconds after `start`.
    due_us: AtomicU64,
}

const ANCHOR_EVERY_US: u64 = 60_000_000;

impl SystemClock {
    /// A clock anchored now. The first one of a process measures the processor's counter, which can take a few milliseconds.
    pub fn new() -> Self {
        let counter = quanta::Clock::new();
        // One multiplication from ticks to microseconds, and no division. 2^40 ticks are minutes: the scale is good to 10^-11.
        let nanos = counter.delta_as_nanos(0, 1 << 40);
        let scale = ((u128::from(nanos) << 24) / 1_000) as u64;
        let start = counter.raw();
        let anchor = Anchor { epoch_us: AtomicU64::new(wall_us()), due_us: AtomicU64::new(ANCHOR_EVERY_US) };
        Self { counter, start, scale, anchor: Arc::new(anchor) }
    }

    #[cold]
    fn anchor_anew(&self, elapsed_us: u64) {
        self.anchor.due_us.store(elapsed_us + ANCHOR_EVERY_US, Relaxed);
        self.anchor.epoch_us.store(wall_us().saturating_sub(elapsed_us), Relaxed);
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline(always)]
    fn epoch_micros(&self) -> u64 {
        let ticks = self.counter.raw().saturating_sub(self.start);
        let elapsed_us = ((u128::from(ticks) * u128::from(self.scale)) >> 64) as u64;
        if elapsed_us >= self.anchor.due_us.load(Relaxed) {
            self.anchor_anew(elapsed_us);
        }
        self.anchor.epoch_us.load(Relaxed) + elapsed_us
    }
}

fn wall_us() -> u64 {
    // Before 1970 is 1970; after 2112 the machine's clock is wrong.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros().min(1 << 52) as u64)
}

/// A clock that stands still until it is moved; clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, ManualClock, Policy, Quota};
///
/// let clock = ManualClock::default();
/// let limiter = Limiter::builder().policy(Policy::new("demo", Quota::per_second(1))).clock(clock.clone()).build()?;
/// assert!(limiter.check("a").is_allowed());
/// assert!(!limiter.check("a").is_allowed());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check("a").is_allowed());
/// # Ok::<(), tidegate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Hands>);

#[derive(Debug)]
struct Hands {
    epoch_us: AtomicU64,
    #[cfg(feature = "waiting")]
    sleepers: Sleepers,
}

impl ManualClock {
    /// A clock that shows `epoch_micros`.
    pub fn new(epoch_micros: u64) -> Self {
        Self(Arc::new(Hands {
            epoch_us: AtomicU64::new(epoch_micros),
            #[cfg(feature = "waiting")]
            sleepers: Sleepers::default(),
        }))
    }

    /// Shows `epoch_micros` from now on.
    pub fn set(&self, epoch_micros: u64) {
        self.0.epoch_us.store(epoch_micros, Relaxed);
        self.wake();
    }

    /// Moves on by `by`, cut to microseconds.
    pub fn advance(&self, by: Duration) {
        self.0.epoch_us.fetch_add(by.as_micros() as u64, Relaxed);
        self.wake();
    }

    /// Steps back by `by`, cut to microseconds, as clocks do that are set right.
    pub fn step_back(&self, by: Duration) {
        self.0.epoch_us.fetch_sub(by.as_micros() as u64, Relaxed);
    }

    /// Wakes who has slept until now.
    fn wake(&self) {
        #[cfg(feature = "waiting")]
        self.0.sleepers.wake_until(self.epoch_micros());
    }
}

impl Default for ManualClock {
    /// The first second of 2026.
    fn default() -> Self {
        Self::new(1_767_225_600_000_000)
    }
}

impl Clock for ManualClock {
    fn epoch_micros(&self) -> u64 {
        self.0.epoch_us.load(Relaxed)
    }

    #[cfg(feature = "waiting")]
    fn sleep_until(&self, epoch_micros: u64) -> Sleep {
        Box::pin(Sleeper { clock: self.clone(), until: epoch_micros, id: None })
    }
}

/// Who sleeps by a manual clock: until when, told apart by a number.
#[cfg(feature = "waiting")]
#[derive(Debug, Default)]
struct Sleepers {
    wakers: Mutex<BTreeMap<(u64, u64), Waker>>,
    next: AtomicU64,
}

#[cfg(feature = "waiting")]
impl Sleepers {
    fn wake_until(&self, now: u64) {
        let mut wakers = self.wakers.lock();
        let later = wakers.split_off(&(now.saturating_add(1), 0));
        let due = std::mem::replace(&mut *wakers, later);
        drop(wakers);
        due.into_values().for_each(Waker::wake);
    }
}

#[cfg(feature = "waiting")]
struct Sleeper {
    clock: ManualClock,
    until: u64,
    id: Option<u64>,
}

#[cfg(feature = "waiting")]
impl Future for Sleeper {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let hands = Arc::clone(&self.clock.0);
        let mut wakers = hands.sleepers.wakers.lock();
        // Under the lock: who moves the clock wakes afterwards.
        if self.clock.epoch_micros() >= self.until {
            return Poll::Ready(());
        }
        let id = *self.id.get_or_insert_with(|| hands.sleepers.next.fetch_add(1, Relaxed));
        let old = wakers.insert((self.until, id), context.waker().clone());
        drop(wakers);
        // What goes with it may sleep here too.
        drop(old);
        Poll::Pending
    }
}

#[cfg(feature = "waiting")]
impl Drop for Sleeper {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let _waker = self.clock.0.sleepers.wakers.lock().remove(&(self.until, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_tells_the_machines_time() {
        let clock = SystemClock::new();
        let mut last = 0;
        for _ in 0..1_000 {
            let (before, told, after) = (wall_us(), clock.epoch_micros(), wall_us());
            // Between the two looks at the machine's clock, give or take what setting that clock right may do.
            assert!(told + 10_000 >= before && told <= after + 10_000, "{before} {told} {after}");
            assert!(told >= last);
            last = told;
        }
        assert_eq!(clock.anchor.due_us.load(Relaxed), ANCHOR_EVERY_US);
        clock.anchor_anew(5);
        assert_eq!(clock.anchor.due_us.load(Relaxed), ANCHOR_EVERY_US + 5);
    }
}
