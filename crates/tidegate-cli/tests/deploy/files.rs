//! The unit and the image, as far as they can be tried without a machine of their own.

use std::{fs, process::Command};

use tempfile::tempdir;
use tidegate_testkit::process::free_ports;

use crate::{repository, site::listening};

fn text(path: &str) -> String {
    fs::read_to_string(repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn systemd_takes_the_unit_and_finds_it_confined() {
    let folder = tempdir().expect("a folder");
    let unit = folder.path().join("tidegate.service");
    let installed = text("deploy/systemd/tidegate.service").replace("/usr/local/bin/tidegate", env!("CARGO_BIN_EXE_tidegate"));
    assert!(installed.contains(&format!("ExecStart={} serve", env!("CARGO_BIN_EXE_tidegate"))), "{installed}");
    fs::write(&unit, installed).expect("a file");
    // Exposure from 0 to 100. What it cannot be without is the network.
    for arguments in [&["verify"][..], &["security", "--offline=yes", "--threshold=15"]] {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output();
        let output = output.unwrap_or_else(|error| panic!("systemd-analyze: {error}; scripts/setup installs it"));
        let [said, wrong] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        // It warns of other units too, if the machine has some.
        assert!(output.status.success() && !wrong.contains("tidegate"), "{arguments:?}: {said}{wrong}");
    }
}

#[test]
fn the_image_is_built_of_what_is_there() {
    let ignored = text(".dockerignore");
    let kept: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &kept {
        assert!(repository(path).exists(), "{path}");
    }
    let workspace = text("Cargo.toml");
    let members = workspace.lines().find_map(|line| line.strip_prefix("members = ")).expect("members");
    for member in members.split('"').skip(1).step_by(2) {
        let top = member.split('/').next().expect("a folder");
        assert!(kept.contains(&top), "cargo wants {member}, and .dockerignore keeps it out");
    }
}

#[test]
fn the_image_knows_whether_it_is_healthy() {
    let folder = tempdir().expect("a folder");
    let [http, admin] = free_ports();
    let dockerfile = text("Dockerfile");
    let check = dockerfile.lines().find_map(|line| line.strip_prefix("HEALTHCHECK CMD ")).expect("a check");
    assert!(check.contains("/127.0.0.1/9090 "), "{check}");
    let check = check.replace("9090", &admin.to_string());
    let is_healthy = || Command::new("sh").args(["-c", &check]).output().expect("it runs").status.success();

    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["serve", "--http", &format!("127.0.0.1:{http}"), "--admin", &format!("127.0.0.1:{admin}")]);
    // It comes last.
    let process = listening(command, folder.path(), admin).unwrap_or_else(|log| panic!("{log}"));
    assert!(is_healthy());
    drop(process);
    assert!(!is_healthy());
}
