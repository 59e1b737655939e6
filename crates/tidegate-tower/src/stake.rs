//! What a request that was admitted has at stake: leases that are held while it runs, and a charge that its response may yet correct.
//! Whoever drops it, the leases are released and the charge is seen to.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tidegate::{Algorithm, Decision, Held, Limiter, Memory, Receipt, Store};

/// What a request holds from its admission to its end: keep it until the response's body has ended.
pub struct Stake<S: Store = Memory> {
    claim: Option<Box<Claim<S>>>,
    /// Where there are leases.
    keeper: Option<Box<Keeper<S>>>,
}

impl<S: Store> Stake<S> {
    pub(crate) fn new(limiter: &Limiter<S>, held: Option<Box<Held<S>>>, claim: Option<Box<Claim<S>>>) -> Self {
        let keeper = |held: Box<Held<S>>| Box::new(Keeper { held: *held, limiter: limiter.clone(), state: Keeping::Idle });
        Self { claim, keeper: held.map(keeper) }
    }

    /// Whether there is nothing to see to: no lease, and no charge that may yet be corrected.
    pub(crate) fn is_empty(&self) -> bool {
        self.claim.is_none() && self.keeper.is_none()
    }

    /// The handle by which the actual cost is told, where there is something to settle.
    pub fn settle(&self) -> Option<&Settle> {
        self.claim.as_ref()?.settle.as_ref()
    }

    /// Whether anything is left to be seen to when the body ends.
    pub fn lasts(&self) -> bool {
        self.keeper.is_some() || self.settle().is_some()
    }

    /// What a response means for what was charged: to give it back (`charged` is false), or to settle it. Nothing where it stays.
    pub(crate) fn answered(&mut self, charged: bool, actual: Option<u64>) -> Option<Correction<S>> {
        let claim = self.claim.as_mut()?;
        claim.is_provisional = false;
        let actual = if charged { Some(actual?) } else { None };
        let receipt = claim.receipt.take()?;
        self.claim.take().map(|claim| Correction::new(claim.limiter.clone(), receipt, actual))
    }

    /// Makes leases last: polled along with what they are held for, it renews them each time that a third of the shortest has passed.
    ///
    /// # Panics
    /// As [`Limiter::sleep`], where there are leases.
    pub fn poll_keep(&mut self, context: &mut Context<'_>) {
        let Some(Keeper { held, limiter, state }) = self.keeper.as_deref_mut() else { return };
        loop {
            match state {
                Keeping::Idle => *state = Keeping::Asleep(limiter.sleep(shortest_lease(held.decision()) / 3)),
                Keeping::Asleep(sleep) => match sleep.as_mut().poll(context) {
                    Poll::Ready(()) => *state = Keeping::Renewing(S::told(held.renew())),
                    Poll::Pending => return,
                },
                // One that has ended is not to be had again: the request goes on without.
                Keeping::Renewing(renewed) => match Pin::new(renewed).poll(context) {
                    Poll::Ready(_) => *state = Keeping::Idle,
                    Poll::Pending => return,
                },
            }
        }
    }
}

fn shortest_lease(decision: &Decision) -> Duration {
    let leases = decision.outcomes().filter(|outcome| outcome.algorithm() == Algorithm::Concurrency);
    leases.map(|outcome| outcome.quota().window()).min().unwrap_or(Duration::MAX)
}

impl<S: Store> fmt::Debug for Stake<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stake").field("lasts", &self.lasts()).finish_non_exhaustive()
    }
}

/// Renews leases.
struct Keeper<S: Store> {
    held: Held<S>,
    limiter: Limiter<S>,
    state: Keeping<S>,
}

enum Keeping<S: Store> {
    Idle,
    Asleep(Pin<Box<dyn Future<Output = ()> + Send>>),
    Renewing(S::Told<bool>),
}

/// A charge that may yet be corrected.
pub(crate) struct Claim<S: Store> {
    pub(crate) limiter: Limiter<S>,
    pub(crate) receipt: Option<Receipt>,
    pub(crate) settle: Option<Settle>,
    /// Given back unless there is a response to judge.
    pub(crate) is_provisional: bool,
}

impl<S: Store> Drop for Claim<S> {
    fn drop(&mut self) {
        let actual = self.settle.as_ref().and_then(Settle::told);
        if let Some(receipt) = self.receipt.take_if(|_| self.is_provisional || actual.is_some()) {
            drop(Correction::new(self.limiter.clone(), receipt, actual));
        }
    }
}

/// A refund or a settlement under way. Dropped, it goes on by itself, and tries again for a while if the store does not answer: a receipt
/// is used once, however often it is sent.
pub struct Correction<S: Store> {
    limiter: Limiter<S>,
    receipt: Receipt,
    actual: Option<u64>,
    told: Option<S::Told<Decision>>,
}

impl<S: Store> Correction<S> {
    pub(crate) fn new(limiter: Limiter<S>, receipt: Receipt, actual: Option<u64>) -> Self {
        let told = Some(correct(&limiter, &receipt, actual));
        Self { limiter, receipt, actual, told }
    }
}

fn correct<S: Store>(limiter: &Limiter<S>, receipt: &Receipt, actual: Option<u64>) -> S::Told<Decision> {
    S::told(match actual {
        Some(actual) => limiter.settle(receipt.clone(), actual),
        None => limiter.refund(receipt.clone()),
    })
}

impl<S: Store> Future for Correction<S> {
    /// How the keys stand then; nothing where the store has not answered.
    type Output = Option<Decision>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Decision>> {
        let Some(told) = &mut self.told else { return Poll::Ready(None) };
        let corrected = ready!(Pin::new(told).poll(context)).ok();
        self.told = match corrected {
            Some(_) => None,
            None => Some(correct(&self.limiter, &self.receipt, self.actual)),
        };
        Poll::Ready(corrected)
    }
}

impl<S: Store> Unpin for Correction<S> {}

impl<S: Store> Drop for Correction<S> {
    fn drop(&mut self) {
        let Some(mut told) = self.told.take() else { return };
        let (limiter, receipt, actual) = (self.limiter.clone(), self.receipt.clone(), self.actual);
        self.limiter.detach(async move {
            for pause in [100, 400, 1_600, 6_400].map(Duration::from_millis) {
                if told.await.is_ok() {
                    return;
                }
                limiter.sleep(pause).await;
                told = correct(&limiter, &receipt, actual);
            }
            let _ = told.await;
        });
    }
}

impl<S: Store> fmt::Debug for Correction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Correction").field("receipt", &self.receipt).field("actual", &self.actual).finish_non_exhaustive()
    }
}

/// By which a handler tells what a request has cost in the end; in the request's extensions where
/// [`settle_by_handler`](crate::RateLimit::settle_by_handler) is set. What was told last counts, when the response's body ends or is
/// dropped. Where nothing was told the estimate stays.
#[derive(Clone, Debug, Default)]
pub struct Settle(Arc<Mutex<Option<u64>>>);

impl Settle {
    /// It has cost so much, so far.
    pub fn at(&self, cost: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(cost);
    }

    fn told(&self) -> Option<u64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
