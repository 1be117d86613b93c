//! The figures of connections, and which way each is better.

use crate::samples::Figure;

/// New connections, handshakes, requests or round trips.
pub(crate) const PER_SECOND: Figure = Figure::higher("rate", "per s");
/// CPU time of the proxy for each of them.
pub(crate) const CPU_EACH: Figure = Figure::lower("proxy cpu each", "µs");
/// CPU time of the whole machine for each of them.
pub(crate) const ALL_CPU_EACH: Figure = Figure::lower("all cpu each", "µs");
/// Half of them took no longer.
pub(crate) const P50: Figure = Figure::lower("p50", "µs");
/// 99 of 100 took no longer.
pub(crate) const P99: Figure = Figure::lower("p99", "µs");
/// The longest.
pub(crate) const MAX: Figure = Figure::lower("max", "µs");
/// Those that did not end well.
pub(crate) const FAILED: Figure = Figure::lower("failed", "count");
/// What of one processor the proxy had: well below 100, and the load was the limit.
pub(crate) const PROXY_BUSY: Figure = Figure::lower("proxy busy", "%");
/// What arrived.
pub(crate) const THROUGHPUT: Figure = Figure::higher("throughput", "Gb/s");
/// CPU time of the proxy for 10⁹ bytes.
pub(crate) const CPU_PER_GB: Figure = Figure::lower("proxy cpu", "s/GB");
/// CPU time of the whole machine for 10⁹ bytes.
pub(crate) const ALL_CPU_PER_GB: Figure = Figure::lower("all cpu", "s/GB");
/// Resident memory of the proxy's processes without connections.
pub(crate) const EMPTY: Figure = Figure::lower("resident empty", "MiB");
/// Resident memory of the proxy's processes with all of them.
pub(crate) const HELD: Figure = Figure::lower("resident held", "MiB");
/// What each one added.
pub(crate) const PER_CONNECTION: Figure = Figure::lower("memory each", "KiB");
/// What of that was still there once they were closed.
pub(crate) const KEPT: Figure = Figure::lower("kept of it", "KiB");
/// What of one processor the proxy had while nothing was sent.
pub(crate) const IDLE_BUSY: Figure = Figure::lower("idle busy", "%");
