//! The figures of this harness, and which way each is better.

use crate::samples::Figure;

/// Bytes that arrived, all streams together.
pub(crate) const THROUGHPUT: Figure = Figure::higher("throughput", "MiB/s");
/// CPU time of server and agent together.
pub(crate) const CPU_PER_GIB: Figure = Figure::lower("cpu server+agent", "s/GiB");
/// Round trips or dials.
pub(crate) const PER_SECOND: Figure = Figure::higher("rate", "per s");
/// The latency half of them keep to.
pub(crate) const P50: Figure = Figure::lower("p50", "µs");
/// The latency 99 of 100 keep to.
pub(crate) const P99: Figure = Figure::lower("p99", "µs");
/// The worst latency.
pub(crate) const MAX: Figure = Figure::lower("max", "µs");
/// CPU time of server and agent together, for one round trip or dial.
pub(crate) const CPU_EACH: Figure = Figure::lower("cpu server+agent", "µs each");

/// Resident memory of a fresh server.
pub(crate) const SERVER_EMPTY: Figure = Figure::lower("server empty", "MiB");
/// Resident memory of a fresh agent.
pub(crate) const AGENT_EMPTY: Figure = Figure::lower("agent empty", "MiB");
/// What one tunnel adds to the server.
pub(crate) const SERVER_TUNNEL: Figure = Figure::lower("server per tunnel", "KiB");
/// What one tunnel adds to the agent.
pub(crate) const AGENT_TUNNEL: Figure = Figure::lower("agent per tunnel", "KiB");
/// What the server has grown by.
pub(crate) const SERVER_GROWTH: Figure = Figure::lower("server grew by", "MiB");
/// What the agent has grown by.
pub(crate) const AGENT_GROWTH: Figure = Figure::lower("agent grew by", "MiB");

/// Round trips of tunnels that are not stalled.
pub(crate) const OTHERS_P50: Figure = Figure::lower("others' rtt p50", "µs");
/// As above.
pub(crate) const OTHERS_P99: Figure = Figure::lower("others' rtt p99", "µs");
/// As above.
pub(crate) const OTHERS_MAX: Figure = Figure::lower("others' rtt max", "µs");
/// New dials while others are stalled.
pub(crate) const DIALS_P50: Figure = Figure::lower("new dials p50", "µs");
/// As above.
pub(crate) const DIALS_P99: Figure = Figure::lower("new dials p99", "µs");
/// As above.
pub(crate) const DIALS_MAX: Figure = Figure::lower("new dials max", "µs");
/// Operations without an answer.
pub(crate) const UNANSWERED: Figure = Figure::lower("without answer", "count");

/// Time from the clients' end until the destination had no connection left.
pub(crate) const CALM_AFTER: Figure = Figure::lower("all closed after", "s");
/// Connections to the destination that no tunnel belongs to any more.
pub(crate) const LEAKED: Figure = Figure::lower("connections leaked", "count");
/// The server's gauge of dials without an answer, once it is calm.
pub(crate) const PENDING: Figure = Figure::lower("dials left pending", "count");
/// The server's gauge of tunnels, once it is calm.
pub(crate) const ESTABLISHED: Figure = Figure::lower("tunnels left", "count");
/// The server's descriptors, against before.
pub(crate) const SERVER_FDS: Figure = Figure::lower("server's descriptors", "more");
/// The agent's descriptors, against before.
pub(crate) const AGENT_FDS: Figure = Figure::lower("agent's descriptors", "more");
