//! The `tidegate` command. It reads what was typed and leaves the work to the file of each subcommand.

mod config;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A rate limiter to run beside any proxy or program.
#[derive(Parser)]
#[command(name = "tidegate", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks and makes configuration files
    #[command(subcommand, arg_required_else_help = true)]
    Config(config::Command),
    /// Serves decisions over HTTP
    Serve(serve::Command),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Config(command) => command.run(),
        Command::Serve(command) => command.run(),
    }
}
