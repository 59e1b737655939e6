//! `tidegate reset`: a key, forgotten.

use std::process::ExitCode;

use clap::Args;
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use crate::{
    asking::{AdminFlags, Attribute, attribute, object},
    client::Failure,
    show::Table,
};

#[derive(Args)]
pub(crate) struct Command {
    /// The attributes that make the key
    #[arg(value_name = "NAME=VALUE", value_parser = attribute, required = true)]
    attributes: Vec<Attribute>,
    #[command(flatten)]
    flags: AdminFlags,
}

#[derive(Deserialize)]
struct Keys {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Key {
    policy: String,
    key: String,
    limit: u64,
    remaining: u64,
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let body = json!({ "attributes": object(self.attributes)? });
        let reply = self.flags.ask(async |client| client.ask(Method::POST, "/v1/reset", Some(body)).await)?;
        let Keys { keys } = reply.read()?;
        self.flags.common.tell(&reply, || shown(keys))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn shown(keys: Vec<Key>) -> String {
    if keys.is_empty() {
        return "nothing to forget: no policy applies\n".to_owned();
    }
    let mut table = Table::new(&["POLICY", "KEY", "LEFT"]);
    for Key { policy, key, limit, remaining } in keys {
        table.row([policy, key, format!("{remaining} of {limit}")]);
    }
    format!("forgotten\n{}", table.text())
}
