//! Tidegate beside its peers: time per decision, memory per key, and what a key costs when there are many. Figures for
//! the README and bars for us; it always exits with 0 if it was called right.

mod bars;
mod cases;
mod growth;
mod http;
mod memory;
mod peers;
pub mod remote;
mod server;
mod speed;

use std::{env, process::ExitCode};

use self::remote::Contender;

const HELP: &str = "\
Tidegate beside its peers.

usage: scripts/bench library [--quick] [--case SUBSTRING] [--no-memory]
       scripts/bench redis [--limitador] [--quick] [--case SUBSTRING] [--no-memory]
       scripts/bench http [--quick]
       scripts/bench server [--limitador] [--quick] [--case SUBSTRING] [--may-sleep]
       scripts/bench memory
       scripts/bench growth

  library            time per decision, then memory and growth, then what we promise and whether it holds
  redis              over Redis: CPU time of the server per decision, commands per denial, memory of the server
  http               the layer for axum beside tower_governor's
  server             the server over HTTP: in memory beside throttlecrab-server, on Redis beside one that sends a plain script per check
  memory             resident bytes per key
  growth             the cost of inserting a key among few and among many

  --limitador        limitador as well, which has to be built first: see bench/README.md
  --quick            fewer and shorter rounds
  --case SUBSTRING   only cases whose name has this in it, such as `hot`, `zipf`, `2 threads` or `denied`; of redis, such
                     as `cost: `, `denials: ` or `gcra`; of server, `memory` or `redis`
  --no-memory        no memory and no growth
  --may-sleep        server on Redis: cores are not kept awake

  LIMITADOR_SERVER   in the environment: the path of a limitador-server, which then takes part in server
";

/// Does what the command line asks for. `peers` take part over Redis.
pub fn run(peers: Vec<Contender>) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let contenders = peers::contenders();
    let bars = match arguments[..] {
        _ if arguments.iter().any(|argument| ["--help", "-h"].contains(argument)) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        ["library", ref options @ ..] => {
            let Some(options) = Options::parse(options) else { return misuse() };
            let effort = if options.quick { speed::Effort::QUICK } else { speed::Effort::FULL };
            let results = speed::run(&contenders, &effort, options.filter);
            let mut bars = speed::bars(&contenders, &results);
            if options.memory {
                bars.extend(memory::run(&contenders));
                bars.extend(growth::run(&contenders));
            }
            bars
        }
        ["redis", ref options @ ..] => {
            let Some(options) = Options::parse(options) else { return misuse() };
            let effort = if options.quick { remote::Effort::QUICK } else { remote::Effort::FULL };
            let mut bars = remote::cost::run(peers, &effort, options.filter);
            bars.extend(remote::denials::run(&effort, options.filter));
            if options.memory {
                bars.extend(remote::memory::run(&effort, options.filter));
            }
            bars
        }
        ["http", ref options @ ..] => {
            let Some(options) = Options::parse(options) else { return misuse() };
            http::run(options.quick)
        }
        ["server", ref options @ ..] => {
            let Some(options) = Options::parse(options) else { return misuse() };
            let effort = if options.quick { server::Effort::QUICK } else { server::Effort::FULL };
            match server::run(peers, &effort, options.filter, options.may_sleep) {
                Ok(bars) => bars,
                Err(message) => {
                    eprintln!("{message}");
                    return ExitCode::FAILURE;
                }
            }
        }
        ["memory"] => memory::run(&contenders),
        ["growth"] => growth::run(&contenders),
        [memory::CHILD, name] => {
            let Some(contender) = contenders.iter().find(|contender| contender.name == name) else { return misuse() };
            memory::child(contender);
            return ExitCode::SUCCESS;
        }
        _ => return misuse(),
    };
    println!("\nBARS");
    bars.iter().for_each(|bar| println!("{bar}"));
    ExitCode::SUCCESS
}

struct Options<'a> {
    quick: bool,
    filter: &'a str,
    memory: bool,
    may_sleep: bool,
}

impl<'a> Options<'a> {
    /// Nothing if there is an option that we do not know.
    fn parse(mut arguments: &[&'a str]) -> Option<Self> {
        let mut options = Self { quick: false, filter: "", memory: true, may_sleep: false };
        while let [first, rest @ ..] = arguments {
            arguments = rest;
            match *first {
                "--quick" => options.quick = true,
                "--no-memory" => options.memory = false,
                "--may-sleep" => options.may_sleep = true,
                "--case" => (options.filter, arguments) = rest.split_first().map(|(filter, rest)| (*filter, rest))?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn misuse() -> ExitCode {
    eprint!("{HELP}");
    ExitCode::from(2)
}
