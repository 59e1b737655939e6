//! `tidegate config`: files before they are served.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use tidegate_server::config::{Config, STARTER, Sources};

use crate::show::{WRONG, fail, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Says what is wrong with a file, if anything; exits with 2 then
    ///
    /// The file alone is checked: neither the environment nor the files that it names are looked at.
    Check {
        /// A configuration file (TOML)
        file: PathBuf,
    },
    /// Prints the JSON Schema of a file, for editors
    Schema,
    /// Prints a file to start from: every key, its default, and three policies
    Init {
        /// Writes it to this file, which must not be there yet
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

impl Command {
    pub(crate) fn run(self) -> ExitCode {
        let result = match self {
            Self::Check { file } => return check(&file),
            Self::Schema => print(&format!("{:#}\n", Config::schema())),
            Self::Init { output: None } => print(STARTER),
            Self::Init { output: Some(path) } => write(&path),
        };
        result.map_or_else(|message| fail(&message, WRONG), |()| ExitCode::SUCCESS)
    }
}

/// What may surprise who writes a policy of `concurrency`.
const LEASES: &str = "applies to /v1/acquire, and to hits with an attribute `lease`; what names no lease does not take one";

fn check(file: &Path) -> ExitCode {
    match Sources::file(file).load_to_serve() {
        Ok(config) => {
            let names: Vec<&str> = config.policy.iter().map(|policy| policy.name.as_str()).collect();
            let policies = match names.as_slice() {
                [] => "no policies, everything is allowed".to_owned(),
                [only] => format!("1 policy ({only})"),
                several => format!("{} policies ({})", several.len(), several.join(", ")),
            };
            let leases: String = config.leasing().map(|table| format!("{}: {LEASES}\n", table.name)).collect();
            let snapshot: String = config.store.idle_snapshot().map(|note| format!("{note}\n")).into_iter().collect();
            let said = print(&format!("ok: {policies}, store {}\n{snapshot}{leases}", config.store.url));
            said.map_or_else(|message| fail(&message, WRONG), |()| ExitCode::SUCCESS)
        }
        Err(problems) => fail(&problems.to_string(), WRONG),
    }
}

fn write(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => format!("{shown} is there already; name another file, or remove it first"),
        _ => format!("{shown} cannot be written: {error}"),
    })?;
    file.write_all(STARTER.as_bytes()).map_err(|error| format!("{shown} cannot be written: {error}"))
}
