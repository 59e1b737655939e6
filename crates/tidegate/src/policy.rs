//! Policies as they are written: a name, what it is keyed by, a quota and how it is enforced. Making them ready to
//! decide is `set.rs`.

use std::{
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};

use crate::{Algorithm, Hit, Quota, calendar::Calendar, hit::KEY};

/// A rule: for each value of its key attributes, so much per window.
///
/// ```
/// use tidegate::{Algorithm, Condition, Override, Policy, Quota};
///
/// let per_user = Policy::new("per-user", Quota::per_minute(100))
///     .key(["user"])
///     .override_key(["root"], Override::Unlimited)
///     .override_key(["trial"], Override::Quota(Quota::per_minute(5)));
///
/// let logins = Policy::new("logins", Quota::per_hour(20).burst(5))
///     .key(["ip"])
///     .when("route", Condition::prefix("/login"))
///     .algorithm(Algorithm::Gcra);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(crate) name: String,
    pub(crate) key: Vec<String>,
    pub(crate) conditions: Vec<(String, Condition)>,
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    pub(crate) calendar: Option<Calendar>,
    pub(crate) resolution: Option<u32>,
    pub(crate) mode: Mode,
    pub(crate) counts: Counts,
    pub(crate) overrides: Vec<(Vec<Vec<u8>>, Override)>,
    pub(crate) on_store_error: OnStoreError,
}

impl Policy {
    /// The most grains that a window of `sliding-window` can have.
    pub const MAX_RESOLUTION: u32 = 10_000;
    /// Grains per window of `sliding-window`, unless set.
    pub const DEFAULT_RESOLUTION: u32 = 100;

    /// An enforced policy on the attribute `key`, with the default algorithm, counting cost. It is checked when a
    /// limiter takes it, not here.
    pub fn new(name: impl Into<String>, quota: Quota) -> Self {
        Self {
            name: name.into(),
            key: vec![KEY.to_owned()],
            conditions: Vec::new(),
            quota,
            algorithm: Algorithm::default(),
            calendar: None,
            resolution: None,
            mode: Mode::Enforce,
            counts: Counts::Cost,
            overrides: Vec::new(),
            on_store_error: OnStoreError::default(),
        }
    }

    /// A policy of the algorithm `concurrency`: at most `limit` leases at once for each key, each of which ends after `time_to_live` unless
    /// it is renewed. Whatever a hit costs, it takes one.
    ///
    /// # Panics
    /// When the limit is 0 or above [`Quota::MAX`], or the time not within the bounds of a window.
    pub fn concurrency(name: impl Into<String>, limit: u64, time_to_live: Duration) -> Self {
        let quota = Quota::new(limit, time_to_live).unwrap_or_else(|error| panic!("{error}"));
        Self::new(name, quota).algorithm(Algorithm::Concurrency)
    }

    /// A policy of the algorithm `fixed-window` whose windows are those of a calendar: at most `limit` for each key per day, week or
    /// month. Of quotas that overrides or [`Limiter::set_quota`](crate::Limiter::set_quota) give it, only the limit counts.
    ///
    /// ```
    /// use tidegate::{Calendar, Override, Policy, Quota};
    ///
    /// let daily = Policy::calendar("daily", 1_000, Calendar::day("America/New_York")?)
    ///     .key(["user"])
    ///     .override_key(["root"], Override::Quota(Quota::per_day(50_000)));
    /// # Ok::<(), tidegate::ConfigError>(())
    /// ```
    ///
    /// # Panics
    /// When the limit is 0 or above [`Quota::MAX`].
    #[cfg(feature = "calendar")]
    pub fn calendar(name: impl Into<String>, limit: u64, calendar: Calendar) -> Self {
        let quota = Quota::per_day(limit).per(calendar.nominal_us());
        Self { calendar: Some(calendar), ..Self::new(name, quota).algorithm(Algorithm::FixedWindow) }
    }

