//! What front ends have of a limiter: they ask here, so that no decision is made without being recorded.

use std::sync::Arc;

use tidegate::{Decision, Hit, Limiter, Receipt, Source, Store, StoreError};

use super::{
    recorder::{Asked, FrontEnd, Recorder},
    traces::Traces,
};

pub(crate) struct Gate<S: Store> {
    limiter: Limiter<S>,
    recorder: Arc<Recorder>,
}

impl<S: Store> Gate<S> {
    pub(crate) fn new(limiter: Limiter<S>, recorder: Arc<Recorder>) -> Self {
        Self { limiter, recorder }
    }

    pub(crate) fn traces(&self) -> &Traces {
        &self.recorder.traces
    }

    /// The hit is asked at once, or on Redis when the future is polled.
    pub(crate) fn check(&self, by: FrontEnd, hit: &Hit<'_>) -> impl Future<Output = Told> + Send {
        self.checked(by, hit, self.ask(hit))
    }

    /// Asks whether to allow a hit; the answer is for [`checked`](Self::checked).
    pub(crate) fn ask(&self, hit: &Hit<'_>) -> S::Reply<Decision> {
        self.limiter.check(hit)
    }

    pub(crate) async fn checked(&self, by: FrontEnd, hit: &Hit<'_>, reply: S::Reply<Decision>) -> Told {
        self.record(by, Asked::Check, hit, reply).await
    }

    pub(crate) async fn peek(&self, by: FrontEnd, hit: &Hit<'_>) -> Told {
        self.record(by, Asked::Peek, hit, self.limiter.peek(hit)).await
    }

    pub(crate) async fn charge(&self, by: FrontEnd, hit: &Hit<'_>) -> Told {
        self.record(by, Asked::Charge, hit, self.limiter.charge(hit)).await
    }

    pub(crate) async fn refund(&self, by: FrontEnd, receipt: Receipt) -> Told {
        self.record(by, Asked::Refund, &Hit::new(), self.limiter.refund(receipt)).await
    }

    pub(crate) async fn settle(&self, by: FrontEnd, receipt: Receipt, actual: u64) -> Told {
        self.record(by, Asked::Settle, &Hit::new(), self.limiter.settle(receipt, actual)).await
    }

    /// As [`check`](Self::check), for a hit that names its lease.
    pub(crate) async fn acquire(&self, by: FrontEnd, hit: &Hit<'_>) -> Told {
        self.record(by, Asked::Acquire, hit, self.limiter.check(hit)).await
    }

    /// The same, where the name was made up here: nobody knows it before there is an answer. A lease that nobody `is_there` to be told of
    /// is released.
    pub(crate) async fn acquire_unknown(&self, by: FrontEnd, hit: &Hit<'_>, is_there: impl Fn() -> bool) -> Told {
        let abandoned = Abandoned { limiter: &self.limiter, hit };
        let told = self.acquire(by, hit).await;
        // Allowed, it is the client's now; denied by the store, there is none. Else the store may have given it, and its answer have been
        // lost.
        let is_settled = |decision: &Decision| match decision.is_allowed() {
            true => is_there(),
            false => decision.outcomes().all(|outcome| outcome.source() != Source::Fallback),
        };
        if told.as_ref().is_ok_and(is_settled) {
            std::mem::forget(abandoned);
        }
        told
    }

    /// Whether there is a policy of concurrency that applies to a hit.
    pub(crate) fn gives_lease_to(&self, hit: &Hit<'_>) -> bool {
        self.limiter.gives_lease_to(hit)
    }

    pub(crate) async fn renew(&self, hit: &Hit<'_>) -> Result<bool, StoreError> {
        S::told(self.limiter.renew(hit)).await
    }

    pub(crate) async fn release(&self, hit: &Hit<'_>) -> Result<bool, StoreError> {
        S::told(self.limiter.release(hit)).await
    }

    async fn record(&self, by: FrontEnd, asked: Asked, hit: &Hit<'_>, reply: S::Reply<Decision>) -> Told {
        let began = self.recorder.begin();
        let told = S::told(reply).await;
        self.recorder.decided(by, asked, hit, began, &told);
        told
    }
}

/// A lease of which no client knows: one that was asked for by a client that has gone, or failed. Dropped, it is released.
struct Abandoned<'g, 'h, S: Store> {
    limiter: &'g Limiter<S>,
    hit: &'g Hit<'h>,
}

impl<S: Store> Drop for Abandoned<'_, '_, S> {
    fn drop(&mut self) {
        self.limiter.let_go(self.hit);
    }
}

impl<S: Store> Clone for Gate<S> {
    /// Another, on the newest policies: a limiter's handle is fastest while those are.
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), recorder: Arc::clone(&self.recorder) }
    }
}

pub(crate) type Told = Result<Decision, StoreError>;
