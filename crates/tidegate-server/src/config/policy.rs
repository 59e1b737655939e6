//! Policies as they are written in a file, and made into the library's. What is wrong with one the library says; this file finds
//! out which key that is about.

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    time::Duration,
};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};
use tidegate::{Algorithm, Calendar, Condition, Limiter, ManualClock, Network, Override, Policy, Quota, QuotaError};

use super::{Fault, OnError, text::Text};
use crate::object;

/// A rule: for each value of its key attributes, so much per window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct PolicyTable {
    /// Its name in answers, headers, metrics and logs: 1 to 47 of `a-z A-Z 0-9 - _ .`
    pub name: String,
    /// The attributes that make its key together; requests that have all of them are counted. With none, all share one key.
    #[serde(default = "whole_key")]
    pub key: Vec<String>,
    /// What other attributes must be for it to apply: a text, a list of texts, or a table of `equals`, `one_of`, `prefix` and
    /// `network`, all of which must hold.
    #[serde(default, rename = "match")]
    pub conditions: BTreeMap<String, Match>,
    /// So much per time. One of `quota`, `calendar` and `concurrency` is needed.
    pub quota: Option<Text<Quota>>,
    /// So much per day, week or month of a time zone.
    #[serde(default, deserialize_with = "object::some")]
    pub calendar: Option<CalendarTable>,
    /// So many at once. It applies where a lease is named: by `/v1/acquire`, which makes up a name unless it is given one, or by an
    /// attribute `lease`. Any other hit could not free the place that it takes, and takes none.
    #[serde(default, deserialize_with = "object::some")]
    pub concurrency: Option<ConcurrencyTable>,
    /// How the quota is enforced: "sliding-window" unless set. A burst needs "token-bucket" or "gcra".
    pub algorithm: Option<Text<Algorithm>>,
    /// Grains per window of "sliding-window", 100 unless set: more are more exact and take more memory.
    #[schemars(range(min = 1, max = 10_000))]
    pub resolution: Option<u32>,
    /// Whether it decides.
    #[serde(default)]
    pub mode: Mode,
    /// What it counts.
    #[serde(default)]
    pub counts: Counts,
    /// What it does when the store does not answer; what `store.on_error` says unless set.
    pub on_store_error: Option<OnError>,
    /// Keys that get another quota.
    #[serde(default, rename = "override", deserialize_with = "object::several")]
    pub overrides: Vec<OverrideTable>,
    /// Keys without a limit: a text each, or a list where the key has several attributes.
    #[serde(default)]
    pub unlimited: Vec<KeyValues>,
    /// Keys that are always denied.
    #[serde(default)]
    pub blocked: Vec<KeyValues>,
}

fn whole_key() -> Vec<String> {
    vec!["key".to_owned()]
}

/// So much per day, week or month of a time zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct CalendarTable {
    /// How much.
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_u64))]
    pub limit: u64,
    /// Per what.
    pub per: Per,
    /// The time zone, by its IANA name.
    #[serde(default = "utc")]
    pub zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Per {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

/// So many at once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct ConcurrencyTable {
    /// How many.
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_u64))]
    pub limit: u64,
    /// When one that is neither renewed nor released ends by itself.
    pub ttl: Text<Duration>,
}

/// Whether a policy decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It only reports what it would have decided.
    Shadow,
}

/// What a policy counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Counts {
    /// What requests cost.
    #[default]
    Cost,
    /// Requests, whatever they cost.
    Requests,
}

/// A key that gets another quota.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(inline)]
pub struct OverrideTable {
    /// The key: a text, or a list where it has several attributes.
    pub key: KeyValues,
    /// Its quota, where the policy has one.
    pub quota: Option<Text<Quota>>,
    /// Its limit, where the policy has a `calendar` or `concurrency`.
    #[schemars(range(min = 1, max = 9_007_199_254_740_991_u64))]
    pub limit: Option<u64>,
}

/// The values of a policy's key attributes, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct KeyValues(pub Vec<String>);

impl<'de> Deserialize<'de> for KeyValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> de::Visitor<'de> for Values {
            type Value = KeyValues;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key in quotes, or a list of its values such as [\"eu\", \"mallory\"]")
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<KeyValues, E> {
                Ok(KeyValues(vec![value.to_owned()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<KeyValues, A::Error> {
                Deserialize::deserialize(de::value::SeqAccessDeserializer::new(list)).map(KeyValues)
            }
        }

        deserializer.deserialize_any(Values)
    }
}

impl JsonSchema for KeyValues {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Key".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
    }
}

