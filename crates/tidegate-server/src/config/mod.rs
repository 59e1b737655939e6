//! The configuration: what a file, the environment and flags can say, what holds if they say nothing, and what is wrong with it.
//! It knows nothing of sockets; who serves reads it from here.
//!
//! Files are read in three steps: TOML with its spans (`document.rs`), the tables below by serde, and what only shows when settings
//! meet (`Config::faults`). All that is wrong in one step is told at once.

mod document;
mod layers;
mod policy;
mod problem;
mod store;
mod tables;
mod text;
mod words;

use std::{path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tidegate::Policy;

pub use self::{
    document::parse,
    layers::{SETTINGS, Setting, Sources},
    policy::{CalendarTable, ConcurrencyTable, Counts, KeyValues, Match, Mode, OverrideTable, Per, PolicyTable, Requirement},
    problem::{Place, Problem, Problems},
    store::{Backend, OnError, StoreTable, secret},
    tables::{
        Admin, DecisionLog, Dialect, Format, ForwardAuth, Headers, Level, Limits, Listen, Log, Recorded, ResetStyle, Telemetry,
    },
    text::{Destination, Endpoint, Listener, Meaning, Origin, StoreUrl, Text},
};
use crate::object;

/// The file that applies where there is none, and that `tidegate config init` prints: every key with its default, and three
/// policies.
pub const STARTER: &str = include_str!("starter.toml");

/// All settings. What a file does not say has its default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(title = "Tidegate configuration", inline)]
pub struct Config {
    /// Where to listen: an IP address and a port, or "off".
    #[serde(deserialize_with = "object::one")]
    pub listen: Listen,
    /// Where states are kept.
    #[serde(deserialize_with = "object::one")]
    pub store: StoreTable,
    /// What responses tell their clients.
    #[serde(deserialize_with = "object::one")]
    pub headers: Headers,
    /// Answers to proxies that ask before they pass a request on: nginx, Caddy, Traefik.
    #[serde(deserialize_with = "object::one")]
    pub forward_auth: ForwardAuth,
    /// Bounds on what clients can take.
    #[serde(deserialize_with = "object::one")]
    pub limits: Limits,
    /// Who may look at the running server and change it.
    #[serde(deserialize_with = "object::one")]
    pub admin: Admin,
    /// A line of JSON for each decision, for people who ask why.
    #[serde(deserialize_with = "object::one")]
    pub decision_log: DecisionLog,
    /// What the server says of itself, on standard error. Nobody waits for who reads it: lines that find no room are lost, and counted there.
    #[serde(deserialize_with = "object::one")]
    pub log: Log,
    /// Traces that are sent elsewhere; metrics are fetched, from the admin listener.
    #[serde(deserialize_with = "object::one")]
    pub telemetry: Telemetry,
    /// The policies. All whose key attributes a request has and whose conditions it meets are asked; all are charged or none is.
    #[serde(deserialize_with = "object::several")]
    pub policy: Vec<PolicyTable>,
}

impl Config {
    /// The built-in configuration.
    pub fn starter() -> Self {
        parse(STARTER).expect("the starter is right")
    }

    /// The JSON Schema of a file, for editors.
    pub fn schema() -> serde_json::Value {
        schemars::schema_for!(Config).to_value()
    }

    /// The policies, as the library has them.
    ///
    /// # Errors
    /// As [`parse`], for a configuration that was not read from a text.
    pub fn policies(&self) -> Result<Vec<Policy>, Problems> {
        let made = self.policy.iter().map(|table| table.policy(self.store.on_error));
        made.collect::<Result<_, _>>().map_err(|fault| Problems::from(Problem::new(fault.message)))
    }

    /// Policies of `concurrency`, which apply where a lease is named.
    pub fn leasing(&self) -> impl Iterator<Item = &PolicyTable> {
        self.policy.iter().filter(|table| table.concurrency.is_some())
    }

    /// What only shows when settings meet.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut faults = self.policy_faults();
        let zero = |(key, span): (&str, Duration)| {
            span.is_zero().then(|| Fault::new(key, "this takes some time; write for example \"15ms\" or \"10s\""))
        };
        let spans = [
            ("store.deadline", *self.store.deadline),
            ("store.snapshot_interval", *self.store.snapshot_interval),
            ("limits.header_timeout", *self.limits.header_timeout),
            ("limits.idle_timeout", *self.limits.idle_timeout),
        ];
        faults.extend(spans.into_iter().filter_map(zero));
        let shares =
            [("decision_log.sample_rate", self.decision_log.sample_rate), ("telemetry.sample_rate", self.telemetry.sample_rate)];
        let wrong = shares.into_iter().filter(|(_, share)| !(0.0..=1.0).contains(share));
        faults.extend(wrong.map(|(key, _)| Fault::new(key, "not a share; write a number from 0.0 to 1.0")));
        if self.store.snapshot.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
            faults.push(Fault::new("store.snapshot", "nowhere to write to; write the path of a file, or leave it out"));
        }
        if ![403, 429].contains(&self.forward_auth.denial_status) {
            faults.push(Fault::new("forward_auth.denial_status", "write 429, or 403 for nginx, which takes no 429"));
        }
        let is_name =
            |host: &String| !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        if let Some(host) = self.admin.allowed_hosts.iter().find(|host| !is_name(host)) {
            let message = format!(
                "`{}` is no name; write one without a scheme and a port, such as \"limits.example\"",
                host.escape_debug()
            );
            faults.push(Fault::new("admin.allowed_hosts", message));
        }
        faults.extend(half_a_pair("store", &self.store.cert_file, &self.store.key_file));
        faults.extend(half_a_pair("admin", &self.admin.cert_file, &self.admin.key_file));
        faults.extend(self.listen.faults());
        faults.extend(self.admin_fault());
        faults
    }

    /// What would let others than those with a token administer the server, or see the token.
    pub(crate) fn admin_fault(&self) -> Option<Fault> {
        let is_open = self.listen.admin.address().is_some_and(|address| !address.ip().is_loopback());
        let is_guarded = self.admin.write_token_file.is_some() && self.admin.cert_file.is_some();
        (is_open && !is_guarded).then(|| {
            let message = "who can reach this can change the server; write a loopback address, or in [admin] write_token_file = \
                           \"/path\" with a secret in that file, and cert_file and key_file for TLS";
            Fault::new("listen.admin", message)
        })
    }

    /// What is wrong with the policies.
    pub(crate) fn policy_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (index, table) in self.policy.iter().enumerate() {
            if let Err(fault) = table.policy(self.store.on_error) {
                faults.push(Fault { key: format!("policy.{index}.{}", fault.key), ..fault });
            } else if self.policy[..index].iter().any(|earlier| earlier.name == table.name) {
                let message = tidegate::ConfigError::Duplicate(table.name.clone()).to_string();
                faults.push(Fault { key: format!("policy.{index}.name"), message });
            }
        }
        faults
    }
}

/// A setting that is wrong: its key, as in `policy.2.quota`, and what to write instead.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) key: String,
    pub(crate) message: String,
}

impl Fault {
    fn new(key: impl Into<String>, message: impl ToString) -> Self {
        Self { key: key.into(), message: message.to_string() }
    }
}

/// A certificate without its key, or a key without its certificate.
fn half_a_pair(table: &str, cert_file: &Option<PathBuf>, key_file: &Option<PathBuf>) -> Option<Fault> {
    let (given, missing) = match (cert_file, key_file) {
        (Some(_), None) => ("cert_file", "key_file"),
        (None, Some(_)) => ("key_file", "cert_file"),
        _ => return None,
    };
    Some(Fault::new(
        format!("{table}.{given}"),
        format!("a certificate and its key go together; write {missing} = \"/path\" too"),
    ))
}
