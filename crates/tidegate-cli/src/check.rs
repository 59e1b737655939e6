//! `tidegate check` and `tidegate peek`: a hit, decided.

use std::process::ExitCode;

use clap::{Args, value_parser};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;
use tidegate::Quota;

use crate::{
    asking::{Attribute, DENIED, ServerFlags, attribute, object},
    client::Failure,
    show::{Table, escaped, span},
};

#[derive(Args)]
pub(crate) struct Command {
    /// What is known of the hit: policies apply by these
    #[arg(value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<Attribute>,
    /// What the hit costs; 0 only asks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(..=Quota::MAX))]
    cost: u64,
    #[command(flatten)]
    flags: ServerFlags,
}

/// What of a decision is shown.
#[derive(Deserialize)]
struct Decision {
    allowed: bool,
    policy: Option<String>,
    limit: Option<u64>,
    retry_after_ms: Option<u64>,
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    policy: String,
    key: String,
    allowed: bool,
    shadow: bool,
    limit: u64,
    remaining: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    source: String,
}

impl Command {
    /// Asks `target`, which answers with a decision.
    pub(crate) fn run(self, target: &str) -> Result<ExitCode, Failure> {
        let body = json!({ "attributes": object(self.attributes)?, "cost": self.cost });
        let reply = self.flags.ask(async |client| client.ask(Method::POST, target, Some(body)).await)?;
        let decision: Decision = reply.read()?;
        self.flags.common.tell(&reply, || shown(&decision))?;
        Ok(if decision.allowed { ExitCode::SUCCESS } else { ExitCode::from(DENIED) })
    }
}

fn shown(decision: &Decision) -> String {
    let Decision { allowed, policy, limit, retry_after_ms, outcomes } = decision;
    let policy = escaped(policy.as_deref().unwrap_or("?"));
    let mut text = match retry_after_ms {
        _ if *allowed && outcomes.is_empty() => return "allowed: no policy applies\n".to_owned(),
        _ if *allowed => "allowed\n".to_owned(),
        Some(millis) => format!("denied by {policy}: come back in {}\n", span(*millis)),
        None if *limit == Some(0) => format!("denied by {policy}: the key is blocked\n"),
        None => format!("denied by {policy}: the cost is above the limit, no wait helps\n"),
    };
    let mut table = Table::new(&["POLICY", "KEY", "VERDICT", "LEFT", "RETRY IN", "ALL BACK IN", "SOURCE"]);
    for outcome in outcomes {
        let verdict = match (outcome.shadow, outcome.allowed) {
            (false, true) => "allowed",
            (false, false) => "denied",
            (true, true) => "would allow",
            (true, false) => "would deny",
        };
        let retry = match outcome.retry_after_ms {
            _ if outcome.allowed => "-".to_owned(),
            Some(millis) => span(millis),
            None => "never".to_owned(),
        };
        table.row([
            outcome.policy.clone(),
            outcome.key.clone(),
            verdict.to_owned(),
            format!("{} of {}", outcome.remaining, outcome.limit),
            retry,
            span(outcome.reset_after_ms),
            outcome.source.clone(),
        ]);
    }
    text.push_str(&table.text());
    text
}
