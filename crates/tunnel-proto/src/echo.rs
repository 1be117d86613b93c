//! Probes through the tunnel: ICMP echoes between the inner addresses of its two ends.
//!
//! ```text
//!   IP header · ICMP echo, identifier and sequence number = probe id · payload · padding to a size
//!
//!    0      4       5      6     8       12     16
//!   ┌──────┬───────┬──────┬─────┬───────┬──────┐
//!   │ RZP1 │ flags │ zero │ MTU │ flows │ zero │      flags: 1 active, 2 draining,
//!   └──────┴───────┴──────┴─────┴───────┴──────┘             4 large, 8 ended, 16 unsettled, 128 answer
//! ```
//!
//! Being ICMP, they are answered by every WireGuard peer that has an inner address; an end of ours
//! answers them itself and reports its state in the payload. They travel sealed, so they are
//! authentic. Numbers are big-endian.
//!
//! When to send them and what an answer means is [`crate::path`]'s.

use std::net::IpAddr;

use crate::ip::checksum::update_bytes;
use crate::ip::icmp::{echo_request, make_echo_reply};
use crate::ip::transport::Icmp;
use crate::ip::{Header, protocol};
use crate::wire::{array, put, u8_at, u16_at, u32_at};

/// Bytes of the payload.
pub const PAYLOAD_LEN: usize = 16;

/// What one end reports to the other in a probe or its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeInfo {
    /// Whether the sender sends its packets by the link this came by. Meaningless in answers.
    pub active: bool,
    /// Whether the sender wants no new flows.
    pub draining: bool,
    /// Whether the sender ends now, and what it translated with it.
    pub ended: bool,
    /// Whether the sender cannot forward at present what it is given.
    pub unsettled: bool,
    /// Whether the sender lately sent packets larger than the minimum MTU: the end that searches for
    /// the size must check whether they arrive.
    pub large: bool,
    /// Bytes of the largest inner packet that is known to come through; 0: not known.
    pub mtu: u16,
    /// Open flows that go by the receiver.
    pub flows: u32,
}

/// A probe, or what came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// To be answered by [`answer`].
    Request(ProbeInfo),
    /// An answer. `info` is `None` when it came from a peer that only reflects.
    Reply {
        /// The probe's.
        id: u32,
        /// What the answering end reports.
        info: Option<ProbeInfo>,
    },
}

/// Writes a probe of `size` bytes, or as few as it takes, and returns its length. `None` when the
/// addresses are not of one family, or `out` is too small.
pub fn request(
    (from, to): (IpAddr, IpAddr),
    id: u32,
    info: ProbeInfo,
    size: usize,
    out: &mut [u8],
) -> Option<usize> {
    let headers = if to.is_ipv4() { 28 } else { 48 };
    let data = size.saturating_sub(headers).max(PAYLOAD_LEN);
    let [a, b, c, d] = id.to_be_bytes();
    let (id, seq) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let len = echo_request(from, to, id, seq, data, out)?;
    replace_payload(out, headers - 8, &payload(info, 0));
    Some(len)
}

/// Returns what a packet is, if it is a probe or its answer.
#[must_use]
pub fn parse(header: &Header, packet: &[u8]) -> Option<Echo> {
    let is_icmp = matches!(header.protocol, protocol::ICMP | protocol::ICMPV6);
    if !is_icmp || header.fragment.is_some() {
        return None;
    }
    let icmp = Icmp::new(header.segment(packet))?;
    let payload = icmp.body;
    if icmp.code != 0 || array::<4>(payload, 0)? != MAGIC {
        return None;
    }
    let flags = u8_at(payload, 4)?;
    let info = ProbeInfo {
        active: flags & ACTIVE != 0,
        draining: flags & DRAINING != 0,
        ended: flags & ENDED != 0,
        unsettled: flags & UNSETTLED != 0,
        large: flags & LARGE != 0,
        mtu: u16_at(payload, 6)?,
        flows: u32_at(payload, 8)?,
    };
    match (header.protocol, icmp.kind) {
        (protocol::ICMP, 8) | (protocol::ICMPV6, 128) => Some(Echo::Request(info)),
        (protocol::ICMP, 0) | (protocol::ICMPV6, 129) => Some(Echo::Reply {
            id: u32::from_be_bytes(icmp.rest),
            info: (flags & ANSWER != 0).then_some(info),
        }),
        _ => None,
    }
}

/// Turns a probe into its answer, in place, and returns whether it was one.
pub fn answer(header: &Header, packet: &mut [u8], info: ProbeInfo) -> bool {
    if !matches!(parse(header, packet), Some(Echo::Request(_))) {
        return false;
    }
    make_echo_reply(header, packet)
        && replace_payload(packet, header.transport, &payload(info, ANSWER))
}

fn payload(info: ProbeInfo, flags: u8) -> [u8; PAYLOAD_LEN] {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    let reported = flag(info.active, ACTIVE)
        | flag(info.draining, DRAINING)
        | flag(info.large, LARGE)
        | flag(info.ended, ENDED)
        | flag(info.unsettled, UNSETTLED);
    let mut bytes = [0; PAYLOAD_LEN];
    put(&mut bytes, 0, &MAGIC);
    put(&mut bytes, 4, &[flags | reported]);
    put(&mut bytes, 6, &info.mtu.to_be_bytes());
    put(&mut bytes, 8, &info.flows.to_be_bytes());
    bytes
}

/// Replaces the payload of an ICMP message at `at`; its checksum changes by the difference.
fn replace_payload(packet: &mut [u8], at: usize, payload: &[u8; PAYLOAD_LEN]) -> bool {
    let (Some(sum), Some(old)) = (u16_at(packet, at + 2), array(packet, at + 8)) else {
        return false;
    };
    let old: [u8; PAYLOAD_LEN] = old;
    let sum = update_bytes(sum, &old, payload);
    put(packet, at + 2, &sum.to_be_bytes()) && put(packet, at + 8, payload)
}

const MAGIC: [u8; 4] = *b"RZP1";
const ACTIVE: u8 = 1;
const DRAINING: u8 = 2;
const LARGE: u8 = 4;
const ENDED: u8 = 8;
const UNSETTLED: u8 = 16;
const ANSWER: u8 = 128;