/// What an attribute must be.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Match(pub Requirement);

/// What an attribute must be; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
pub struct Requirement {
    /// This text.
    pub equals: Option<String>,
    /// One of these texts.
    pub one_of: Option<Vec<String>>,
    /// A text that begins so.
    pub prefix: Option<String>,
    /// An address of this network.
    pub network: Option<Text<Network>>,
}

impl<'de> Deserialize<'de> for Match {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Conditions;

        impl<'de> de::Visitor<'de> for Conditions {
            type Value = Match;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text in quotes, a list of them, or a table such as { prefix = \"/api/\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Match, E> {
                Ok(Match(Requirement { equals: Some(text.to_owned()), ..Requirement::default() }))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, list: A) -> Result<Match, A::Error> {
                let one_of = Deserialize::deserialize(de::value::SeqAccessDeserializer::new(list))?;
                Match::meaning_something(Requirement { one_of: Some(one_of), ..Requirement::default() })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, table: A) -> Result<Match, A::Error> {
                Match::meaning_something(Requirement::deserialize(de::value::MapAccessDeserializer::new(table))?)
            }
        }

        deserializer.deserialize_any(Conditions)
    }
}

impl JsonSchema for Match {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Match".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let table = Requirement::json_schema(generator);
        json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }, table] })
    }
}

impl Match {
    /// A policy that always applies, or never, is not what somebody meant who wrote a condition.
    fn meaning_something<E: de::Error>(requirement: Requirement) -> Result<Self, E> {
        let is_void = requirement == Requirement::default() || requirement.one_of.as_ref().is_some_and(Vec::is_empty);
        let wrong = || E::custom("an empty condition; write what the attribute must be, or leave it out");
        if is_void { Err(wrong()) } else { Ok(Self(requirement)) }
    }

    fn conditions(&self) -> impl Iterator<Item = Condition> {
        let Requirement { equals, one_of, prefix, network } = &self.0;
        let equals = equals.as_ref().map(Condition::equals);
        let one_of = one_of.as_ref().map(Condition::one_of);
        let prefix = prefix.as_ref().map(Condition::prefix);
        let network = network.as_ref().map(|network| Condition::Network(**network));
        [equals, one_of, prefix, network].into_iter().flatten()
    }
}

impl PolicyTable {
    /// How much it allows, in words.
    pub(crate) fn amount(&self) -> String {
        match (&self.quota, &self.calendar, &self.concurrency) {
            (Some(quota), ..) => quota.to_string(),
            (_, Some(calendar), _) => format!("{} a {}", calendar.limit, format!("{:?}", calendar.per).to_lowercase()),
            (.., Some(concurrency)) => format!("{} leases at once", concurrency.limit),
            _ => String::new(),
        }
    }

    /// The library's policy.
    pub(super) fn policy(&self, on_error: OnError) -> Result<Policy, Fault> {
        // One key after another, so that what the library refuses is about the last one.
        let policy = self.limited()?.key(&self.key);
        accepted(&policy, "key")?;
        let conditions = self.conditions.iter().flat_map(|(attribute, all)| all.conditions().map(move |one| (attribute, one)));
        let policy = conditions.fold(policy, |policy, (attribute, condition)| policy.when(attribute, condition));
        accepted(&policy, "match")?;
        let policy = self.resolution.map_or(policy.clone(), |grains| policy.resolution(grains));
        accepted(&policy, "resolution")?;
        let policy = self.with_overrides(policy)?;
        let policy = policy.on_store_error(self.on_store_error.unwrap_or(on_error).into());
        let policy = if self.mode == Mode::Shadow { policy.shadow() } else { policy };
        Ok(if self.counts == Counts::Requests { policy.counts_requests() } else { policy })
    }

