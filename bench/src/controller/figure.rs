//! The figures of the controller, and which way each is better.

use crate::samples::Figure;

/// Start of the controller until all is written or known.
pub(crate) const TOOK: Figure = Figure::lower("time", "s");
/// Objects written in that time.
pub(crate) const WRITES: Figure = Figure::higher("writes", "per s");
/// Writes that nothing called for, or that failed.
pub(crate) const NEEDLESS: Figure = Figure::lower("writes not due", "count");
/// CPU time of the API server meanwhile.
pub(crate) const CPU_SERVER: Figure = Figure::lower("cpu API server", "s");
/// CPU time of the controller meanwhile.
pub(crate) const CPU: Figure = Figure::lower("cpu controller", "s");
/// Resident memory afterwards.
pub(crate) const RESIDENT: Figure = Figure::lower("controller resident", "MiB");
/// The most resident memory so far.
pub(crate) const PEAK: Figure = Figure::lower("controller at most", "MiB");
/// From the request until it is in effect.
pub(crate) const DELAY_P50: Figure = Figure::lower("delay p50", "ms");
/// As above.
pub(crate) const DELAY_P99: Figure = Figure::lower("delay p99", "ms");
/// As above.
pub(crate) const DELAY_MAX: Figure = Figure::lower("delay max", "ms");
/// From a gateway's start until it is ready.
pub(crate) const SYNC: Figure = Figure::lower("start to ready", "ms");
/// What was sent to the gateway for it.
pub(crate) const BYTES: Figure = Figure::lower("sent to the gateway", "bytes");
/// CPU time of the controller for one change.
pub(crate) const CPU_EACH: Figure = Figure::lower("cpu controller", "ms each");
/// CPU time of the gateway for one change.
pub(crate) const CPU_GATEWAY_EACH: Figure = Figure::lower("cpu gateway", "ms each");
/// CPU time of the gateway until it was ready.
pub(crate) const CPU_GATEWAY: Figure = Figure::lower("cpu gateway", "s");
/// Resident memory of the gateway.
pub(crate) const GATEWAY_RESIDENT: Figure = Figure::lower("gateway resident", "MiB");
/// The most resident memory of the gateway.
pub(crate) const GATEWAY_PEAK: Figure = Figure::lower("gateway at most", "MiB");
/// Connections that are held, through all gateways.
pub(crate) const HELD: Figure = Figure::higher("connections held", "count");
/// How often each of them carried a byte there and back.
pub(crate) const PROBES: Figure = Figure::higher("probes of each", "count");
/// The longest that one of them waited for its byte.
pub(crate) const LONGEST: Figure = Figure::lower("longest round trip", "ms");
/// New connections meanwhile, through one gateway.
pub(crate) const NEW: Figure = Figure::higher("new connections", "per s");
/// Held ones that ended, and new ones that failed.
pub(crate) const LOST: Figure = Figure::lower("connections lost", "count");
/// Changes written to the API server.
pub(crate) const CHANGES: Figure = Figure::higher("changes", "per s");
/// Resident memory of one gateway without connections.
pub(crate) const GATEWAY_EMPTY: Figure = Figure::lower("gateway without connections", "MiB");
/// What connections add to it.
pub(crate) const PER_10K: Figure = Figure::lower("gateway, each 10,000 held", "MiB");
/// CPU time of one gateway.
pub(crate) const CPU_GATEWAY_SHARE: Figure = Figure::lower("cpu gateway", "% of one");
/// CPU time of the controller.
pub(crate) const CPU_SHARE: Figure = Figure::lower("cpu controller", "% of one");
/// CPU time of the API server, without its etcd.
pub(crate) const CPU_SERVER_SHARE: Figure = Figure::lower("cpu API server", "% of one");
