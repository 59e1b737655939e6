//! `tidegate inspect`: what is stored for a key.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, UNIX_EPOCH},
};

use clap::Args;
use serde::Deserialize;

use crate::{
    asking::{AdminFlags, Attribute, attribute, object, policy_name},
    client::Failure,
    show::{escaped, span},
};

#[derive(Args)]
pub(crate) struct Command {
    /// The policy
    #[arg(value_parser = policy_name)]
    policy: String,
    /// The attributes that make its key
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<Attribute>,
    #[command(flatten)]
    flags: AdminFlags,
}

#[derive(Deserialize)]
struct Stored {
    policy: String,
    key: String,
    algorithm: String,
    fields: BTreeMap<String, u64>,
    entries: Vec<Entry>,
    lasts_ms: u64,
}

#[derive(Deserialize)]
struct Entry {
    at_us: u64,
    cost: u64,
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let mut target = format!("/v1/inspect?policy={}", self.policy);
        for Attribute { name, value } in &self.attributes {
            let _ = write!(target, "&{}={}", hexadecimal(name), hexadecimal(value));
        }
        // Refuses what is given twice.
        object(self.attributes)?;
        let reply = self.flags.ask(async |client| client.get(&target).await)?;
        let stored: Stored = reply.read()?;
        self.flags.common.tell(&reply, || shown(&stored))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// As it is written in a query. All of it: an attribute that is named `policy` is not the policy that is asked about.
fn hexadecimal(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

fn shown(stored: &Stored) -> String {
    let Stored { policy, key, algorithm, fields, entries, lasts_ms } = stored;
    let mut text = String::new();
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "{:<12}{}", escaped(what), escaped(said));
    };
    line("policy", policy);
    line("key", key);
    line("algorithm", algorithm);
    if fields.is_empty() && entries.is_empty() {
        line("stored", "nothing");
        return text;
    }
    line("lasts", &span(*lasts_ms));
    fields.iter().for_each(|(name, number)| line(name, &number.to_string()));
    for Entry { at_us, cost } in entries {
        match algorithm.as_str() {
            "concurrency" => line("held", &format!("until {}", time(*at_us))),
            _ => line("charged", &format!("{cost} at {}", time(*at_us))),
        }
    }
    text
}

/// A time as clocks show it; as a number where none does.
fn time(micros: u64) -> String {
    const YEAR_10000_US: u64 = 253_402_300_800_000_000;
    let time = UNIX_EPOCH + Duration::from_micros(micros.min(YEAR_10000_US - 1));
    if micros < YEAR_10000_US { humantime::format_rfc3339_micros(time).to_string() } else { micros.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_has_a_time_and_a_lease_an_end() {
        for (algorithm, line) in [
            ("sliding-log", "charged     1 at 2026-11-16T12:59:59.123456Z\n"),
            ("concurrency", "held        until 2026-11-16T12:59:59.123456Z\n"),
        ] {
            let entries = vec![Entry { at_us: 1_794_833_999_123_456, cost: 1 }];
            let [policy, key, algorithm] = ["a", "b", algorithm].map(str::to_owned);
            let text = shown(&Stored { policy, key, algorithm, fields: BTreeMap::new(), entries, lasts_ms: 7 });
            assert!(text.ends_with(line), "{text}");
        }
    }

    #[test]
    fn any_number_is_shown_as_a_time() {
        assert_eq!(time(1_794_833_999_123_456), "2026-11-16T12:59:59.123456Z");
        assert_eq!(time(u64::MAX), u64::MAX.to_string());
        assert_eq!(time(253_402_300_799_999_999), "9999-12-31T23:59:59.999999Z");
    }
}
