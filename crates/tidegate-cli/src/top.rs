//! `tidegate top`: who is denied most.

use std::process::ExitCode;

use clap::{Args, value_parser};
use serde::Deserialize;

use crate::{
    asking::{AdminFlags, policy_name},
    client::Failure,
    show::Table,
};

#[derive(Args)]
pub(crate) struct Command {
    /// The policy; each unless given
    #[arg(value_parser = policy_name)]
    policy: Option<String>,
    /// How many keys of a policy, 100 at most
    #[arg(short = 'n', value_name = "N", default_value_t = 10, value_parser = value_parser!(u64).range(1..=100))]
    number: u64,
    #[command(flatten)]
    flags: AdminFlags,
}

#[derive(Deserialize)]
struct Top {
    policies: Vec<Denied>,
}

#[derive(Deserialize)]
struct Denied {
    policy: String,
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    key: String,
    denied: u64,
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let policy = self.policy.map_or_else(String::new, |policy| format!("&policy={policy}"));
        let target = format!("/v1/top?n={}{policy}", self.number);
        let reply = self.flags.ask(async |client| client.get(&target).await)?;
        let Top { policies } = reply.read()?;
        self.flags.common.tell(&reply, || shown(policies))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(policies: Vec<Denied>) -> String {
    if policies.iter().all(|policy| policy.keys.is_empty()) {
        return "nobody was denied in this hour and the last\n".to_owned();
    }
    let mut table = Table::new(&["POLICY", "DENIED", "KEY"]);
    for Denied { policy, keys } in policies {
        for Key { key, denied } in keys {
            table.row([policy.clone(), denied.to_string(), key]);
        }
    }
    table.text()
}
