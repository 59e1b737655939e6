//! Futures that are polled by hand, in any order, on a clock that stands still until it is moved and knows how many sleep by it; no
//! runtime is needed for that.

use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate::{Clock, Decision, Hit, Limiter, ManualClock, Quota};

pub(crate) const KEY: &[(&str, &str)] = &[("key", "k")];
pub(crate) const WINDOW: u64 = 10_000;

pub(crate) fn quota(limit: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(WINDOW)).unwrap()
}

/// Wakes a future, by its number.
struct Bell {
    number: usize,
    woken: Arc<Mutex<BTreeSet<usize>>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.woken.lock().unwrap().insert(self.number);
    }
}

type Task = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// Futures that are polled when they have been woken.
#[derive(Default)]
pub(crate) struct Crowd {
    tasks: Vec<Option<Task>>,
    woken: Arc<Mutex<BTreeSet<usize>>>,
    /// Which of those that are woken is polled next.
    pub(crate) draw: u64,
    pub(crate) polls: usize,
    /// Those that are kept and not polled.
    pub(crate) frozen: BTreeSet<usize>,
}

impl Crowd {
    /// Adds one that waits for `cost`, and polls it; its number.
    pub(crate) fn wait(
        &mut self,
        limiter: &Limiter,
        hit: &'static [(&str, &str)],
        cost: u64,
        timeout: Option<u64>,
    ) -> (usize, Option<Decision>) {
        let limiter = limiter.clone();
        let future = Box::pin(async move {
            let hit = hit.iter().fold(Hit::new(), |hit, (name, value)| hit.attribute(name, *value)).cost(cost);
            match timeout {
                Some(timeout) => limiter.acquire_timeout(hit, Duration::from_micros(timeout)).await,
                None => limiter.acquire(hit).await,
            }
        });
        self.tasks.push(Some(future));
        let number = self.tasks.len() - 1;
        (number, self.poll(number))
    }

    pub(crate) fn poll(&mut self, number: usize) -> Option<Decision> {
        let waker = Waker::from(Arc::new(Bell { number, woken: Arc::clone(&self.woken) }));
        let task = self.tasks[number].as_mut()?;
        self.polls += 1;
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(decision) => {
                self.tasks[number] = None;
                Some(decision)
            }
            Poll::Pending => None,
        }
    }

    /// Polls until nobody is woken, and says who was answered what, in that order.
    pub(crate) fn run(&mut self) -> Vec<(usize, Decision)> {
        let mut answered = Vec::new();
        loop {
            let mut woken = self.woken.lock().unwrap();
            let index = next(&mut self.draw) as usize % woken.len().max(1);
            let Some(number) = woken.iter().nth(index).copied() else { return answered };
            woken.remove(&number);
            drop(woken);
            if self.frozen.contains(&number) {
                continue;
            }
            answered.extend(self.poll(number).map(|decision| (number, decision)));
            assert!(self.polls < 1_000_000, "somebody is woken over and over");
        }
    }

    pub(crate) fn cancel(&mut self, number: usize) {
        self.tasks[number] = None;
    }
}

/// Numbers that seem to be drawn.
pub(crate) fn next(draw: &mut u64) -> u64 {
    *draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *draw >> 33
}

/// A clock that is moved by hand, and counts who sleeps by it.
#[derive(Clone)]
pub(crate) struct CountingClock {
    pub(crate) clock: ManualClock,
    sleepers: Arc<(AtomicUsize, AtomicUsize)>,
}

impl CountingClock {
    pub(crate) fn new(clock: ManualClock) -> Self {
        Self { clock, sleepers: Arc::default() }
    }

    pub(crate) fn sleepers(&self) -> usize {
        self.sleepers.0.load(SeqCst)
    }

    /// How many there ever were at once.
    pub(crate) fn most_sleepers(&self) -> usize {
        self.sleepers.1.load(SeqCst)
    }
}

impl Clock for CountingClock {
    fn epoch_micros(&self) -> u64 {
        self.clock.epoch_micros()
    }

    fn sleep_until(&self, epoch_micros: u64) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        struct Sleeper(CountingClock);
        impl Drop for Sleeper {
            fn drop(&mut self) {
                self.0.sleepers.0.fetch_sub(1, SeqCst);
            }
        }
        let sleepers = self.sleepers.0.fetch_add(1, SeqCst) + 1;
        self.sleepers.1.fetch_max(sleepers, SeqCst);
        let (sleeper, sleep) = (Sleeper(self.clone()), self.clock.sleep_until(epoch_micros));
        Box::pin(async move {
            let _sleeper = sleeper;
            sleep.await;
        })
    }
}