    /// The attributes whose values, together, make the key. The policy applies to hits that have all of them; with
    /// none, all hits share one key.
    #[must_use]
    pub fn key<S: Into<String>>(self, attributes: impl IntoIterator<Item = S>) -> Self {
        Self { key: attributes.into_iter().map(Into::into).collect(), ..self }
    }

    /// Applies only where `attribute` is there and meets `condition`. Several conditions must all hold.
    #[must_use]
    pub fn when(mut self, attribute: impl Into<String>, condition: Condition) -> Self {
        self.conditions.push((attribute.into(), condition));
        self
    }

    /// Sets the algorithm.
    #[must_use]
    pub fn algorithm(self, algorithm: Algorithm) -> Self {
        Self { algorithm, ..self }
    }

    /// Sets the grains per window of `sliding-window`: more are more exact and take more memory.
    #[must_use]
    pub fn resolution(self, grains: u32) -> Self {
        Self { resolution: Some(grains), ..self }
    }

    /// Decides nothing, reports what it would have decided.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    /// Counts every hit as 1 whatever it costs.
    #[must_use]
    pub fn counts_requests(self) -> Self {
        Self { counts: Counts::Requests, ..self }
    }

    /// Treats one key otherwise: `values` are those of the key attributes, in their order. Of two for one key the
    /// last one counts.
    #[must_use]
    pub fn override_key<V: AsRef<[u8]>>(mut self, values: impl IntoIterator<Item = V>, treatment: Override) -> Self {
        let values = values.into_iter().map(|value| value.as_ref().to_vec()).collect();
        self.overrides.push((values, treatment));
        self
    }

    /// Sets what happens when the store does not answer. Memory always does.
    #[must_use]
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        Self { on_store_error, ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key attributes.
    pub fn key_attributes(&self) -> &[String] {
        &self.key
    }

    /// The quota of keys that have no override.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// The algorithm in force.
    pub fn algorithm_in_use(&self) -> Algorithm {
        self.algorithm
    }

    /// Whether it decides or only reports.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What a hit that costs `cost` counts for here.
    #[inline]
    pub(crate) fn weigh(&self, cost: u64) -> u64 {
        match self.counts {
            Counts::Cost => cost,
            Counts::Requests => cost.min(1),
        }
    }

    /// How late capacity can come back: the grain of a `sliding-window`, nothing for the others.
    pub fn lateness(&self) -> Duration {
        match self.algorithm {
            Algorithm::SlidingWindow => Duration::from_micros(self.quota.window_us().div_ceil(u64::from(self.grains()))),
            _ => Duration::ZERO,
        }
    }

    /// The same with the share of its quotas that one of so many instances has.
    pub(crate) fn share(&self, instances: u64) -> Self {
        let overrides = self.overrides.iter().map(|(values, treatment)| {
            let treatment = match treatment {
                Override::Quota(quota) => Override::Quota(quota.share(instances)),
                other => *other,
            };
            (values.clone(), treatment)
        });
        Self { quota: self.quota.share(instances), overrides: overrides.collect(), ..self.clone() }
    }

    /// The same with every quota per window of its calendar, if it has one.
    pub(crate) fn kept_to_calendar(mut self) -> Self {
        if let Some(window_us) = self.calendar.map(Calendar::nominal_us) {
            self.quota = self.quota.per(window_us);
            for (_, treatment) in &mut self.overrides {
                if let Override::Quota(quota) = treatment {
                    *quota = quota.per(window_us);
                }
            }
        }
        self
    }

    pub(crate) fn grains(&self) -> u32 {
        self.resolution.unwrap_or(Self::DEFAULT_RESOLUTION)
    }
}

/// Whether a policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It does.
    Enforce,
    /// It reports what it would have decided, and is charged for hits that were admitted and that it would admit.
    Shadow,
}

/// What a policy does when the store does not answer in time, or answers that it cannot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreError {
    /// It decides in this process's memory, by this instance's share of the quota.
    #[default]
    Local,
    /// It allows the hit.
    Allow,
    /// It denies the hit.
    Deny,
    /// The caller gets the error. A shadow policy never does that: it allows.
    Error,
}

/// What a policy counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counts {
    Cost,
    Requests,
}

