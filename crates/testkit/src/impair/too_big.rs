//! The answer of a router to a packet that is too large for its next hop.

use etherparse::icmpv4::DestUnreachableHeader::FragmentationNeeded;
use etherparse::{Icmpv4Type, Icmpv6Type, PacketBuilder};

/// Returns the ICMP error that tells the sender of `packet` that `largest` bytes get through, as if
/// its destination had said so; `None` for what gets no such answer: fragmentable packets, ICMP
/// errors, and what is no IP packet.
pub(super) fn answer(packet: &[u8], largest: usize) -> Option<Vec<u8>> {
    let next_hop_mtu = u16::try_from(largest).ok()?;
    let mut answer = Vec::new();
    match packet.first()? >> 4 {
        4 if packet.len() >= 28 => {
            let may_not_be_cut = packet[6] & 0x40 != 0;
            if !may_not_be_cut || packet[9] == ICMP {
                return None;
            }
            // RFC 1191, section 4: with the IP header and eight bytes of what it carries.
            let kind = Icmpv4Type::DestinationUnreachable(FragmentationNeeded { next_hop_mtu });
            let (source, destination) = (&packet[12..16], &packet[16..20]);
            let header =
                PacketBuilder::ipv4(destination.try_into().ok()?, source.try_into().ok()?, 64);
            let written = header.icmpv4(kind).write(&mut answer, &packet[..28]);
            written.ok()?;
        }
        6 if packet.len() >= 48 && packet[6] != ICMP_V6 => {
            // RFC 4443, section 3.2: with as much of the packet as fits 1280 bytes.
            let kind = Icmpv6Type::PacketTooBig {
                mtu: next_hop_mtu.into(),
            };
            let (source, destination) = (&packet[8..24], &packet[24..40]);
            let header =
                PacketBuilder::ipv6(destination.try_into().ok()?, source.try_into().ok()?, 64);
            let part = &packet[..packet.len().min(1280 - 48)];
            header.icmpv6(kind).write(&mut answer, part).ok()?;
        }
        _ => return None,
    }
    Some(answer)
}

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
