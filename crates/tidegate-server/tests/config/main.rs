//! Configuration files as people write them: what is right, what is wrong, and what is said of it.

mod mistakes;
mod reference;
mod starter;

use std::{env, fs, path::Path};

/// Compares `text` with what is in a file of the repository; writes it there if `TIDEGATE_BLESS` is set.
fn check_file(path: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, text).expect("it can be written");
    }
    let there = fs::read_to_string(&path).expect("it can be read");
    assert!(there == text, "{} is not up to date; TIDEGATE_BLESS=1 writes it, then look at the difference", path.display());
}
