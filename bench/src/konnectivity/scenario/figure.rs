//! The figures of this harness, and which way each is better.

use crate::report::Figure;

/// Bytes that arrived, all streams together.
pub(crate) const THROUGHPUT: Figure = Figure::higher("throughput", "MiB/s");
pub(crate) const CPU_PER_GIB: Figure = Figure::lower("cpu server+agent", "s/GiB");
pub(crate) const PER_SECOND: Figure = Figure::higher("rate", "per s");
pub(crate) const P50: Figure = Figure::lower("p50", "µs");
pub(crate) const P99: Figure = Figure::lower("p99", "µs");
pub(crate) const MAX: Figure = Figure::lower("max", "µs");
pub(crate) const CPU_EACH: Figure = Figure::lower("cpu server+agent", "µs each");

pub(crate) const SERVER_EMPTY: Figure = Figure::lower("server empty", "MiB");
pub(crate) const AGENT_EMPTY: Figure = Figure::lower("agent empty", "MiB");
pub(crate) const SERVER_TUNNEL: Figure = Figure::lower("server per tunnel", "KiB");
pub(crate) const AGENT_TUNNEL: Figure = Figure::lower("agent per tunnel", "KiB");
pub(crate) const SERVER_GROWTH: Figure = Figure::lower("server grew by", "MiB");
pub(crate) const AGENT_GROWTH: Figure = Figure::lower("agent grew by", "MiB");

pub(crate) const OTHERS_P50: Figure = Figure::lower("others' rtt p50", "µs");
pub(crate) const OTHERS_P99: Figure = Figure::lower("others' rtt p99", "µs");
pub(crate) const OTHERS_MAX: Figure = Figure::lower("others' rtt max", "µs");
pub(crate) const DIALS_P50: Figure = Figure::lower("new dials p50", "µs");
pub(crate) const DIALS_P99: Figure = Figure::lower("new dials p99", "µs");
pub(crate) const DIALS_MAX: Figure = Figure::lower("new dials max", "µs");
pub(crate) const UNANSWERED: Figure = Figure::lower("without answer", "count");

/// Pieces of 4 KiB that a hostile agent could send, and over how many connections.
pub(crate) const FLOOD: Figure = Figure::lower("flood accepted", "per s");
pub(crate) const LINKS: Figure = Figure::lower("flood connections", "count");
pub(crate) const STRANGER_CPU: Figure = Figure::lower("cpu server", "µs each");
pub(crate) const STRANGER_MEMORY: Figure = Figure::lower("memory server", "KiB each");
pub(crate) const CPU_BOTH: Figure = Figure::lower("cpu server+agent", "s");

/// Time from the clients' end until the destination had no connection left.
pub(crate) const CALM_AFTER: Figure = Figure::lower("all closed after", "s");
/// Connections to the destination that no tunnel belongs to any more.
pub(crate) const LEAKED: Figure = Figure::lower("connections leaked", "count");
pub(crate) const PENDING: Figure = Figure::lower("dials left pending", "count");
pub(crate) const ESTABLISHED: Figure = Figure::lower("tunnels left", "count");
pub(crate) const SERVER_FDS: Figure = Figure::lower("server's descriptors", "more");
pub(crate) const AGENT_FDS: Figure = Figure::lower("agent's descriptors", "more");
