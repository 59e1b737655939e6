//! Real parts for tests and benches: Redis servers on free ports of loopback, a proxy that misbehaves on request,
//! examples that are run, and any other process.
//! It knows nothing of Tidegate, and panics with a reason where a part cannot be had. Linux only.

mod certificates;
mod example;
pub mod process;
mod proxy;
mod server;

pub use certificates::Certificates;
pub use example::Example;
pub use proxy::Proxy;
pub use server::{Server, ServerBuilder};
