//! Memory per key: what the process holds more of, resident, after a million keys. Each contender has a process of its
//! own, so that none lives in what another has freed.

use std::{env, fs, process::Command};

use tidegate::Algorithm;

use crate::{
    bars::Bar,
    cases,
    peers::{Contender, GOVERNOR, position},
};

const KEYS: usize = 1_000_000;

/// The subcommand of the child process, followed by a contender's name.
pub(crate) const CHILD: &str = "memory-of";

/// Measures and prints all contenders, and returns what must hold.
pub(crate) fn run(contenders: &[Contender]) -> Vec<Bar> {
    println!("\nMEMORY, resident, with 1M live keys of 13 bytes, each hit once");
    println!("{:<40}{:>12}{:>12}", "", "bytes/key", "/ governor");
    let bytes: Vec<f64> = contenders.iter().map(|contender| ask_child(&contender.name)).collect();
    let governor = bytes[position(contenders, GOVERNOR)];
    let ratios = || contenders.iter().zip(bytes.iter().map(|bytes| bytes / governor));
    for ((contender, ratio), bytes) in ratios().zip(&bytes) {
        println!("{:<40}{bytes:>12.1}{ratio:>12.2}", contender.name);
    }
    let bar = |(contender, ratio): (&Contender, f64)| {
        let algorithm = contender.algorithm?;
        let ceiling = ceiling(algorithm)?;
        Some(Bar { claim: format!("memory: {algorithm} / {GOVERNOR}"), ceiling, figures: vec![(String::new(), ratio)] })
    };
    ratios().filter_map(bar).collect()
}

/// One number per key is promised the most, two or three less, and a log nothing.
fn ceiling(algorithm: Algorithm) -> Option<f64> {
    match algorithm {
        Algorithm::Gcra => Some(0.7),
        Algorithm::FixedWindow | Algorithm::TokenBucket | Algorithm::SlidingCounter => Some(0.85),
        _ => None,
    }
}

fn ask_child(name: &str) -> f64 {
    let program = env::current_exe().expect("this program is a file");
    let output = Command::new(program).args([CHILD, name]).output().expect("this program starts");
    let answer = String::from_utf8_lossy(&output.stdout);
    answer.trim().parse().unwrap_or_else(|_| panic!("measuring {name}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The child's part: prints the bytes per key of one contender.
pub(crate) fn child(contender: &Contender) {
    let before = resident_bytes();
    let subject = (contender.build)();
    for n in 0..KEYS {
        subject.check(&cases::key(n));
    }
    let after = resident_bytes();
    println!("{}", (after - before) as f64 / KEYS as f64);
    drop(subject); // Not before it was measured.
}

fn resident_bytes() -> u64 {
    // Not `statm`, which counts in pages and does not say how large they are.
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux tells");
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
    kib * 1024
}
