//! The figures of tables, and which way each is better.

use crate::report::Figure;

/// From its start until the last name of the table answers.
pub(crate) const START: Figure = Figure::lower("start", "ms");
/// CPU time until then.
pub(crate) const START_CPU: Figure = Figure::lower("cpu of the start", "s");
pub(crate) const RESIDENT: Figure = Figure::lower("resident", "MiB");
/// From when a file with one more name is put in place, or a message sent, until the name answers.
pub(crate) const APPLY: Figure = Figure::lower("apply one more name", "ms");
/// CPU time until then, with that of pings and probes.
pub(crate) const APPLY_CPU: Figure = Figure::lower("cpu of the apply", "ms");
/// Resident memory of all processes afterwards, old ones that still have connections included.
pub(crate) const RESIDENT_AFTER: Figure = Figure::lower("resident after apply", "MiB");
pub(crate) const PROCESSES: Figure = Figure::lower("processes after apply", "count");
pub(crate) const STALL: Figure = Figure::lower("longest stall", "ms");
pub(crate) const LOST: Figure = Figure::lower("connections lost", "count");
/// One name after the other, each when the one before answers.
pub(crate) const CHANGES: Figure = Figure::higher("changes", "per s");
pub(crate) const CPU_EACH: Figure = Figure::lower("cpu per connection", "µs");
pub(crate) const CONNECTIONS: Figure = Figure::higher("connections", "per s");
pub(crate) const IDLE: Figure = Figure::lower("memory per idle connection", "KiB");
/// How much more a connection takes than with the smallest table of the run.
pub(crate) const CPU_MORE: Figure = Figure::lower("cpu per connection, more", "%");
pub(crate) const IDLE_MORE: Figure = Figure::lower("memory per idle connection, more", "%");
