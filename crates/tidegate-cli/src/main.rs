//! The `tidegate` command. It reads what was typed and leaves the work to the file of each subcommand.

mod asking;
mod bench;
mod check;
mod client;
mod config;
mod denials;
mod inspect;
mod manual;
mod policies;
mod reset;
mod serve;
mod show;
mod top;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// A rate limiter to run beside any proxy or program.
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Load for a server or a store: how many decisions per second, and how long they take
    Bench(bench::Command),
    /// Checks and makes configuration files
    #[command(subcommand, arg_required_else_help = true)]
    Config(config::Command),
    /// Serves decisions over HTTP
    #[command(after_help = serve::help())]
    Serve(serve::Command),
    /// Decides a hit, and charges it if it is allowed
    #[command(after_help = CHECK)]
    Check(check::Command),
    /// Says what `check` would, and charges nothing
    #[command(after_help = PEEK)]
    Peek(check::Command),
    /// Forgets a key in every policy that applies to it
    #[command(after_help = RESET)]
    Reset(reset::Command),
    /// Shows what is stored for a key under one policy
    #[command(after_help = INSPECT)]
    Inspect(inspect::Command),
    /// Lists the keys that were denied most in this hour and the last
    #[command(after_help = TOP)]
    Top(top::Command),
    /// Lists the latest denials of a server, the latest first
    #[command(after_help = DENIALS)]
    Denials(denials::Command),
    /// Lists the policies, or changes how much one allows
    #[command(after_help = POLICIES)]
    Policies(policies::Command),
    /// Prints what makes a shell complete this command
    #[command(after_help = COMPLETIONS)]
    Completions(manual::Completions),
    /// Prints the man page, or writes those of all commands
    #[command(after_help = MAN)]
    Man(manual::Man),
}

const CHECK: &str = "\
Examples:
  tidegate check user=42 ip=203.0.113.7
  tidegate check user=42 --cost 5 --json
  tidegate check user=42 --store redis://127.0.0.1:6379/ --config tidegate.toml

Exit codes:
  0 allowed   1 denied   2 wrong usage   3 could not ask";

const PEEK: &str = "\
Examples:
  tidegate peek user=42
  if tidegate peek user=42 --cost 100 > /dev/null; then start-the-job; fi

Exit codes:
  0 would be allowed   1 would be denied   2 wrong usage   3 could not ask";

const RESET: &str = "\
Examples:
  tidegate reset user=42
  tidegate reset user=42 --token-file write-token --admin https://limits.example:9090

Exit codes:
  0 done   2 wrong usage   3 could not ask";

const INSPECT: &str = "\
Examples:
  tidegate inspect per-user user=42

Exit codes:
  0 done   2 wrong usage   3 could not ask";

const TOP: &str = "\
Examples:
  tidegate top
  tidegate top per-user -n 100 --json

Exit codes:
  0 done   2 wrong usage   3 could not ask";

const DENIALS: &str = "\
Examples:
  tidegate denials -n 5
  tidegate denials --json | jq '.denials[].key'

Exit codes:
  0 done   2 wrong usage   3 could not ask";

const POLICIES: &str = "\
Examples:
  tidegate policies
  tidegate policies set per-user --limit 200

Exit codes:
  0 done   2 wrong usage   3 could not ask";

const COMPLETIONS: &str = "\
Examples:
  tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish
  tidegate completions zsh > ~/.zfunc/_tidegate";

const MAN: &str = "\
Examples:
  tidegate man | man -l -
  tidegate man --output ~/.local/share/man/man1";

fn main() -> ExitCode {
    let done = |()| ExitCode::SUCCESS;
    asking::exit(match Cli::parse().command {
        Command::Bench(command) => command.run().map(done),
        Command::Config(command) => Ok(command.run()),
        Command::Serve(command) => Ok(command.run()),
        Command::Check(command) => command.run("/v1/check"),
        Command::Peek(command) => command.run("/v1/peek"),
        Command::Reset(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Top(command) => command.run(),
        Command::Denials(command) => command.run(),
        Command::Policies(command) => command.run(),
        Command::Completions(command) => command.run(Cli::command()).map(done),
        Command::Man(command) => command.run(Cli::command()).map(done),
    })
}
