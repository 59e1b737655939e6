//! The bench without the peers that have to be asked for.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate_bench::run(Vec::new())
}
