//! What of the configuration front ends need to answer, made ready. It is replaced as a whole when the configuration is.

use tidegate_tower::{Dialect, Proxies, Reset};

use crate::config::{self, Config, ForwardAuth, Headers, Origin, Problem, Problems, ResetStyle};

pub(crate) struct Settings {
    pub(crate) dialect: Dialect,
    pub(crate) proxies: Proxies,
    pub(crate) denial_status: u16,
    /// Attributes of requests that proxies ask about, and where each comes from.
    pub(crate) attributes: Vec<(String, Origin)>,
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
