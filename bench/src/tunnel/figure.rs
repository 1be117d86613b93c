//! The figures of tunnels, and which way each is better.

use crate::report::Figure;

/// Start of the near end until the first ping came back.
pub(crate) const CONNECT: Figure = Figure::lower("start to first ping", "ms");
/// Pings one after the other through the otherwise idle tunnel.
pub(crate) const TURN_P50: Figure = Figure::lower("pings in turn p50", "µs");
pub(crate) const TURN_P99: Figure = Figure::lower("pings in turn p99", "µs");
/// Now and then a ping, each 10 ms: processors sleep or do something else meanwhile.
pub(crate) const IDLE_P50: Figure = Figure::lower("ping each 10 ms p50", "µs");
pub(crate) const IDLE_P99: Figure = Figure::lower("ping each 10 ms p99", "µs");
pub(crate) const SERVER_IDLE: Figure = Figure::lower("server resident", "MiB");
pub(crate) const CLIENT_IDLE: Figure = Figure::lower("client resident", "MiB");
pub(crate) const GATEWAY_IDLE: Figure = Figure::lower("gateway resident", "MiB");
/// What arrived, all streams together.
pub(crate) const THROUGHPUT: Figure = Figure::higher("throughput", "Mb/s");
/// Of what arrived by the tunnel and its neighbor, that of the one who got less.
pub(crate) const SHARE: Figure = Figure::higher("smaller share", "%");
pub(crate) const CPU_ENDS: Figure = Figure::lower("cpu of both ends", "s/GB");
pub(crate) const CPU_ALL: Figure = Figure::lower("cpu with gateway", "s/GB");
/// Segments of the inner streams that were sent again.
pub(crate) const RETRANSMITS: Figure = Figure::lower("sent again", "segments");
pub(crate) const LOADED_P50: Figure = Figure::lower("ping meanwhile p50", "ms");
pub(crate) const LOADED_P99: Figure = Figure::lower("ping meanwhile p99", "ms");
pub(crate) const LOADED_MAX: Figure = Figure::lower("ping meanwhile max", "ms");
pub(crate) const LOADED_LOST: Figure = Figure::lower("pings lost", "%");
/// Messages within a plain connection that is always full, and the reverse path.
pub(crate) const INSIDE_P50: Figure = Figure::lower("message within p50", "ms");
pub(crate) const INSIDE_P99: Figure = Figure::lower("message within p99", "ms");
pub(crate) const INSIDE_MAX: Figure = Figure::lower("message within max", "ms");
