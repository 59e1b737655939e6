//! Waiting until a hit is admitted: a line of waiters for each key, first come first served within this process. It owns who is
//! next and when to ask again, and refuses to know how anything is decided. There is no task and no thread: who is first asks
//! for itself and sleeps for as long as the denial told, and all others sleep until it has gone or their time is up.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::{
    forecast::Forecast,
    lines::{Id, Ids, Lines, Waiter, id, lines_of, wake},
    timers::{Alarm, Timers},
};
use crate::{
    Algorithm, Decision, Hit, Limiter, Store,
    algorithm::Verdict,
    error::StoreError,
    key::Key,
    lease::{Lease, anonymous},
    limiter::Inner,
    set::PolicySet,
    store::{Ask, Asks, Intent},
};

mod forecast;
mod lines;
mod timers;

impl<S: Store> Limiter<S> {
    /// Waits until a hit is admitted, and charges it then. Needs the feature `waiting`.
    ///
    /// ```
    /// # async fn example() {
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::in_memory(Quota::per_second(10));
    /// for page in 0..100 {
    ///     let _ = limiter.acquire("api.example.com").await; // ten at once, then as they come free
    ///     // fetch the page
    /// }
    /// # }
    /// ```
    ///
    /// The decision is an allowed one, with its receipt; or a denied one at once where no wait helps: the cost is above the limit,
    /// or the key is blocked. On Redis it comes in a `Result`, and where the store does not answer each policy decides as it does
    /// for [`check`](Self::check).
    ///
    /// **Order.** Who comes first is served first, for each key within this process; `check` may overtake, and so may other
    /// processes. A hit of several policies is in line for the key of each that it has to satisfy, and is asked for when it is first
    /// in all of them. One comes into line when its future is first polled. Who is first asks alone: on Redis a key serves at most
    /// one waiter in a round trip.
    ///
    /// **Cancelling** is dropping the future: it leaves the line and holds nothing. In memory the charge is made in the poll that
    /// returns it. On Redis what was asked for by then is given back as soon as it is answered. A future that is kept
    /// but not polled keeps those behind it waiting; for longer than their timeouts only if there are more than eight such.
    ///
    /// **Asking again.** Who is first sleeps for the wait that it was told, which is exact, and is woken earlier when
    /// a refund, a settlement, a reset, a release or a reconfiguration in this process may have made room. There is one timer
    /// for each key that is waited for, on the runtime of one who waits; while that is kept and does not run, others may be late. For a
    /// lease that another process may release on a store that is elsewhere, it looks five times a second.
    ///
    /// # Panics
    /// When it has to wait by the machine's clock outside of a tokio runtime with a timer. Another
    /// [`Clock`](crate::Clock) can bring its own.
    pub fn acquire<'h>(&self, hit: impl Into<Hit<'h>>) -> impl Future<Output = S::Awaited<Decision>> + Send {
        let hit = hit.into();
        async move { S::awaited(wait(self, &hit.leased(&anonymous()), None).await) }
    }

    /// Waits until a hit is admitted, as [`acquire`](Self::acquire) does, but not for longer than `timeout`.
    ///
    /// The decision is a denied one, with nothing charged, at once where it is known that the wait would be longer; its
    /// [`retry_after`](Decision::retry_after) is the wait that is known of. Known is how long those ahead in line and then this hit take
    /// at least, whatever `check` and other processes take besides; with `sliding-counter`, this hit alone. When the time is up it
    /// is denied in any case. On Redis an answer that is under way then still counts.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::in_memory(Quota::per_minute(1));
    /// let patience = Duration::from_secs(1);
    /// assert!(limiter.acquire_timeout("user:42", patience).await.is_allowed());
    /// assert!(!limiter.acquire_timeout("user:42", patience).await.is_allowed()); // at once: it would be a minute
    /// # });
    /// ```
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    pub fn acquire_timeout<'h>(
        &self,
        hit: impl Into<Hit<'h>>,
        timeout: Duration,
    ) -> impl Future<Output = S::Awaited<Decision>> + Send {
        let hit = hit.into();
        async move {
            let timeout = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
            S::awaited(wait(self, &hit.leased(&anonymous()), Some(self.now().saturating_add(timeout))).await)
        }
    }

    /// A reply after which some keys may have room, and those who wait for them look again.
    pub(crate) fn making_room(&self, reply: S::Reply<Decision>) -> S::Reply<Decision> {
        let inner = Arc::clone(&self.inner);
        S::map(reply, move |decision| {
            inner.look_again(&decision);
            decision
        })
    }

    /// The same, where leases may have been released.
    pub(crate) fn making_places(&self, leases: Vec<Lease>, reply: S::Reply<bool>) -> S::Reply<bool> {
        let inner = Arc::clone(&self.inner);
        S::map(reply, move |held| {
            if held && inner.waiting.count.load(Relaxed) > 0 {
                let set = inner.set.load();
                let ids: Ids = leases.iter().filter_map(|lease| set.lease(lease)).map(|ask| id(&set, &ask)).collect();
                let wakers = inner.waiting.lines.lock().nudge(&ids);
                wake(wakers);
            }
            held
        })
    }
}

