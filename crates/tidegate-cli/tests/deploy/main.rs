//! What is in `deploy/`, and the `Dockerfile`: used as they are, by the programs that they are for.

mod files;
mod proxies;
mod site;

use std::path::{Path, PathBuf};

/// A path in the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
