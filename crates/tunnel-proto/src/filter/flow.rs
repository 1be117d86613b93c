//! The key of a flow, and the phases of one flow: pure rules, no table.

use std::net::IpAddr;

use crate::ip::transport::{Icmp, flags};
use crate::ip::{Header, Version, protocol};
use crate::wire::{mix, u16_at};

use super::Refusal;

/// The two ends of a flow, as the near side sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The end that opened it.
    pub near: IpAddr,
    /// The end beyond the tunnel.
    pub far: IpAddr,
    /// Port of the near end; the identifier of an ICMP echo.
    pub near_port: u16,
    /// Port of the far end; 0 for an ICMP echo.
    pub far_port: u16,
    /// TCP, UDP, ICMP or ICMPv6.
    pub protocol: u8,
}

impl FlowKey {
    /// The key of a packet of the near side; of ICMP, only requests have one.
    pub(super) fn of_outbound(header: &Header, packet: &[u8]) -> Option<Self> {
        let (near_port, far_port) = ports(header, packet, [8, 128])?;
        Some(Self {
            near: header.src,
            far: header.dst,
            near_port,
            far_port,
            protocol: header.protocol,
        })
    }

    /// The key of a packet of the far side; of ICMP, only replies have one.
    pub(super) fn of_inbound(header: &Header, packet: &[u8]) -> Option<Self> {
        let (first, second) = ports(header, packet, [0, 129])?;
        let echo = matches!(header.protocol, protocol::ICMP | protocol::ICMPV6);
        let (near_port, far_port) = if echo { (first, 0) } else { (second, first) };
        Some(Self {
            near: header.dst,
            far: header.src,
            near_port,
            far_port,
            protocol: header.protocol,
        })
    }

    /// Returns a hash under `secret`, the same for the life of a flow: to choose among peers, or a
    /// place in a table.
    #[must_use]
    pub fn hash(&self, secret: u64) -> u64 {
        let ports = u64::from(self.near_port) << 32
            | u64::from(self.far_port) << 16
            | u64::from(self.protocol);
        mix_address(mix_address(mix(secret, ports), self.near), self.far)
    }
}

fn mix_address(seed: u64, address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => mix(seed, address.to_bits().into()),
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h] = address.segments().map(u64::from);
            let high = a << 48 | b << 32 | c << 16 | d;
            let low = e << 48 | f << 32 | g << 16 | h;
            mix(mix(seed, high), low)
        }
    }
}

/// First and second port; identifier and zero of an echo of the kinds given (ICMP, ICMPv6).
fn ports(header: &Header, packet: &[u8], echo: [u8; 2]) -> Option<(u16, u16)> {
    let segment = header.segment(packet);
    let [echo_v4, echo_v6] = echo;
    let kind = match (header.version, header.protocol) {
        (_, protocol::TCP | protocol::UDP) => {
            segment.get(..8)?; // as much as the shortest quotation has (RFC 792)
            return Some((u16_at(segment, 0)?, u16_at(segment, 2)?));
        }
        (Version::V4, protocol::ICMP) => echo_v4,
        (Version::V6, protocol::ICMPV6) => echo_v6,
        _ => return None,
    };
    let icmp = Icmp::new(segment)?;
    (icmp.kind == kind && icmp.code == 0).then(|| (icmp.echo_id(), 0))
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The near side sent a SYN.
    SynSent,
    /// The far side answered it.
    SynAnswered,
    /// The near side sent in the middle of a connection we did not know.
    PickedUp,
    Established,
    /// The near side finished.
    FinNear,
    /// The far side finished.
    FinFar,
    /// Both finished, or one reset it.
    Closed,
    Echo,
    UdpSent,
    UdpAnswered,
}

impl Phase {
    /// Returns whether it is a TCP connection's that is not closed. Of the others it is unknown when
    /// they are over.
    pub(super) fn is_open_connection(self) -> bool {
        match self {
            Self::SynSent
            | Self::SynAnswered
            | Self::PickedUp
            | Self::Established
            | Self::FinNear
            | Self::FinFar => true,
            Self::Closed | Self::Echo | Self::UdpSent | Self::UdpAnswered => false,
        }
    }

