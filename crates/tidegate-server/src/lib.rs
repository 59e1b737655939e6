//! What the Tidegate server is made of.
//!
//! [`config`] is what it is told, by a file, the environment and flags; [`reload`] keeps that up to date while it serves; [`serve`] is
//! the serving; [`log`] is what it says of itself, and [`files`] how many connections it may have.

pub mod config;
pub mod files;
pub mod log;
mod object;
pub mod reload;
pub mod serve;
