//! The answer of a router to a packet that is too large for its next hop.

use crate::inject::checksum;

/// Returns the ICMP error that tells the sender of `packet` that `largest` bytes get through, as if
/// its destination had said so; `None` for what gets no such answer: fragmentable packets, ICMP
/// errors, and what is no IP packet.
pub(super) fn answer(packet: &[u8], largest: usize) -> Option<Vec<u8>> {
    let mtu = u16::try_from(largest).ok()?;
    match packet.first()? >> 4 {
        4 if packet.len() >= 28 => answer_v4(packet, mtu),
        6 if packet.len() >= 48 => answer_v6(packet, mtu),
        _ => None,
    }
}

/// RFC 792 and RFC 1191, section 4: destination unreachable, fragmentation needed.
fn answer_v4(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let may_not_be_cut = packet[6] & 0x40 != 0;
    if !may_not_be_cut || packet[9] == 1 {
        return None;
    }
    let mut error = vec![3, 4, 0, 0, 0, 0];
    error.extend(mtu.to_be_bytes());
    error.extend(&packet[..28]);
    let sum = checksum(&error);
    error[2..4].copy_from_slice(&sum);
    let length = u16::try_from(20 + error.len()).ok()?;
    let mut answer = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    answer[2..4].copy_from_slice(&length.to_be_bytes());
    answer.extend(&packet[16..20]);
    answer.extend(&packet[12..16]);
    let sum = checksum(&answer);
    answer[10..12].copy_from_slice(&sum);
    answer.extend(error);
    Some(answer)
}

/// RFC 4443, section 3.2: packet too big, with as much of the packet as fits 1280 bytes.
fn answer_v6(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    if packet[6] == ICMP_V6 {
        return None;
    }
    let mut error = vec![2, 0, 0, 0, 0, 0];
    error.extend(mtu.to_be_bytes());
    error.extend(&packet[..packet.len().min(1280 - 48)]);
    let length = u16::try_from(error.len()).ok()?;
    let addresses = [&packet[24..40], &packet[8..24]].concat();
    let pseudo = [&addresses[..], &[0, ICMP_V6], &length.to_be_bytes()].concat();
    let sum = checksum(&[&pseudo[..], &error].concat());
    error[2..4].copy_from_slice(&sum);
    let mut answer = vec![0x60, 0, 0, 0, 0, 0, ICMP_V6, 64];
    answer[4..6].copy_from_slice(&length.to_be_bytes());
    answer.extend(addresses);
    answer.extend(error);
    Some(answer)
}

const ICMP_V6: u8 = 58;