    /// Name, algorithm, and what it limits to.
    fn limited(&self) -> Result<Policy, Fault> {
        let any = Quota::per_second(1);
        accepted(&Policy::new(&self.name, any), "name")?;
        let algorithm = self.algorithm.as_ref().map(|algorithm| **algorithm);
        let policy = match (&self.quota, &self.calendar, &self.concurrency) {
            (Some(_), None, None) if algorithm == Some(Algorithm::Concurrency) => {
                let instead =
                    "how many at once is not a quota; write concurrency = { limit = 3, ttl = \"5m\" } in the place of it";
                return Err(Fault::new("quota", instead));
            }
            (Some(quota), None, None) => {
                let policy = Policy::new(&self.name, **quota).algorithm(algorithm.unwrap_or_default());
                accepted(&policy, "quota")?;
                policy
            }
            (None, Some(calendar), None) => calendar.policy(&self.name)?,
            (None, None, Some(ConcurrencyTable { limit, ttl })) => {
                if algorithm.is_some_and(|algorithm| algorithm != Algorithm::Concurrency) {
                    return Err(Fault::new("algorithm", "`concurrency` has an algorithm of its own; leave this out"));
                }
                let quota = Quota::new(*limit, **ttl).map_err(|error| match error {
                    QuotaError::Amount { .. } => Fault::new("concurrency.limit", error),
                    _ => Fault::new("concurrency.ttl", error),
                })?;
                Policy::new(&self.name, quota).algorithm(Algorithm::Concurrency)
            }
            (None, None, None) => return Err(Fault::new("name", "it has no limit; write for example quota = \"100/min\"")),
            _ => return Err(Fault::new("name", "it has several limits; keep one of `quota`, `calendar` and `concurrency`")),
        };
        let policy = algorithm.map_or(policy.clone(), |algorithm| policy.algorithm(algorithm));
        accepted(&policy, "algorithm")?;
        Ok(policy)
    }

    fn with_overrides(&self, policy: Policy) -> Result<Policy, Fault> {
        let mut treatments = Vec::new();
        for (index, one) in self.overrides.iter().enumerate() {
            let quota = self.other_quota(one).map_err(|message| Fault::new(format!("override.{index}"), message))?;
            treatments.push((format!("override.{index}"), &one.key, Override::Quota(quota)));
        }
        let unlimited = self.unlimited.iter().enumerate();
        treatments.extend(unlimited.map(|(index, key)| (format!("unlimited.{index}"), key, Override::Unlimited)));
        let blocked = self.blocked.iter().enumerate();
        treatments.extend(blocked.map(|(index, key)| (format!("blocked.{index}"), key, Override::Blocked)));
        let mut keys = HashSet::new();
        if let Some((at, ..)) = treatments.iter().find(|(_, key, _)| !keys.insert(*key)) {
            return Err(Fault::new(at, "this key is treated in two ways; keep one of them"));
        }
        let add = |policy: Policy, (_, key, treatment): &(String, &KeyValues, Override)| policy.override_key(&key.0, *treatment);
        let all = treatments.iter().fold(policy.clone(), add);
        let refused = accepted(&all, "override");
        if refused.is_err() {
            // Which of them?
            treatments.iter().try_for_each(|one| accepted(&add(policy.clone(), one), &one.0))?;
        }
        refused.map(|()| all)
    }

    fn other_quota(&self, one: &OverrideTable) -> Result<Quota, String> {
        let window = match (&self.concurrency, &self.calendar) {
            (Some(concurrency), _) => *concurrency.ttl,
            // Of what a calendar's key gets only the limit counts.
            (None, Some(_)) => Duration::from_hours(24),
            (None, None) => {
                let quota = one.quota.as_ref().filter(|_| one.limit.is_none());
                return quota
                    .map(|quota| **quota)
                    .ok_or_else(|| "write what this key gets, for example quota = \"10/min\"".to_owned());
            }
        };
        let limit = one.limit.filter(|_| one.quota.is_none()).ok_or("write what this key gets, for example limit = 50")?;
        Quota::new(limit, window).map_err(|error| error.to_string())
    }
}

impl CalendarTable {
    fn policy(&self, name: &str) -> Result<Policy, Fault> {
        let calendar = match self.per {
            Per::Day => Calendar::day(&self.zone),
            Per::Week => Calendar::week(&self.zone),
            Per::Month => Calendar::month(&self.zone),
        };
        let calendar = calendar.map_err(|error| Fault::new("calendar.zone", error))?;
        Quota::new(self.limit, Duration::from_hours(24)).map_err(|error| Fault::new("calendar.limit", error))?;
        Ok(Policy::calendar(name, self.limit, calendar))
    }
}

/// Whether the library takes it; if not, `key` is what is wrong with it.
fn accepted(policy: &Policy, key: &str) -> Result<(), Fault> {
    let built = Limiter::builder().policy(policy.clone()).clock(ManualClock::default()).build();
    built.map(drop).map_err(|error| Fault::new(key, error))
}
