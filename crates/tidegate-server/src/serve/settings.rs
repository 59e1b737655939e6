//! What of the configuration front ends need to answer, made ready. It is replaced as a whole when the configuration is.

use std::sync::{Arc, PoisonError, RwLock};

use arc_swap::{ArcSwap, Guard};
use tidegate_tower::{Dialect, Proxies, Reset};

use crate::config::{self, Config, ForwardAuth, Headers, Origin, Problem, Problems, ResetStyle};

pub(crate) struct Settings {
    pub(crate) dialect: Dialect,
    pub(crate) proxies: Proxies,
    pub(crate) denial_status: u16,
    /// Attributes of requests that proxies ask about, and where each comes from.
    pub(crate) attributes: Vec<(String, Origin)>,
}

/// The settings in force.
pub(crate) struct InForce {
    settings: ArcSwap<Settings>,
    /// Read by who makes a hit by the settings, until it is asked; written while they are replaced and the policies with them. So no hit is
    /// made by one version of the configuration and decided by another.
    replacing: RwLock<()>,
}

impl InForce {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings: ArcSwap::from_pointee(settings), replacing: RwLock::new(()) }
    }

    /// The settings, for who makes no hit by them.
    pub(crate) fn load(&self) -> Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// Has `ask` make a hit by the settings and ask it.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&Arc<Settings>) -> T) -> T {
        let _stays = self.replacing.read().unwrap_or_else(PoisonError::into_inner);
        ask(&self.settings.load())
    }

    /// Puts others into force. Who holds what is returned has the policies that belong to them come into force, before any hit is made.
    pub(crate) fn replace(&self, settings: Settings) -> impl Sized + use<'_> {
        let replacing = self.replacing.write().unwrap_or_else(PoisonError::into_inner);
        self.settings.store(Arc::new(settings));
        replacing
    }
}

impl Settings {
    pub(crate) fn new(config: &Config) -> Result<Self, Problems> {
        let ForwardAuth { trusted_proxies, denial_status, attributes } = &config.forward_auth;
        let networks = trusted_proxies.iter().map(ToString::to_string);
        let proxies = Proxies::networks(networks).map_err(|error| Problem::new(format!("forward_auth: {error}")))?;
        let attributes = attributes.iter().map(|(name, origin)| (name.clone(), Origin::clone(origin)));
        Ok(Self { dialect: dialect(config.headers), proxies, denial_status: *denial_status, attributes: attributes.collect() })
    }
}

fn dialect(Headers { dialect, x_ratelimit_reset }: Headers) -> Dialect {
    match dialect {
        config::Dialect::Draft => Dialect::Draft,
        config::Dialect::Draft06 => Dialect::Draft06,
        config::Dialect::XRateLimit => Dialect::XRateLimit(match x_ratelimit_reset {
            ResetStyle::Seconds => Reset::Delta,
            ResetStyle::Epoch => Reset::Epoch,
        }),
        config::Dialect::None => Dialect::None,
    }
}
