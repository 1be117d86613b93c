//! The metrics of a tunnel: totals and gauges as the data thread last published them.
//!
//! ```text
//!   engine, filter, sockets, streams ── every 250 ms ──▶ Totals ── at a scrape ──▶ series
//! ```
//!
//! Counting costs the data path plain additions; nothing is shared with it but what is published.
//! Peers that are gone have no series.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telemetry::Registry;
use telemetry::metrics::{Encoder, Kind};
use tunnel_proto::filter::Filter;
use tunnel_proto::path::Transport;

use crate::engine::Counts;
use crate::status::{Status, transport_name};

use super::ports::Ports;

/// What was counted since the start, and what is known now.
#[derive(Debug, Default)]
struct Totals {
    counts: Counts,
    dropped: BTreeMap<&'static str, u64>,
    closed: BTreeMap<&'static str, u64>,
    fallbacks: BTreeMap<&'static str, u64>,
    calls: BTreeMap<&'static str, u64>,
    flows: usize,
    evicted: u64,
    status: Status,
}

/// Collects what scrapes read.
#[derive(Debug)]
pub(super) struct Counters(Arc<Mutex<Totals>>);

impl Counters {
    /// Registers the families.
    pub(super) fn new(registry: &Registry) -> Self {
        let totals = Arc::new(Mutex::new(Totals::default()));
        let scraped = Self(Arc::clone(&totals));
        registry.collect(move |out| {
            let totals = scraped.totals();
            write_totals(out, &totals);
            write_peers(out, &totals.status);
        });
        Self(totals)
    }

    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a link that the engine closed, or a stream that ended by itself.
    pub(super) fn link_closed(&self, reason: &'static str) {
        *self.totals().closed.entry(reason).or_default() += 1;
    }

    /// Brings everything up to date.
    pub(super) fn publish(
        &self,
        counts: &Counts,
        filter: Option<&Filter>,
        ports: &mut Ports,
        status: &Status,
    ) {
        let totals = &mut *self.totals();
        totals.counts = counts.clone();
        totals.status = status.clone();
        totals.flows = filter.map_or(0, Filter::len);
        totals.evicted = filter.map_or(0, Filter::evicted);
        let dropped = &mut totals.dropped;
        dropped.extend(counts.dropped());
        for ((_, reason), count) in filter.into_iter().flat_map(Filter::refused) {
            dropped.insert(reason, count);
        }
        dropped.extend(ports.queue_drops());
        dropped.insert("untrusted_gateway", ports.untrusted);
        dropped.insert("not_wrapped", ports.not_wrapped);
        dropped.insert("device_header", ports.broken);
        let (sent, written) = (ports.take_tally(), ports.take_written());
        let add = |map: &mut BTreeMap<_, u64>, key, count| *map.entry(key).or_default() += count;
        add(dropped, "socket_full", sent.blocked);
        add(dropped, "socket_too_large", sent.too_large);
        add(dropped, "socket_failed", sent.failed);
        add(dropped, "device_full", written.blocked);
        add(dropped, "device_failed", written.failed);
        add(&mut totals.fallbacks, "udp_gso", sent.gso_refused);
        add(&mut totals.fallbacks, "device_joined", written.join_refused);
        add(&mut totals.calls, "send", sent.messages);
        add(&mut totals.calls, "device_write", written.writes);
    }
}

