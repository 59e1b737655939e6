//! The policies in force, as the configuration writes them, and the one place where they are replaced: by a file that was read again, or
//! by who administers the server. It knows nothing of either.

use std::sync::{Arc, Mutex, MutexGuard};

use tidegate::{Limiter, Store};
use tracing::warn;

use super::recorder::Recorder;
use crate::config::{Config, Fault, PolicyTable, Problem, Problems};

pub(crate) struct Policies<S: Store> {
    limiter: Limiter<S>,
    recorder: Arc<Recorder>,
    /// The last configuration that was read, with the policies in force.
    in_force: Mutex<Config>,
}

/// Why a change of one policy does not come into force.
pub(crate) enum Unchanged<E> {
    /// There is no such policy.
    Unknown,
    /// Whoever was to change it did not.
    Refused(E),
    /// It would be wrong.
    Wrong(Fault),
}

impl<S: Store> Policies<S> {
    /// `config` is what the limiter was made with.
    pub(crate) fn new(limiter: Limiter<S>, recorder: Arc<Recorder>, config: Config) -> Self {
        recorder.metrics.know(&config.policy);
        warn_of_none(&config);
        Self { limiter, recorder, in_force: Mutex::new(config) }
    }

    pub(crate) fn limiter(&self) -> &Limiter<S> {
        &self.limiter
    }

    pub(crate) fn tables(&self) -> Vec<PolicyTable> {
        self.lock().policy.clone()
    }

    /// Goes on by another configuration, under `lock` while its policies come into force.
    pub(crate) fn follow<G>(&self, config: &Config, lock: impl FnOnce() -> G) -> Result<(), Problems> {
        put(self, &mut self.lock(), config.clone(), lock).map_err(|fault| Problem::new(fault.message).into())
    }

    /// Replaces all policies, and returns those that were before.
    pub(crate) fn replace(&self, policy: Vec<PolicyTable>) -> Result<Vec<PolicyTable>, Fault> {
        let mut in_force = self.lock();
        let before = in_force.policy.clone();
        let config = Config { policy, ..in_force.clone() };
        put(self, &mut in_force, config, || ()).map(|()| before)
    }

    /// Replaces one policy by what `change` makes of it; returns what it was, and what it is.
    pub(crate) fn change<E>(
        &self,
        name: &str,
        change: impl FnOnce(&PolicyTable) -> Result<PolicyTable, E>,
    ) -> Result<[PolicyTable; 2], Unchanged<E>> {
        let mut in_force = self.lock();
        let mut config = in_force.clone();
        let table = config.policy.iter_mut().find(|table| table.name == name).ok_or(Unchanged::Unknown)?;
        let changed = change(table).map_err(Unchanged::Refused)?;
        let before = std::mem::replace(table, changed.clone());
        put(self, &mut in_force, config, || ()).map_err(Unchanged::Wrong)?;
        Ok([before, changed])
    }

    fn lock(&self) -> MutexGuard<'_, Config> {
        self.in_force.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A file in which nothing but settings is left is right, and seldom meant.
fn warn_of_none(config: &Config) {
    if config.policy.is_empty() {
        warn!("no policy is in force: everything is allowed");
    }
}

fn put<S: Store, G>(
    policies: &Policies<S>,
    in_force: &mut Config,
    config: Config,
    lock: impl FnOnce() -> G,
) -> Result<(), Fault> {
    if let Some(fault) = config.policy_faults().into_iter().next() {
        return Err(fault);
    }
    let wrong = |message: String| Fault { key: "policy".to_owned(), message };
    let made = config.policies().map_err(|problems| wrong(problems.to_string()))?;
    let metrics = &policies.recorder.metrics;
    metrics.know(&config.policy);
    let configured = policies.limiter.configure_under(made, lock).map_err(|error| wrong(error.to_string()));
    if configured.is_ok() {
        warn_of_none(&config);
        *in_force = config;
    }
    metrics.forget_others(&in_force.policy);
    configured
}