/// What one key of a policy gets instead of the policy's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Override {
    /// Another quota.
    Quota(Quota),
    /// No limit: as if the policy did not apply.
    Unlimited,
    /// Nothing: denied whatever it costs, and no wait cures that.
    Blocked,
}

/// What an attribute must be for a policy to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// This value.
    Equals(Vec<u8>),
    /// One of these values.
    OneOf(Vec<Vec<u8>>),
    /// A value that begins so.
    Prefix(Vec<u8>),
    /// An address of this network; what is no address is not in it.
    Network(Network),
}

impl Condition {
    /// The attribute is `value`.
    pub fn equals(value: impl AsRef<[u8]>) -> Self {
        Self::Equals(value.as_ref().to_vec())
    }

    /// The attribute is one of `values`.
    pub fn one_of<V: AsRef<[u8]>>(values: impl IntoIterator<Item = V>) -> Self {
        Self::OneOf(values.into_iter().map(|value| value.as_ref().to_vec()).collect())
    }

    /// The attribute begins with `value`.
    pub fn prefix(value: impl AsRef<[u8]>) -> Self {
        Self::Prefix(value.as_ref().to_vec())
    }

    /// The attribute is an address in `network`, such as `10.0.0.0/8` or `2001:db8::/32`.
    ///
    /// # Errors
    /// When that is no network.
    pub fn network(network: &str) -> Result<Self, NetworkError> {
        network.parse().map(Self::Network)
    }

    pub(crate) fn holds(&self, value: &[u8]) -> bool {
        match self {
            Self::Equals(wanted) => value == wanted,
            Self::OneOf(wanted) => wanted.iter().any(|wanted| value == wanted),
            Self::Prefix(wanted) => value.starts_with(wanted),
            Self::Network(network) => {
                str::from_utf8(value).ok().and_then(|text| text.parse().ok()).is_some_and(|address| network.contains(address))
            }
        }
    }
}

/// A range of addresses: `10.0.0.0/8`, `2001:db8::/32`, or one address. An IPv4 address in IPv6 clothes
/// (`::ffff:10.0.0.1`) is the IPv4 address.
///
/// ```
/// use tidegate::Network;
///
/// let office: Network = "192.0.2.0/24".parse()?;
/// assert!(office.contains("192.0.2.77".parse().unwrap()));
/// assert!(office.contains("::ffff:192.0.2.77".parse().unwrap()));
/// assert!(!office.contains("192.0.3.1".parse().unwrap()));
/// # Ok::<(), tidegate::NetworkError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Whether `address` is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same_prefix(own.to_bits().into(), other.to_bits().into(), 32, self.prefix),
            (IpAddr::V6(own), IpAddr::V6(other)) => same_prefix(own.to_bits(), other.to_bits(), 128, self.prefix),
            _ => false,
        }
    }
}

fn same_prefix(a: u128, b: u128, width: u32, prefix: u8) -> bool {
    (a ^ b).checked_shr(width - u32::from(prefix)).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| NetworkError)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NetworkError)?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(width);
        if prefix > width {
            return Err(NetworkError);
        }
        Ok(match address {
            // The last 32 bits are an IPv4 network.
            IpAddr::V6(mapped) if is_mapped(mapped) && prefix >= 96 => {
                Self { address: address.to_canonical(), prefix: prefix - 96 }
            }
            _ => Self { address, prefix },
        })
    }
}

fn is_mapped(address: Ipv6Addr) -> bool {
    address.to_ipv4_mapped().is_some()
}

/// A text that is no network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkError;

impl std::fmt::Display for NetworkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a network; write an address and a prefix length, such as 10.0.0.0/8 or 2001:db8::/32")
    }
}

impl std::error::Error for NetworkError {}

impl Policy {
    /// Whether every condition holds for `hit`.
    pub(crate) fn matches(&self, hit: &Hit<'_>) -> bool {
        let holds = |(attribute, condition): &(String, Condition)| hit.get(attribute).is_some_and(|value| condition.holds(value));
        self.conditions.iter().all(holds)
    }
}
