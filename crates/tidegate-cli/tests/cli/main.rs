//! The command as a shell sees it.

mod config;
mod pressure;
mod running;
mod serve;
