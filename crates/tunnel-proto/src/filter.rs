//! Lets the near side open connections through the tunnel, and the far side only answer.
//!
//! ```text
//! near (control plane) ──▶ outbound: opens or continues a flow, picks its peer ─▶ tunnel
//! near ◀── inbound: only packets of known flows, and ICMP errors about them ◀───── tunnel
//! ```
//!
//! Flows are TCP, UDP and ICMP echo, over IPv4 and IPv6. Only a packet of the near side makes one.
//! Decisions that are not obvious:
//!
//! - **TCP.** A SYN without ACK never comes in, not even on a known flow. A flow in the middle
//!   (after a restart, or longer idle than its time-out) is picked up when the *near* side sends
//!   on it. Sequence numbers are not tracked: only the other end could forge them.
//! - **UDP** flows are kept alive by the near side only, so that the far side cannot hold a port
//!   open that its owner has given up.
//! - **Fragments.** A first fragment must hold all of the transport header and is judged like a
//!   packet; later ones pass if their first one did, and do not reach into its bytes (RFC 1858,
//!   RFC 3128, RFC 5722). They must come after it: out of order they are refused.
//! - **ICMP errors** come in when the packet they quote went out on a known flow from the address
//!   the error is sent to. They change nothing about the flow. Redirects never come in.
//! - **Source routes**, IPv6 routing headers with hops to go, and addresses that no packet has
//!   (IPv4-mapped, loopback, multicast, unspecified) are refused both ways, and so is every other
//!   protocol.
//! - **Full table.** The oldest closed flow is evicted, else the oldest one that is still opening
//!   (which no answer confirmed); established ones never, so then the new flow is refused.
//!
//! Which peer may send as which address is [`crate::allowed`]'s question. Nothing is translated,
//! answered or reassembled.

mod flow;
mod fragments;
mod table;

use std::time::Instant;

use crate::allowed::PeerIndex;
use crate::ip::transport::{Icmp, Tcp};
use crate::ip::{Header, Version, protocol};

pub use flow::FlowKey;
use flow::{Phase, is_impossible};
use fragments::Fragments;
use table::Table;

/// Bounds of a [`Filter`].
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// Flows held at most, about 90 bytes each when they are there; at most 16,777,216.
    pub max_flows: usize,
    /// Fragmented packets tracked at most, for each direction.
    pub max_fragmented: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            max_flows: 65_536,
            max_fragmented: 256,
        }
    }
}

/// What is known of a flow before one of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// The peer it has.
    pub peer: PeerIndex,
    /// Whether the far side has ever answered by that peer; an ICMP echo counts as unanswered.
    pub answered: bool,
}

/// The filter of one tunnel device.
#[derive(Debug)]
pub struct Filter {
    flows: Table,
    sent: Fragments,
    received: Fragments,
    refused: [u64; Refusal::ALL.len()],
}

impl Filter {
    /// Returns a filter that knows no flow. `secret` is a random number that keeps others from
    /// aiming at one place of the table; `now` is the earliest time of any call.
    #[must_use]
    pub fn new(params: Params, secret: u64, now: Instant) -> Self {
        let fragments = || Fragments::new(params.max_fragmented);
        Self {
            flows: Table::new(&params, secret, now),
            sent: fragments(),
            received: fragments(),
            refused: [0; Refusal::ALL.len()],
        }
    }

    /// Judges a packet of the near side and returns the peer of its flow.
    ///
    /// `choose` is asked for the peer, with the flow and what is known of it so far; answering
    /// another peer moves the flow, answering none refuses the packet.
    ///
    /// # Errors
    ///
    /// The [`Refusal`]; it is counted.
    pub fn outbound(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
        choose: impl FnOnce(&FlowKey, Option<Before>) -> Option<PeerIndex>,
    ) -> Result<PeerIndex, Refusal> {
        let verdict = self.judge_outbound(now, header, packet, choose);
        self.flows.sweep(now, SWEEP);
        self.count(verdict)
    }

