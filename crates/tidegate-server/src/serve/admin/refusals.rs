//! Requests that were refused, in the log: who tries tokens, or has the wrong one, is seen there. Not each of them, as there may be many.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use tracing::warn;

use super::access::Refusal;
use crate::log::AUDIT;

pub(crate) struct Refusals {
    began: Instant,
    /// By reason.
    told: [Told; Refusal::ALL.len()],
}

#[derive(Default)]
struct Told {
    /// The second of the last line, from 1.
    second: AtomicU64,
    /// How many since then have no line.
    untold: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { began: Instant::now(), told: Default::default() }
    }
}

impl Refusals {
    /// Says so, once a second for each reason. Nothing that was sent is in it.
    pub(crate) fn tell(&self, refusal: Refusal, peer: SocketAddr) {
        let Told { second, untold } = &self.told[refusal as usize];
        let now = self.began.elapsed().as_secs() + 1;
        if second.swap(now, Relaxed) == now {
            untold.fetch_add(1, Relaxed);
            return;
        }
        warn!(target: AUDIT, %peer, reason = refusal.name(), untold = untold.swap(0, Relaxed), "a request was refused");
    }
}