    /// Returns whether the far side has answered, or is taken to have: in the middle of a connection
    /// it must have.
    pub(super) fn is_answered(self) -> bool {
        match self {
            Self::SynAnswered
            | Self::PickedUp
            | Self::Established
            | Self::FinNear
            | Self::FinFar
            | Self::Closed
            | Self::UdpAnswered => true,
            Self::SynSent | Self::Echo | Self::UdpSent => false,
        }
    }

    pub(super) fn udp_outbound(before: Option<Self>) -> Self {
        match before {
            Some(Self::UdpAnswered) => Self::UdpAnswered,
            _ => Self::UdpSent,
        }
    }

    /// The phase after a segment of the near side.
    pub(super) fn tcp_outbound(before: Option<Self>, segment: u8) -> Result<Self, Refusal> {
        let has = |flag| segment & flag != 0;
        if has(flags::SYN) {
            if has(flags::ACK) || has(flags::FIN) || has(flags::RST) {
                return Err(Refusal::State); // it answers a SYN of the far side, which never came in
            }
            return Ok(match before {
                // Sent again, and overtaken by the answer to the first, with which the near side goes
                // on. The answer to a connection anew would come in as well.
                Some(phase @ (Self::SynAnswered | Self::Established)) => phase,
                _ => Self::SynSent,
            });
        }
        let Some(before) = before else {
            let middle = has(flags::ACK) && !has(flags::RST) && !has(flags::FIN);
            return middle.then_some(Self::PickedUp).ok_or(Refusal::NoFlow);
        };
        Ok(match before {
            _ if has(flags::RST) => Self::Closed,
            Self::Closed => Self::Closed,
            Self::FinFar if has(flags::FIN) => Self::Closed,
            Self::SynSent | Self::FinNear | Self::FinFar => before,
            _ if has(flags::FIN) => Self::FinNear,
            Self::SynAnswered if has(flags::ACK) => Self::Established,
            Self::SynAnswered
            | Self::PickedUp
            | Self::Established
            | Self::Echo
            | Self::UdpSent
            | Self::UdpAnswered => before,
        })
    }

    /// The phase after a segment of the far side, and whether it shows that the flow is in use.
    /// The flags were checked by [`check_inbound_flags`].
    pub(super) fn tcp_inbound(self, segment: u8) -> Result<(Self, bool), Refusal> {
        let has = |flag| segment & flag != 0;
        let reset = has(flags::RST);
        Ok(match self {
            Self::Closed => (Self::Closed, false),
            _ if reset => (Self::Closed, true),
            Self::SynSent if has(flags::SYN) => (Self::SynAnswered, true),
            // The answer of a half-open connection to a SYN (RFC 9293 §3.10.7.4); what follows is
            // the near side's reset.
            Self::SynSent if segment & !(flags::ECE | flags::CWR) == flags::ACK => (self, false),
            Self::SynSent => return Err(Refusal::State),
            Self::PickedUp if has(flags::FIN) => (Self::FinFar, true),
            Self::PickedUp => (Self::Established, true),
            Self::SynAnswered => (Self::SynAnswered, false),
            Self::FinNear if has(flags::FIN) => (Self::Closed, true),
            Self::Established if has(flags::FIN) => (Self::FinFar, true),
            Self::Established
            | Self::FinNear
            | Self::FinFar
            | Self::Echo
            | Self::UdpSent
            | Self::UdpAnswered => (self, true),
        })
    }
}

/// Refuses segments that open a connection, or that no TCP sends.
pub(super) fn check_inbound_flags(segment: u8) -> Result<(), Refusal> {
    let has = |flag| segment & flag != 0;
    if has(flags::SYN) && !has(flags::ACK) {
        return Err(Refusal::Opening);
    }
    let nonsense = (has(flags::SYN) && (has(flags::FIN) || has(flags::RST)))
        || !(has(flags::ACK) || has(flags::RST));
    if nonsense {
        return Err(Refusal::Malformed);
    }
    Ok(())
}

/// Returns whether no packet in a tunnel has this address.
pub(super) fn is_impossible(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => {
            address.is_unspecified()
                || address.is_loopback()
                || address.is_multicast()
                || address.is_broadcast()
        }
        // Mapped (::ffff:0:0/96) and the deprecated compatible form (::/96), which holds
        // unspecified and loopback (RFC 4291 §2.5.5).
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, ..] = address.segments();
            let embedded = [a, b, c, d, e] == [0; 5] && (f == 0 || f == 0xffff);
            embedded || address.is_multicast()
        }
    }
}
