//! The command as a shell sees it.

mod ask;
mod config;
mod pressure;
mod running;
mod serve;
