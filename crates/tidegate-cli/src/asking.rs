//! Whom a command asks: a server, its admin surface, or a store with no server in between; and what the ways to fail are.

use std::{env, ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use clap::Args;
use tidegate_server::{
    config::{Meaning as _, Sources},
    serve::{Direct, StartError},
};
use tokio::time::timeout;

use crate::{
    client::{Client, Failure, Papers, Reply, Url},
    show::{self, WRONG, fail, print},
};

/// Denied.
pub(crate) const DENIED: u8 = 1;
/// Nobody could be asked, or nobody answered.
const UNASKED: u8 = 3;

/// A name and a value of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) name: String,
    pub(crate) value: String,
}

pub(crate) fn attribute(text: &str) -> Result<Attribute, String> {
    match text.split_once('=') {
        Some((_, value)) if is_digest(value) => {
            Err("this stands for a long key; write the value itself, which `tidegate denials` shows".to_owned())
        }
        Some((name, value)) if !name.is_empty() => Ok(Attribute { name: name.to_owned(), value: value.to_owned() }),
        _ => Err("an attribute is a name and a value; write for example user=42".to_owned()),
    }
}

/// Whether it is what is shown in the place of a long key: taken for the key, it would be another one.
fn is_digest(value: &str) -> bool {
    value.strip_prefix('~').is_some_and(|digest| digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

pub(crate) fn policy_name(text: &str) -> Result<String, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if is_plain && !text.is_empty() {
        return Ok(text.to_owned());
    }
    Err("not the name of a policy; `tidegate policies` lists them".to_owned())
}

/// A span of time that is not over at once.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    let span = Duration::read(text)?;
    if span.is_zero() { Err("this takes some time; write for example 5s".to_owned()) } else { Ok(span) }
}

/// The attributes as an object of JSON.
pub(crate) fn object(attributes: Vec<Attribute>) -> Result<serde_json::Value, Failure> {
    let mut object = serde_json::Map::new();
    for Attribute { name, value } in attributes {
        if object.contains_key(&name) {
            return Err(Failure::Usage(format!("the attribute `{}` is given twice; write it once", show::escaped(&name))));
        }
        object.insert(name, value.into());
    }
    Ok(object.into())
}

/// How decisions are asked for.
#[derive(Args)]
pub(crate) struct ServerFlags {
    /// The server [env: TIDEGATE_SERVER_URL] [default: http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "config"])]
    server: Option<Url>,
    #[command(flatten)]
    pub(crate) common: Flags,
}

/// How a running server is looked at and changed.
#[derive(Args)]
pub(crate) struct AdminFlags {
    /// The admin surface of the server [env: TIDEGATE_ADMIN_URL] [default: http://127.0.0.1:9090]
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "config"])]
    admin: Option<Url>,
    /// A file with the token that the admin surface asks for [env: TIDEGATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["store", "config"])]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Flags,
}

/// What every question can have.
#[derive(Args)]
pub(crate) struct Flags {
    /// Asks this store, without a server: the address of Redis or Valkey, such as redis://127.0.0.1:6379/
    ///
    /// The policies are those of --config FILE, else the built-in ones (`tidegate config init` prints them). Give the file that the servers
    /// of this store have: a key that is asked about under another quota goes on under that one.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Asks a store, without a server, by the policies of this file; which store it says, too, unless --store does
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// For https: a file with the certificate (PEM) to believe, in the place of those that the machine trusts [env: TIDEGATE_CA_FILE]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["store", "config"])]
    ca: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = some_time)]
    timeout: Duration,
    /// Prints the answer in JSON, in one line, as the server sends it
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy)]
enum Surface {
    Http,
    Admin,
}

impl ServerFlags {
    pub(crate) fn ask<T>(&self, questions: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
        self.common.ask(Surface::Http, questions, || {
            let url = or_variable(self.server.clone(), "TIDEGATE_SERVER_URL", "http://127.0.0.1:8080")?;
            Ok((url, None, "start one with `tidegate serve`, name another with --server URL, or a store with --store URL"))
        })
    }
}