impl<S: Store> Inner<S> {
    /// Wakes who is first in line for the keys of a decision.
    fn look_again(&self, decision: &Decision) {
        // Who waits has come into line before it found the key without room, and who made room did so before it came here: the
        // key's lock is between the two, or the link to the store.
        if self.waiting.count.load(Relaxed) == 0 {
            return;
        }
        let set = self.set.load();
        // Should the set have been replaced meanwhile, everybody is woken after that.
        let ids: Ids =
            decision.asks().filter(|ask| usize::from(ask.policy) < set.policies.len()).map(|ask| id(&set, ask)).collect();
        let wakers = self.waiting.lines.lock().nudge(&ids);
        wake(wakers);
    }
}

/// How often it is looked whether another process has released a lease, in microseconds.
const LOOK: u64 = 200_000;

/// Waits for a hit to be admitted until `deadline`.
async fn wait<S: Store>(limiter: &Limiter<S>, hit: &Hit<'_>, deadline: Option<u64>) -> Result<Decision, StoreError> {
    let mut place = Place::new(limiter, hit);
    if let Some(deadline) = deadline {
        // Boxed: it is large and seldom needed, and there may be many who wait.
        let known = Box::pin(limiter.foresee(place.ahead())).await;
        if limiter.now().saturating_add(known) > deadline {
            drop(place);
            return limiter.refuse(hit, known).await;
        }
    }
    loop {
        if !place.turn(deadline).await {
            let ahead = place.ahead();
            drop(place);
            let known = Box::pin(limiter.foresee(ahead)).await;
            return limiter.refuse(hit, known).await;
        }
        let decision = S::ask(limiter, hit).await?;
        let Some(wait) = decision.retry_after() else { return Ok(decision) };
        let now = limiter.now();
        // A lease may be released before it ends: what it is waited for is not known.
        let known = now.saturating_add(decision.rates_wait());
        if deadline.is_some_and(|deadline| known > deadline || now >= deadline) {
            return Ok(decision);
        }
        // Others who share the store release there, and cannot tell us.
        let looks = if decision.lacks_places() && limiter.inner.store.shared_by().is_some() { LOOK } else { u64::MAX };
        let at = now.saturating_add(looks.min(wait.as_micros() as u64));
        place.rest(deadline.map_or(at, |deadline| at.min(deadline))).await;
    }
}

impl<S: Store> Limiter<S> {
    /// How long those ahead and then this hit take at least, in microseconds; 0 where that is not known.
    async fn foresee(&self, Ahead { set, asks }: Ahead) -> u64 {
        let forecast = |(ask, ahead): &(Ask, u64)| {
            let prepared = &set.policies[usize::from(ask.policy)];
            Forecast::new(prepared.policy.algorithm, prepared.plan(ask.plan), *ahead, ask.cost)
        };
        let forecasts: SmallVec<[Forecast; 2]> = asks.iter().map(forecast).collect();
        // Not enforced: nobody is denied, and no denial is counted.
        let question =
            asks.iter().zip(&forecasts).map(|((ask, _), forecast)| Ask { cost: forecast.cost, enforced: false, ..*ask });
        let question: Asks = question.collect();
        if question.is_empty() {
            return 0;
        }
        let records = S::told(S::foresee(self, Arc::clone(&set), question)).await.unwrap_or_default();
        let waits = forecasts.iter().zip(&records).map(|(forecast, record)| match record.answer.verdict {
            Verdict::Denied { retry_after } => forecast.after(retry_after),
            _ => forecast.after(0),
        });
        waits.max().unwrap_or(0)
    }

    /// The denial of a hit that has to wait for longer than it can, so long at least.
    async fn refuse(&self, hit: &Hit<'_>, wait: u64) -> Result<Decision, StoreError> {
        let mut decision = S::told(S::decide(self, hit, Intent::Peek)).await?;
        decision.deny(wait.max(1));
        Ok(decision)
    }
}

/// Who waits.
#[derive(Default)]
pub(crate) struct Waiting {
    /// How many, so that who makes room need not look when nobody does.
    count: AtomicUsize,
    lines: Mutex<Lines>,
    timers: Arc<Timers>,
}

impl Waiting {
    /// Has everybody look again: other policies are in force.
    pub(crate) fn wake_all(&self) {
        let wakers = self.lines.lock().waiters.values_mut().filter_map(Waiter::nudge).collect();
        wake(wakers);
    }
}

/// The place of one waiter in its lines. Dropped, it is left.
struct Place<'a, 'h, S: Store> {
    limiter: &'a Limiter<S>,
    hit: &'a Hit<'h>,
    ticket: u64,
    /// By which it is in line, for these asks.
    set: Arc<PolicySet>,
    asks: Asks,
    ids: Ids,
    /// When it wants to be woken, by the timer of its first key.
    alarm: Option<Alarm>,
}

