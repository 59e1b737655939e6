//! What a system is given of the command itself: completions for shells, and man pages. Both are made of the definitions that read what
//! was typed.

use std::{fs, path::PathBuf};

use clap::Args;
use clap_complete::Shell;

use crate::{client::Failure, show::print};

#[derive(Args)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

#[derive(Args)]
pub(crate) struct Man {
    /// Writes a page for each command into this folder, which is made if need be; else the first is printed
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
}

impl Completions {
    pub(crate) fn run(self, mut command: clap::Command) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "tidegate", &mut script);
        print(&String::from_utf8_lossy(&script)).map_err(Failure::Unasked)
    }
}

impl Man {
    pub(crate) fn run(self, command: clap::Command) -> Result<(), Failure> {
        // Each command has --help; pages on `help` would say nothing.
        let command = command.disable_help_subcommand(true);
        match self.output {
            Some(folder) => {
                let written = fs::create_dir_all(&folder).and_then(|()| clap_mangen::generate_to(command, &folder));
                written.map_err(|error| Failure::Usage(format!("{} cannot be written: {error}", folder.display())))
            }
            None => {
                let mut page = Vec::new();
                let rendered = clap_mangen::Man::new(command).render(&mut page);
                rendered.map_err(|error| Failure::Unasked(error.to_string()))?;
                print(&String::from_utf8_lossy(&page)).map_err(Failure::Unasked)
            }
        }
    }
}