impl AdminFlags {
    pub(crate) fn ask<T>(&self, questions: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>) -> Result<T, Failure> {
        self.common.ask(Surface::Admin, questions, || {
            let url = or_variable(self.admin.clone(), "TIDEGATE_ADMIN_URL", "http://127.0.0.1:9090")?;
            let token_file = or_path(&self.token_file, "TIDEGATE_TOKEN_FILE");
            let hint = "start a server with `tidegate serve`, or name the admin surface of another with --admin URL";
            Ok((url, token_file, hint))
        })
    }

    /// Refuses what only a server has.
    pub(crate) fn needs_server(&self, why: &str) -> Result<(), Failure> {
        if self.common.is_direct() { Err(Failure::Usage(format!("{why}; leave out --store and --config"))) } else { Ok(()) }
    }
}

impl Flags {
    fn is_direct(&self) -> bool {
        self.store.is_some() || self.config.is_some()
    }

    /// `server` is who is asked where no store is named: an address, a file with a token, and what to do if nobody is there.
    fn ask<T>(
        &self,
        surface: Surface,
        questions: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>,
        server: impl FnOnce() -> Result<(Url, Option<PathBuf>, &'static str), Failure>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Unasked(error.to_string()))?;
        if self.is_direct() {
            return runtime.block_on(self.ask_store(surface, questions));
        }
        let (url, token_file, hint) = server()?;
        let ca = or_path(&self.ca, "TIDEGATE_CA_FILE");
        let papers = Papers { token_file, ca };
        runtime.block_on(async {
            let asked = async {
                let mut client = Client::connect(&url, &papers, hint).await?;
                questions(&mut client).await
            };
            self.in_time(&url.to_string(), asked).await
        })
    }

    async fn ask_store<T>(
        &self,
        surface: Surface,
        questions: impl AsyncFnOnce(&mut Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let flags = [("--store", &self.store), ("--config", &self.config)];
        let given = flags.into_iter().filter_map(|(flag, text)| Some((flag, text.clone()?)));
        let config = Sources::of_process(given).and_then(|sources| sources.load());
        let config = config.map_err(|problems| Failure::Usage(problems.to_string()))?;
        let name = config.store.url.to_string();
        let direct = Direct::connect(config, self.timeout).await.map_err(|error| match error {
            StartError::Config(problems) => Failure::Usage(problems.to_string()),
            error => Failure::Unasked(error.to_string()),
        })?;
        let stream = match surface {
            Surface::Http => direct.http(),
            Surface::Admin => direct.admin(),
        };
        let mut client = Client::over(stream, name.clone(), "localhost".to_owned()).await?;
        let answered = self.in_time(&name, questions(&mut client)).await;
        direct.close().await;
        answered
    }

    async fn in_time<T>(&self, name: &str, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = || Failure::Unasked(format!("{name} has not answered within {:?} (--timeout SPAN)", self.timeout));
        timeout(self.timeout, asked).await.unwrap_or_else(|_| Err(late()))
    }

    /// Prints the answer as it came, or as `shown` has it.
    pub(crate) fn tell(&self, reply: &Reply, shown: impl FnOnce() -> String) -> Result<(), Failure> {
        let text = if self.json { show::json_line(&reply.body) } else { shown() };
        print(&text).map_err(Failure::Unasked)
    }
}

/// What the environment says; nothing where that is empty.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

fn or_path(flag: &Option<PathBuf>, name: &str) -> Option<PathBuf> {
    flag.clone().or_else(|| variable(name).map(PathBuf::from))
}

fn or_variable(flag: Option<Url>, name: &str, default: &str) -> Result<Url, Failure> {
    let wrong = |wrong: &str| Failure::Usage(format!("{name}: {wrong}"));
    match (flag, variable(name)) {
        (Some(url), _) => Ok(url),
        (None, None) => default.parse().map_err(|error: String| wrong(&error)),
        (None, Some(value)) => {
            let text = value.to_str().ok_or_else(|| wrong("this is not UTF-8; write a text"))?;
            text.parse().map_err(|error: String| wrong(&error))
        }
    }
}

/// Ends as it went.
pub(crate) fn exit(ended: Result<ExitCode, Failure>) -> ExitCode {
    match ended {
        Ok(code) => code,
        Err(Failure::Usage(message)) => fail(&message, WRONG),
        Err(Failure::Unasked(message)) => fail(&message, UNASKED),
    }
}