    /// Judges a packet of the far side.
    ///
    /// # Errors
    ///
    /// The [`Refusal`]; it is counted.
    pub fn inbound(&mut self, now: Instant, header: &Header, packet: &[u8]) -> Result<(), Refusal> {
        let verdict = self.judge_inbound(now, header, packet);
        self.flows.sweep(now, SWEEP);
        self.count(verdict)
    }

    /// Forgets flows whose time is over, looking at no more than `budget` of each kind. Packets do
    /// this as they pass; a timer may while there are none.
    pub fn sweep(&mut self, now: Instant, budget: usize) {
        self.flows.sweep(now, budget);
    }

    /// Returns the number of flows in the table, those whose time is over and that were not swept
    /// yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether no flow is in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of TCP connections of a peer that are not closed: what a drain waits for.
    #[must_use]
    pub fn open_flows(&self, peer: PeerIndex) -> u32 {
        self.flows.open_of(peer)
    }

    /// Returns the number of flows evicted for others.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.flows.evicted()
    }

    /// Returns how often each of [`Refusal::ALL`] happened.
    pub fn refused(&self) -> impl Iterator<Item = ((Refusal, &'static str), u64)> + '_ {
        Refusal::ALL.into_iter().zip(self.refused)
    }

    fn count<T>(&mut self, verdict: Result<T, Refusal>) -> Result<T, Refusal> {
        if let Err(refusal) = &verdict
            && let Some(count) = self.refused.get_mut(*refusal as usize)
        {
            *count += 1;
        }
        verdict
    }

    fn judge_outbound(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
        choose: impl FnOnce(&FlowKey, Option<Before>) -> Option<PeerIndex>,
    ) -> Result<PeerIndex, Refusal> {
        check_addresses(header)?;
        if !header.has_transport_header() {
            return self.sent.later(now, header);
        }
        if let Some((quoted, bytes)) = quoted(header, packet)? {
            let key = FlowKey::of_inbound(&quoted, bytes).ok_or(Refusal::Related)?;
            let flow = self.flows.find(now, &key).ok_or(Refusal::Related)?;
            let answered = true; // an error is about what came
            let before = Before {
                peer: flow.peer,
                answered,
            };
            return choose(&key, Some(before)).ok_or(Refusal::NoPeer);
        }
        let key =
            FlowKey::of_outbound(header, packet).ok_or_else(|| why_no_flow(header, packet))?;
        let before = self.flows.find(now, &key);
        let phase = before.map(|flow| flow.phase);
        let next = match key.protocol {
            protocol::TCP => Phase::tcp_outbound(phase, tcp_flags(header, packet)?)?,
            protocol::UDP => Phase::udp_outbound(phase),
            _ => Phase::Echo,
        };
        let before_it = before.map(|flow| Before {
            peer: flow.peer,
            answered: flow.phase.is_answered(),
        });
        let peer = choose(&key, before_it).ok_or(Refusal::NoPeer)?;
        self.flows.put(now, key, next, peer)?;
        if header.fragment.is_some() {
            self.sent.first(now, header, peer);
        }
        Ok(peer)
    }

    fn judge_inbound(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
    ) -> Result<(), Refusal> {
        check_addresses(header)?;
        if !header.has_transport_header() {
            return self.received.later(now, header).map(|_| ());
        }
        if let Some((quoted, bytes)) = quoted(header, packet)? {
            let key = FlowKey::of_outbound(&quoted, bytes);
            let known = quoted.src == header.dst
                && key.is_some_and(|key| self.flows.find(now, &key).is_some());
            return if known { Ok(()) } else { Err(Refusal::Related) };
        }
        let key = FlowKey::of_inbound(header, packet).ok_or_else(|| why_no_flow(header, packet))?;
        let flags = match key.protocol {
            protocol::TCP => tcp_flags(header, packet)?,
            _ => 0,
        };
        if key.protocol == protocol::TCP {
            flow::check_inbound_flags(flags)?;
        }
        let flow = self.flows.find(now, &key).ok_or(Refusal::NoFlow)?;
        let (next, alive) = match key.protocol {
            protocol::TCP => flow.phase.tcp_inbound(flags)?,
            protocol::UDP => (Phase::UdpAnswered, false),
            _ => (Phase::Echo, false),
        };
        self.flows.answered(now, &flow, next, alive);
        if header.fragment.is_some() {
            self.received.first(now, header, flow.peer);
        }
        Ok(())
    }
}

/// Returns the header of the packet that an ICMP error quotes, and its bytes; `None` when the packet is
/// no error.
fn quoted<'a>(header: &Header, packet: &'a [u8]) -> Result<Option<(Header, &'a [u8])>, Refusal> {
    let icmp = match (header.version, header.protocol) {
        (Version::V4, protocol::ICMP) | (Version::V6, protocol::ICMPV6) => {
            Icmp::new(header.segment(packet)).ok_or(Refusal::Malformed)?
        }
        _ => return Ok(None),
    };
    let is_error = match header.version {
        Version::V4 => matches!(icmp.kind, 3 | 11 | 12), // RFC 792, without quench and redirect
        Version::V6 => matches!(icmp.kind, 1..=4),       // RFC 4443 §2.1
    };
    if !is_error {
        return Ok(None);
    }
    let quoted = Header::parse_quoted(icmp.body).map_err(|_| Refusal::Malformed)?;
    let fits = header.fragment.is_none()
        && quoted.version == header.version
        && quoted.has_transport_header()
        && !quoted.source_routed;
    if !fits {
        return Err(Refusal::Malformed);
    }
    Ok(Some((quoted, icmp.body)))
}

