//! What the Tidegate server is made of.
//!
//! [`config`] is what it is told, by a file, the environment and flags; [`reload`] keeps that up to date while it serves.

pub mod config;
pub mod reload;
