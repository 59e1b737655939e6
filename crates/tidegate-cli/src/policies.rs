//! `tidegate policies`: those in force, and how much one allows.

use std::{collections::BTreeMap, process::ExitCode};

use clap::{ArgMatches, Args, FromArgMatches, Subcommand, value_parser};
use hyper::Method;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};
use tidegate::Quota;

use crate::{
    asking::{AdminFlags, policy_name},
    client::Failure,
    show::{Table, escaped},
};

#[derive(Args)]
pub(crate) struct Command {
    #[command(subcommand)]
    change: Option<Change>,
    #[command(flatten)]
    flags: Anywhere,
}

/// Flags that may stand before `set` and behind it.
struct Anywhere(AdminFlags);

impl Args for Anywhere {
    fn augment_args(command: clap::Command) -> clap::Command {
        AdminFlags::augment_args(command).mut_args(|flag| flag.global(true))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        AdminFlags::augment_args_for_update(command).mut_args(|flag| flag.global(true))
    }
}

impl FromArgMatches for Anywhere {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        AdminFlags::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[derive(Subcommand)]
enum Change {
    /// Changes how much a policy allows
    ///
    /// It holds from the next decision on, and what was counted goes on counting. The server is changed and not its file: that holds again
    /// when it is read again. Of several servers each has to be told.
    #[command(after_help = SET_EXAMPLES)]
    Set(Set),
}

const SET_EXAMPLES: &str = "\
Examples:
  tidegate policies set per-user --limit 200
  tidegate policies set per-user --quota '10/s burst 20' --token-file write-token";

#[derive(Args)]
struct Set {
    /// The policy
    #[arg(value_parser = policy_name)]
    policy: String,
    #[command(flatten)]
    amount: Amount,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Amount {
    /// Another limit; the time that it is for stays
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=Quota::MAX))]
    limit: Option<u64>,
    /// Another quota, such as 200/min, "10/s burst 20" or 5000/day, for a policy that has one
    #[arg(long)]
    quota: Option<Quota>,
}

#[derive(Deserialize)]
struct Policies {
    policies: Vec<Policy>,
}

/// What of a policy is shown.
#[derive(Deserialize)]
struct Policy {
    name: String,
    #[serde(default)]
    key: Vec<String>,
    #[serde(default, rename = "match")]
    conditions: BTreeMap<String, IgnoredAny>,
    quota: Option<String>,
    calendar: Option<Calendar>,
    concurrency: Option<Concurrency>,
    algorithm: Option<String>,
    mode: Option<String>,
    counts: Option<String>,
    #[serde(default, rename = "override")]
    overrides: Vec<IgnoredAny>,
    #[serde(default)]
    unlimited: Vec<IgnoredAny>,
    #[serde(default)]
    blocked: Vec<IgnoredAny>,
}

#[derive(Deserialize)]
struct Calendar {
    limit: u64,
    per: String,
    zone: String,
}

#[derive(Deserialize)]
struct Concurrency {
    limit: u64,
    ttl: String,
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let Self { change, flags: Anywhere(flags) } = self;
        if let Some(Change::Set(set)) = change {
            return set.run(&flags);
        }
        let reply = flags.ask(async |client| client.get("/v1/policies").await)?;
        let Policies { policies } = reply.read()?;
        flags.common.tell(&reply, || shown(&policies))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Set {
    fn run(self, flags: &AdminFlags) -> Result<ExitCode, Failure> {
        let Self { policy: name, amount } = self;
        flags.needs_server("policies are changed in a server, or in its file")?;
        let (before, reply) = flags.ask(async |client| {
            let reply = client.get("/v1/policies").await?;
            let Policies { policies } = reply.read()?;
            let known = policies.into_iter().find(|policy| policy.name == name);
            let before = known.ok_or_else(|| {
                Failure::Usage(format!("there is no policy `{}`; `tidegate policies` lists them", escaped(&name)))
            })?;
            let patch = amount.patch(&before)?;
            Ok((before, client.ask(Method::PATCH, &format!("/v1/policies/{name}"), Some(patch)).await?))
        })?;
        let after: Policy = reply.read()?;
        flags.common.tell(&reply, || escaped(&format!("{name}: {}, was {}", after.amount(), before.amount())) + "\n")?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Amount {
    /// The fields to change.
    fn patch(&self, policy: &Policy) -> Result<Value, Failure> {
        let Some(limit) = self.limit else {
            if policy.quota.is_none() {
                return Err(Failure::Usage(format!("{} has no quota; write --limit N", escaped(&policy.name))));
            }
            return Ok(json!({ "quota": self.quota.map(|quota| quota.to_string()) }));
        };
        if policy.calendar.is_some() {
            return Ok(json!({ "calendar": { "limit": limit } }));
        }
        if policy.concurrency.is_some() {
            return Ok(json!({ "concurrency": { "limit": limit } }));
        }
        let quota = policy.quota.as_deref().and_then(|text| text.parse::<Quota>().ok());
        let changed = quota.and_then(|quota| {
            let changed = Quota::new(limit, quota.window()).ok()?;
            quota.burst_size().map_or(Some(changed), |burst| changed.try_burst(burst).ok())
        });
        let quota = changed.ok_or_else(|| Failure::Usage("its quota is not one that is known here; write --quota".to_owned()))?;
        Ok(json!({ "quota": quota.to_string() }))
    }
}

impl Policy {
    fn amount(&self) -> String {
        match (&self.quota, &self.calendar, &self.concurrency) {
            (Some(quota), ..) => quota.clone(),
            (_, Some(Calendar { limit, per, zone }), _) => format!("{limit} a {per} ({zone})"),
            (.., Some(Concurrency { limit, ttl })) => format!("{limit} at once (ttl {ttl})"),
            _ => "-".to_owned(),
        }
    }

    fn notes(&self) -> String {
        let several = |list: &[IgnoredAny], what| (!list.is_empty()).then(|| format!("{} {what}", list.len()));
        let conditions: Vec<&str> = self.conditions.keys().map(String::as_str).collect();
        let notes = [
            self.algorithm.clone(),
            (self.mode.as_deref() == Some("shadow")).then(|| "only watches".to_owned()),
            (self.counts.as_deref() == Some("requests")).then(|| "counts requests".to_owned()),
            (!conditions.is_empty()).then(|| format!("depends on {}", conditions.join(" and "))),
            several(&self.overrides, "with another quota"),
            several(&self.unlimited, "unlimited"),
            several(&self.blocked, "blocked"),
        ];
        notes.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn shown(policies: &[Policy]) -> String {
    if policies.is_empty() {
        return "no policies, everything is allowed\n".to_owned();
    }
    let mut table = Table::new(&["POLICY", "LIMIT", "FOR EACH", "NOTES"]);
    for policy in policies {
        let by = if policy.key.is_empty() { "(all together)".to_owned() } else { policy.key.join(" and ") };
        table.row([policy.name.clone(), policy.amount(), by, policy.notes()]);
    }
    table.text()
}
