//! The figures of connections, and which way each is better.

use crate::report::Figure;

pub(crate) const PER_SECOND: Figure = Figure::higher("rate", "per s");
pub(crate) const CPU_EACH: Figure = Figure::lower("proxy cpu each", "µs");
pub(crate) const ALL_CPU_EACH: Figure = Figure::lower("all cpu each", "µs");
pub(crate) const P50: Figure = Figure::lower("p50", "µs");
pub(crate) const P99: Figure = Figure::lower("p99", "µs");
pub(crate) const MAX: Figure = Figure::lower("max", "µs");
pub(crate) const FAILED: Figure = Figure::lower("failed", "count");
pub(crate) const PROXY_BUSY: Figure = Figure::lower("proxy busy", "%");
pub(crate) const THROUGHPUT: Figure = Figure::higher("throughput", "Gb/s");
pub(crate) const CPU_PER_GB: Figure = Figure::lower("proxy cpu", "s/GB");
pub(crate) const ALL_CPU_PER_GB: Figure = Figure::lower("all cpu", "s/GB");
pub(crate) const EMPTY: Figure = Figure::lower("resident empty", "MiB");
pub(crate) const HELD: Figure = Figure::lower("resident held", "MiB");
pub(crate) const PER_CONNECTION: Figure = Figure::lower("memory each", "KiB");
pub(crate) const KEPT: Figure = Figure::lower("kept of it", "KiB");
pub(crate) const IDLE_BUSY: Figure = Figure::lower("idle busy", "%");
