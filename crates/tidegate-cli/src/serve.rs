//! `tidegate serve`: the server.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use tidegate_server::{
    config::{Problems, SETTINGS, Setting, Sources},
    log,
    serve::{self, StartError},
};

use crate::show::{WRONG, fail};

/// A flag wins over its environment variable (`TIDEGATE_HTTP` and so on), which wins over the file.
#[derive(Args)]
pub(crate) struct Command {
    /// The configuration; without one there are three policies: per-user, per-ip and per-key
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// Where states are kept: the address of Redis or Valkey, such as redis://127.0.0.1:6379/ [default: memory]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Where JSON over HTTP and forward-auth listen [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// Where Envoy's rate limit service listens (not served by this version)
    #[arg(long, value_name = "ADDR")]
    grpc: Option<String>,
    /// Where the protocol of Redis is spoken (not served by this version)
    #[arg(long, value_name = "ADDR")]
    resp: Option<String>,
    /// Where metrics, health and administration listen, or "off" [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

/// What is said at the end of the help.
pub(crate) fn help() -> String {
    let variables = SETTINGS.iter().map(|Setting { variable, key, .. }| format!("  {variable:<32} {key}\n"));
    format!(
        "Environment, and the keys of a file that it wins over; a flag wins over both:
  {:<32} the configuration
{}
Examples:
  tidegate serve
  tidegate serve --config tidegate.toml --store redis://127.0.0.1:6379/
  TIDEGATE_HTTP=0.0.0.0:8080 tidegate serve

Exit codes:
  0 told to stop   1 could not start: an address is taken   2 wrong usage, or a wrong configuration",
        "TIDEGATE_CONFIG",
        variables.collect::<String>(),
    )
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        // Requests are served on lanes: what is left is to accept connections, administration, and to follow the file.
        let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error.to_string(), 1),
        };
        let sources = match self.sources() {
            Ok(sources) => sources,
            Err(problems) => return fail(&problems.to_string(), WRONG),
        };
        let result = runtime.block_on(serve::run(sources));
        // With it the last handle of the limiter goes, and the last snapshot is written.
        drop(runtime);
        log::flush(Duration::from_secs(1));
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error @ (StartError::Config(_) | StartError::Nothing)) => fail(&error.to_string(), WRONG),
            Err(error) => fail(&error.to_string(), 1),
        }
    }

    fn sources(self) -> Result<Sources, Problems> {
        let Self { config, store, http, grpc, resp, admin } = self;
        let flags =
            [("--config", config), ("--store", store), ("--http", http), ("--grpc", grpc), ("--resp", resp), ("--admin", admin)];
        let given = flags.into_iter().filter_map(|(flag, text)| Some((flag, text?)));
        Sources::of_process(given)
    }
}