/// Who has to be served before.
struct Ahead {
    set: Arc<PolicySet>,
    /// Where there is anybody, with what they ask for.
    asks: SmallVec<[(Ask, u64); 2]>,
}

impl<'a, 'h, S: Store> Place<'a, 'h, S> {
    fn new(limiter: &'a Limiter<S>, hit: &'a Hit<'h>) -> Self {
        let inner = &limiter.inner;
        let set = inner.set.load_full();
        let (asks, ids) = lines_of(&set, hit, inner);
        inner.waiting.count.fetch_add(1, Relaxed);
        let mut lines = inner.waiting.lines.lock();
        let ticket = lines.next_ticket;
        lines.next_ticket += 1;
        lines.waiters.insert(ticket, Waiter::default());
        lines.enter(ticket, &ids, &asks);
        drop(lines);
        Self { limiter, hit, ticket, set, asks, ids, alarm: None }
    }

    /// Goes where the policies in force say, with the ticket that it has.
    fn move_on(&mut self) {
        self.cancel();
        let inner = &self.limiter.inner;
        self.set = inner.set.load_full();
        let (asks, ids) = lines_of(&self.set, self.hit, inner);
        let mut lines = inner.waiting.lines.lock();
        let wakers = lines.leave(self.ticket, &self.ids);
        lines.enter(self.ticket, &ids, &asks);
        drop(lines);
        wake(wakers);
        (self.asks, self.ids) = (asks, ids);
    }

    /// Waits for its turn; whether that came in time.
    async fn turn(&mut self, deadline: Option<u64>) -> bool {
        poll_fn(|context| {
            if self.is_first(context) {
                return Poll::Ready(deadline.is_none_or(|deadline| self.limiter.now() <= deadline));
            }
            let Some(deadline) = deadline else { return Poll::Pending };
            // The last microsecond is still in time.
            self.sleep(deadline.saturating_add(1), context).map(|()| false)
        })
        .await
    }

    fn is_first(&mut self, context: &Context<'_>) -> bool {
        let inner = &self.limiter.inner;
        loop {
            let waker = context.waker().clone();
            let mut lines = inner.waiting.lines.lock();
            let first = lines.is_first(self.ticket, &self.ids);
            let (waiter, old) = lines.looks(self.ticket, waker);
            // In this order: who replaces the set wakes everybody afterwards.
            let in_force = inner.set.load().version == self.set.version;
            waiter.nudged &= !first;
            drop(lines);
            drop(old);
            if in_force {
                return first;
            }
            self.move_on();
        }
    }

    /// Sleeps until `at`, or until there may be room.
    async fn rest(&mut self, at: u64) {
        poll_fn(|context| {
            let waker = context.waker().clone();
            let mut lines = self.limiter.inner.waiting.lines.lock();
            let (waiter, old) = lines.looks(self.ticket, waker);
            let nudged = waiter.nudged;
            drop(lines);
            drop(old);
            if nudged { Poll::Ready(()) } else { self.sleep(at, context) }
        })
        .await;
    }

    fn sleep(&mut self, at: u64, context: &Context<'_>) -> Poll<()> {
        let inner = &self.limiter.inner;
        if inner.clock.now() >= at {
            return Poll::Ready(());
        }
        let alarm = Alarm { at, ticket: self.ticket };
        let before = self.alarm.replace(alarm);
        inner.waiting.timers.set(self.first_key(), alarm, before, context.waker().clone(), &inner.clock);
        Poll::Pending
    }

    fn cancel(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            self.limiter.inner.waiting.timers.cancel(&self.first_key(), alarm);
        }
    }

    /// One that no policy has, where it has none: a store that is lost may deny what no policy would.
    fn first_key(&self) -> Id {
        self.ids.first().copied().unwrap_or((u64::MAX, Key::NONE))
    }

    fn ahead(&self) -> Ahead {
        let lines = self.limiter.inner.waiting.lines.lock();
        let ahead = |id| lines.lines.get(id).map_or(0, |line| line.ahead(self.ticket));
        let asks = self.ids.iter().zip(&self.asks).map(|(id, ask)| (*ask, ahead(id)));
        let is_rate = |ask: &Ask| self.set.policies[usize::from(ask.policy)].policy.algorithm != Algorithm::Concurrency;
        Ahead { set: Arc::clone(&self.set), asks: asks.filter(|(ask, ahead)| *ahead > 0 && is_rate(ask)).collect() }
    }
}

impl<S: Store> Drop for Place<'_, '_, S> {
    fn drop(&mut self) {
        self.cancel();
        let waiting = &self.limiter.inner.waiting;
        let mut lines = waiting.lines.lock();
        let waiter = lines.waiters.remove(&self.ticket);
        let wakers = lines.leave(self.ticket, &self.ids);
        drop(lines);
        drop(waiter);
        waiting.count.fetch_sub(1, Relaxed);
        wake(wakers);
    }
}
