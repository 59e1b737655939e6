//! A rate limiter.

mod algorithm;
mod clock;
mod decision;
mod error;
mod hit;
mod key;
mod limiter;
mod policy;
mod quota;
mod receipt;
mod set;
mod store;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use clock::{Clock, ManualClock, SystemClock};
pub use decision::{Decision, Outcome};
pub use error::{ConfigError, QuotaError, ReceiptError};
pub use hit::Hit;
pub use limiter::{Builder, Limiter, Usage};
pub use policy::{Condition, Mode, Network, NetworkError, Override, Policy};
pub use quota::Quota;
pub use receipt::Receipt;
pub use store::Source;
