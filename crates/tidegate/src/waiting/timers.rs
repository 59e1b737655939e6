//! When to wake those who wait: one timer for each key, whoever and how many they are. It refuses to know why anybody wants to be
//! woken, and who is first.
//!
//! Each has its alarm, which goes when it is woken; who is polled looks at the clock and sets it again if it has to. The timer is
//! armed for the earliest alarm of a key by whoever was polled last, because only that one is known to have a runtime that runs.
//! It goes with who has armed it. It wakes no task by itself but a bell, so it does not matter whether its maker is polled again.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
    task::{Context, Wake, Waker},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::lines::{Id, Wakers, wake};
use crate::{clock::Sleep, limiter::Time};

/// So many are woken to arm a timer anew. One who is polled is enough; a future may be kept and not polled.
const HEIRS: usize = 8;

#[derive(Default)]
pub(super) struct Timers(Mutex<HashMap<Id, Timer, RandomState>>);

#[derive(Default)]
struct Timer {
    alarms: BTreeMap<Alarm, Waker>,
    /// For when, and by whom; that one has an alarm.
    armed: Option<Alarm>,
    /// None while it is being armed. What has rung is left to the next who comes.
    sleep: Option<Sleep>,
}

/// When to wake whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Alarm {
    pub(super) at: u64,
    pub(super) ticket: u64,
}

impl Timers {
    /// Sets an alarm in the place of the one that was set before, and arms the timer. The clock is not ours: nothing of it is called
    /// or dropped while the timers are locked.
    pub(super) fn set(self: &Arc<Self>, id: Id, alarm: Alarm, before: Option<Alarm>, waker: Waker, clock: &Time) {
        let mut timers = self.0.lock();
        let timer = timers.entry(id).or_default();
        let old = before.and_then(|before| timer.alarms.remove(&before));
        timer.alarms.insert(alarm, waker);
        let earliest = timer.alarms.first_key_value().map_or(alarm.at, |(first, _)| first.at);
        let armed = Alarm { at: earliest, ..alarm };
        let again = timer.armed.replace(armed) != Some(armed);
        let replaced = if again { timer.sleep.take() } else { None };
        drop(timers);
        drop((old, replaced));
        if again {
            self.arm(id, armed, clock);
        }
    }

    fn arm(self: &Arc<Self>, id: Id, armed: Alarm, clock: &Time) {
        let bell = Arc::new(Bell { timers: Arc::downgrade(self), id, armed });
        let mut sleep = clock.sleep_until(armed.at);
        if sleep.as_mut().poll(&mut Context::from_waker(&Waker::from(bell))).is_ready() {
            return self.ring(&id, armed);
        }
        let mut timers = self.0.lock();
        let unwanted = match timers.get_mut(&id) {
            Some(timer) if timer.armed == Some(armed) => timer.sleep.replace(sleep),
            // Meanwhile it has rung, or another has armed it.
            _ => Some(sleep),
        };
        drop(timers);
        drop(unwanted);
    }

    /// Takes back an alarm, which may have rung. Where it leaves no timer to the others, they see to that.
    pub(super) fn cancel(&self, id: &Id, alarm: Alarm) {
        let mut timers = self.0.lock();
        let Some(timer) = timers.get_mut(id) else { return };
        let old = timer.alarms.remove(&alarm);
        if timer.armed.is_some_and(|armed| armed.ticket != alarm.ticket) {
            drop(timers);
            drop(old);
            return;
        }
        let (sleep, wakers) = (timer.sleep.take(), timer.disarm(0));
        if timer.alarms.is_empty() {
            timers.remove(id);
        }
        drop(timers);
        drop((old, sleep));
        wake(wakers);
    }

    /// Wakes whose time has come. A runtime that ends rings too early: who is woken looks at the clock.
    fn ring(&self, id: &Id, armed: Alarm) {
        let mut timers = self.0.lock();
        let timer = timers.get_mut(id).filter(|timer| timer.armed == Some(armed));
        let wakers = timer.map(|timer| timer.disarm(armed.at)).unwrap_or_default();
        drop(timers);
        wake(wakers);
    }
}

impl Timer {
    /// Those whose alarms are not after `at`, and their heirs.
    fn disarm(&mut self, at: u64) -> Wakers {
        self.armed = None;
        let mut wakers = Wakers::new();
        let mut heirs = 0;
        while let Some(first) = self.alarms.first_entry() {
            heirs += usize::from(first.key().at > at);
            if heirs > HEIRS {
                break;
            }
            wakers.push(first.remove());
        }
        wakers
    }
}

/// What a timer wakes. It makes, polls and drops no timer: whoever rings it may be locked, or about to end.
struct Bell {
    timers: Weak<Timers>,
    id: Id,
    armed: Alarm,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        if let Some(timers) = self.timers.upgrade() {
            timers.ring(&self.id, self.armed);
        }
    }
}