/// The flags of a TCP segment with a complete header.
fn tcp_flags(header: &Header, packet: &[u8]) -> Result<u8, Refusal> {
    Tcp::new(header.segment(packet))
        .map(|tcp| tcp.flags())
        .ok_or(Refusal::Malformed)
}

/// Why a packet has no key: its protocol is not one we know, or its header is cut off.
fn why_no_flow(header: &Header, packet: &[u8]) -> Refusal {
    match (header.version, header.protocol) {
        (_, protocol::TCP | protocol::UDP) if header.segment(packet).len() < 20 => {
            Refusal::Malformed
        }
        (Version::V4, protocol::ICMP) | (Version::V6, protocol::ICMPV6) => Refusal::IcmpKind,
        _ => Refusal::Protocol,
    }
}

fn check_addresses(header: &Header) -> Result<(), Refusal> {
    if is_impossible(header.src) || is_impossible(header.dst) {
        return Err(Refusal::Address);
    }
    if header.source_routed {
        return Err(Refusal::SourceRoute);
    }
    Ok(())
}

/// Flows of each kind looked at for every packet: more than one, so that sweeping keeps ahead of
/// opening.
const SWEEP: usize = 2;

/// Why a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// An address that no packet in a tunnel has.
    Address,
    /// A later fragment whose first one did not pass, or is overlapped by it.
    Fragment,
    /// An ICMP message that is neither an echo of this direction nor an error.
    IcmpKind,
    /// A transport header that is cut off or contradicts itself.
    Malformed,
    /// No flow that this could belong to.
    NoFlow,
    /// No peer is there to take it.
    NoPeer,
    /// The far side tries to open a connection.
    Opening,
    /// A protocol that is not let through.
    Protocol,
    /// An ICMP error about no known flow.
    Related,
    /// A source route.
    SourceRoute,
    /// A segment that cannot come in this state of the connection.
    State,
    /// The table is full of established flows.
    TableFull,
}

impl Refusal {
    /// All of them with their labels for metrics, in the order of their declaration.
    pub const ALL: [(Self, &'static str); 12] = [
        (Self::Address, "filter_address"),
        (Self::Fragment, "filter_fragment"),
        (Self::IcmpKind, "filter_icmp_kind"),
        (Self::Malformed, "filter_malformed"),
        (Self::NoFlow, "filter_no_flow"),
        (Self::NoPeer, "filter_no_peer"),
        (Self::Opening, "filter_opening"),
        (Self::Protocol, "filter_protocol"),
        (Self::Related, "filter_related"),
        (Self::SourceRoute, "filter_source_route"),
        (Self::State, "filter_state"),
        (Self::TableFull, "filter_table_full"),
    ];
}
