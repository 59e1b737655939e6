//! A store as a target, asked through the library and with no server in between.

use std::time::Duration;

use tidegate::{Hit, Limiter, Redis, Source, Store};
use tidegate_load::{Connection, Target, Verdict};
use tokio::{
    task::coop::consume_budget,
    time::{sleep, timeout},
};

/// A limiter, asked by an attribute.
pub(crate) struct InProcess<S: Store> {
    limiter: Limiter<S>,
    attribute: String,
}

impl<S: Store> InProcess<S> {
    pub(crate) fn new(limiter: Limiter<S>, attribute: &str) -> Self {
        Self { limiter, attribute: attribute.to_owned() }
    }
}

impl<S: Store> Target for InProcess<S> {
    type Connection = Self;

    async fn connect(&self) -> Result<Self, String> {
        Ok(Self::new(self.limiter.clone(), &self.attribute))
    }
}

impl<S: Store> Connection for InProcess<S> {
    async fn ask(&mut self, key: &str) -> Result<Verdict, String> {
        // Memory never makes anybody wait; the others want their turn.
        consume_budget().await;
        let hit = Hit::new().attribute(&self.attribute, key);
        let decision = S::told(self.limiter.check(&hit)).await.map_err(|error| error.to_string())?;
        if decision.outcomes().any(|outcome| outcome.source() == Source::Fallback) {
            return Err("the store has not answered; the policy has decided without it".to_owned());
        }
        Ok(if decision.is_allowed() { Verdict::Allowed } else { Verdict::Denied })
    }
}

/// Waits for the store to answer, for a while; else why it does not.
pub(crate) async fn up(redis: &Redis) -> Result<(), String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    const GLANCE: Duration = Duration::from_millis(5);
    let up = async {
        while !redis.status().is_up {
            sleep(GLANCE).await;
        }
    };
    timeout(PATIENCE, up).await.map_err(|_| redis.status().trouble.unwrap_or_else(|| "it is silent".to_owned()))
}
