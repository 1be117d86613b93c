//! The figures of the controller, and which way each is better.

use crate::report::Figure;

/// Start of the controller until all is written or known.
pub(crate) const TOOK: Figure = Figure::lower("time", "s");
pub(crate) const WRITES: Figure = Figure::higher("writes", "per s");
/// Writes that nothing called for, or that failed.
pub(crate) const NEEDLESS: Figure = Figure::lower("writes not due", "count");
pub(crate) const CPU_SERVER: Figure = Figure::lower("cpu API server", "s");
pub(crate) const CPU: Figure = Figure::lower("cpu controller", "s");
pub(crate) const RESIDENT: Figure = Figure::lower("controller resident", "MiB");
pub(crate) const PEAK: Figure = Figure::lower("controller at most", "MiB");
/// From the request until it is in effect.
pub(crate) const DELAY_P50: Figure = Figure::lower("delay p50", "ms");
pub(crate) const DELAY_P99: Figure = Figure::lower("delay p99", "ms");
pub(crate) const DELAY_MAX: Figure = Figure::lower("delay max", "ms");
/// From a gateway's start until it is ready.
pub(crate) const SYNC: Figure = Figure::lower("start to ready", "ms");
pub(crate) const BYTES: Figure = Figure::lower("sent to the gateway", "bytes");
pub(crate) const CPU_EACH: Figure = Figure::lower("cpu controller", "ms each");
pub(crate) const CPU_GATEWAY_EACH: Figure = Figure::lower("cpu gateway", "ms each");
/// CPU time of the gateway until it was ready.
pub(crate) const CPU_GATEWAY: Figure = Figure::lower("cpu gateway", "s");
pub(crate) const GATEWAY_RESIDENT: Figure = Figure::lower("gateway resident", "MiB");
pub(crate) const GATEWAY_PEAK: Figure = Figure::lower("gateway at most", "MiB");
pub(crate) const HELD: Figure = Figure::higher("connections held", "count");
pub(crate) const PROBES: Figure = Figure::higher("probes of each", "count");
pub(crate) const LONGEST: Figure = Figure::lower("longest round trip", "ms");
pub(crate) const NEW: Figure = Figure::higher("new connections", "per s");
pub(crate) const LOST: Figure = Figure::lower("connections lost", "count");
pub(crate) const CHANGES: Figure = Figure::higher("changes", "per s");
pub(crate) const GATEWAY_EMPTY: Figure = Figure::lower("gateway without connections", "MiB");
pub(crate) const PER_10K: Figure = Figure::lower("gateway, each 10,000 held", "MiB");
pub(crate) const CPU_GATEWAY_SHARE: Figure = Figure::lower("cpu gateway", "% of one");
pub(crate) const CPU_SHARE: Figure = Figure::lower("cpu controller", "% of one");
/// CPU time of the API server, without its etcd.
pub(crate) const CPU_SERVER_SHARE: Figure = Figure::lower("cpu API server", "% of one");
