//! `tidegate denials`: the latest denials of a server.

use std::{collections::BTreeMap, process::ExitCode};

use clap::{Args, value_parser};
use serde::Deserialize;

use crate::{
    asking::AdminFlags,
    client::Failure,
    show::{Table, span},
};

#[derive(Args)]
pub(crate) struct Command {
    /// How many, 1000 at most
    #[arg(short = 'n', value_name = "N", default_value_t = 20, value_parser = value_parser!(u64).range(1..=1000))]
    number: u64,
    #[command(flatten)]
    flags: AdminFlags,
}

#[derive(Deserialize)]
struct Denials {
    denials: Vec<Denial>,
}

#[derive(Deserialize)]
struct Denial {
    time: String,
    front_end: String,
    policy: Option<String>,
    reason: Option<String>,
    key: Option<String>,
    attributes: BTreeMap<String, String>,
    cost: Option<u64>,
    used: Option<u64>,
    limit: Option<u64>,
    retry_after_ms: Option<u64>,
    source: Option<String>,
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.flags.needs_server("each server keeps its own latest denials, and a store none")?;
        let target = format!("/v1/denials?n={}", self.number);
        let reply = self.flags.ask(async |client| client.get(&target).await)?;
        let Denials { denials } = reply.read()?;
        self.flags.common.tell(&reply, || shown(denials))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(denials: Vec<Denial>) -> String {
    if denials.is_empty() {
        return "nobody was denied since the server was started\n".to_owned();
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let number = |number: Option<u64>| or_dash(number.map(|number| number.to_string()));
    let mut table =
        Table::new(&["TIME", "POLICY", "KEY", "REASON", "USED", "COST", "RETRY IN", "FRONT END", "SOURCE", "ATTRIBUTES"]);
    for denial in denials {
        table.row([
            denial.time,
            or_dash(denial.policy),
            or_dash(denial.key),
            or_dash(denial.reason),
            format!("{} of {}", number(denial.used), number(denial.limit)),
            number(denial.cost),
            denial.retry_after_ms.map_or_else(|| "never".to_owned(), span),
            denial.front_end,
            or_dash(denial.source),
            attributes(&denial.attributes),
        ]);
    }
    table.text()
}

/// As they would be written for `tidegate check`, but for what the server has escaped or cut.
fn attributes(attributes: &BTreeMap<String, String>) -> String {
    attributes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
