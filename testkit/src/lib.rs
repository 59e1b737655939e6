//! Real parts for tests and benches: Redis servers on free ports of loopback, and a proxy that misbehaves on request.
//! It knows nothing of Tidegate, and panics with a reason where a part cannot be had. Linux only.

mod certificates;
mod proxy;
mod server;

pub use certificates::Certificates;
pub use proxy::Proxy;
pub use server::{Server, ServerBuilder};
