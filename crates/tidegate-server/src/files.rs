//! How many files a process may have open, connections among them: shells and containers often begin with 1024.

use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};

/// Lets this process have `wanted` files open, or as many as the system lets it, which is told; nothing where that is not known.
pub fn make_room(wanted: u64) -> Option<u64> {
    let (soft, hard) = getrlimit(RLIMIT_NOFILE).ok()?;
    let wanted = wanted.min(hard);
    let has_more = soft < wanted && setrlimit(RLIMIT_NOFILE, wanted, hard).is_ok();
    Some(if has_more { wanted } else { soft })
}