fn write_totals(out: &mut Encoder, totals: &Totals) {
    let (rx, tx) = (totals.counts.opened, totals.counts.sealed);
    let all = |counts: &BTreeMap<&'static str, u64>| -> Vec<_> {
        let counts = counts.iter();
        counts.map(|(value, count)| (*value, *count)).collect()
    };
    let labeled = [
        (
            "rhizome_tunnel_bytes_total",
            "Bytes of inner packets; rx: out of the tunnel, to the device.",
            "direction",
            vec![("rx", rx.bytes), ("tx", tx.bytes)],
        ),
        (
            "rhizome_tunnel_packets_total",
            "Inner packets; rx: out of the tunnel, to the device.",
            "direction",
            vec![("rx", rx.packets), ("tx", tx.packets)],
        ),
        (
            "rhizome_tunnel_dropped_total",
            "Dropped packets and datagrams, by reason.",
            "reason",
            all(&totals.dropped),
        ),
        (
            "rhizome_tunnel_links_closed_total",
            "Links closed, by reason.",
            "reason",
            all(&totals.closed),
        ),
        (
            "rhizome_tunnel_offload_fallbacks_total",
            "Offloads that the kernel refused and that are disabled since.",
            "offload",
            all(&totals.fallbacks),
        ),
        (
            "rhizome_tunnel_system_calls_total",
            "System calls that sent datagrams or wrote packets.",
            "call",
            all(&totals.calls),
        ),
    ];
    for (name, help, label, values) in labeled {
        out.family(name, help, Kind::Counter, |family| {
            family.labels(&[label]);
            for (value, count) in values {
                family.sample(&[(label, value)], count);
            }
        });
    }
    out.value(
        "rhizome_tunnel_flows_evicted_total",
        "Flows evicted from a full table for new ones.",
        Kind::Counter,
        totals.evicted,
    );
    out.value(
        "rhizome_tunnel_handshakes_total",
        "Handshakes completed or answered.",
        Kind::Counter,
        totals.counts.handshakes,
    );
    out.value(
        "rhizome_tunnel_path_changes_total",
        "Changes of the link in use of a peer.",
        Kind::Counter,
        totals.counts.path_changes,
    );
    out.value(
        "rhizome_tunnel_flows",
        "Flows in the filter's table; servers only.",
        Kind::Gauge,
        totals.flows,
    );
}

fn write_peers(out: &mut Encoder, status: &Status) {
    type Value = fn(&crate::PeerStatus) -> Option<f64>;
    let gauges: [(&str, &str, Value); 6] = [
        (
            "rhizome_tunnel_peer_handshake_age_seconds",
            "Age of the session in use; none without a session.",
            |peer| peer.handshake_age.map(|age| age.as_secs_f64()),
        ),
        (
            "rhizome_tunnel_peer_flows",
            "Open flows by this peer.",
            |peer| Some(f64::from(peer.flows)),
        ),
        (
            "rhizome_tunnel_peer_loss_ratio",
            "Share of the last 128 probes by the link in use that went unanswered, 0 to 1.",
            |peer| Some(peer.loss),
        ),
        (
            "rhizome_tunnel_peer_mtu_bytes",
            "The largest inner packet to this peer.",
            |peer| Some(f64::from(peer.mtu)),
        ),
        (
            "rhizome_tunnel_peer_rtt_seconds",
            "Smoothed round trip through the tunnel; none before the first answer.",
            |peer| peer.rtt.map(|rtt| rtt.as_secs_f64()),
        ),
        (
            "rhizome_tunnel_peer_up",
            "1 while probes through the tunnel are answered, else 0.",
            |peer| Some(f64::from(u8::from(peer.healthy))),
        ),
    ];
    for (name, help, value) in gauges {
        out.family(name, help, Kind::Gauge, |family| {
            family.labels(&["peer"]);
            for peer in &status.peers {
                if let Some(value) = value(peer) {
                    family.sample(&[("peer", &peer.name)], value);
                }
            }
        });
    }
    out.family(
        "rhizome_tunnel_peer_transport",
        "Which transport is in use: 1 for that one.",
        Kind::Gauge,
        |family| {
            family.labels(&["peer", "transport"]);
            for peer in &status.peers {
                for transport in [Transport::Tcp, Transport::Udp] {
                    let name = transport_name(transport);
                    let used = u64::from(peer.transport == Some(transport));
                    family.sample(&[("peer", &peer.name), ("transport", name)], used);
                }
            }
        },
    );
}
