//! Packets that no kernel would send: forged sources, mapped addresses, connections out of nowhere.
//!
//! ```text
//!     Packet ──▶ Injector (a TUN device) ──▶ the namespace takes it for traffic to be forwarded
//! ```

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::netns::{End, Namespace};

/// A device of a namespace on which whatever a test makes up arrives. Goes with its value.
pub struct Injector {
    device: SyncDevice,
}

impl Injector {
    /// Makes the device, and has the namespace forward what arrives on it, whatever its source.
    pub fn new(end: End<'_>) -> Result<Self> {
        let name = end.device;
        let make = || DeviceBuilder::new().name(name).build_sync();
        let made = end.namespace.run(make)?;
        let device = made.with_context(|| format!("making the TUN device {name}"))?;
        trust(end.namespace, name)?;
        Ok(Self { device })
    }

    /// Has a packet arrive.
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        self.device.send(packet).context("injecting a packet")?;
        Ok(())
    }
}

/// Switches off what would drop packets for their source before they are forwarded.
fn trust(namespace: &Namespace, device: &str) -> Result<()> {
    let switches = [
        (format!("ipv4/conf/{device}/forwarding"), "1"),
        (format!("ipv4/conf/{device}/accept_local"), "1"),
        (format!("ipv4/conf/{device}/rp_filter"), "0"),
        ("ipv4/conf/all/rp_filter".to_owned(), "0"),
        ("ipv6/conf/all/forwarding".to_owned(), "1"),
    ];
    namespace.run(|| {
        for (switch, value) in &switches {
            let path = format!("/proc/sys/net/{switch}");
            std::fs::write(&path, value).with_context(|| format!("setting {path}"))?;
        }
        Ok(())
    })?
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// An ICMP or ICMPv6 echo request.
    Echo,
    /// The first segment of a TCP connection.
    Syn {
        /// From this port.
        from: u16,
        /// To this one.
        to: u16,
    },
    /// A UDP datagram.
    Udp {
        /// From this port.
        from: u16,
        /// To this one.
        to: u16,
        /// With this in it.
        data: &'a [u8],
    },
}

/// Returns a packet with valid checksums.
pub fn packet(source: IpAddr, destination: IpAddr, payload: Payload<'_>) -> Result<Vec<u8>> {
    let six = source.is_ipv6();
    let (protocol, mut body, checksum_at) = body(payload, six);
    let length = u16::try_from(body.len()).context("a payload that fits a packet")?;
    let mut pseudo = Vec::new();
    let mut header = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            // RFC 791, section 3.1: no options, TTL 64.
            let total = length + 20;
            let mut header = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
            header[2..4].copy_from_slice(&total.to_be_bytes());
            pseudo.extend([source.octets(), destination.octets()].concat());
            header.extend(&pseudo);
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum);
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // RFC 8200, section 3: hop limit 64.
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header[4..6].copy_from_slice(&length.to_be_bytes());
            pseudo.extend([source.octets(), destination.octets()].concat());
            header.extend(&pseudo);
            header
        }
        _ => bail!("a packet from {source} to {destination}"),
    };
    if protocol == ICMP {
        pseudo.clear();
    } else {
        pseudo.extend([0, protocol]);
        pseudo.extend(length.to_be_bytes());
    }
    let sum = checksum(&[&pseudo[..], &body[..]].concat());
    body[checksum_at..checksum_at + 2].copy_from_slice(&sum);
    header.extend(body);
    Ok(header)
}

/// Returns protocol, header with data, and where the checksum goes.
fn body(payload: Payload<'_>, six: bool) -> (u8, Vec<u8>, usize) {
    match payload {
        Payload::Echo if six => (ICMP_V6, vec![128, 0, 0, 0, 0, 1, 0, 1], 2),
        Payload::Echo => (ICMP, vec![8, 0, 0, 0, 0, 1, 0, 1], 2),
        Payload::Syn { from, to } => {
            let mut segment = vec![0; 20];
            segment[..2].copy_from_slice(&from.to_be_bytes());
            segment[2..4].copy_from_slice(&to.to_be_bytes());
            // RFC 9293, section 3.1: five words of header, SYN, a window.
            segment[12..16].copy_from_slice(&[0x50, 0x02, 0xff, 0xff]);
            (6, segment, 16)
        }
        Payload::Udp { from, to, data } => {
            let length = u16::try_from(data.len() + 8).unwrap_or(u16::MAX);
            let mut datagram = Vec::with_capacity(data.len() + 8);
            for field in [from, to, length, 0] {
                datagram.extend(field.to_be_bytes());
            }
            datagram.extend(data);
            (17, datagram, 6)
        }
    }
}

/// The Internet checksum (RFC 1071).
pub(crate) fn checksum(bytes: &[u8]) -> [u8; 2] {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_what_is_whole_are_zero() {
        let from = "192.0.2.1".parse().unwrap();
        let to = "192.0.2.2".parse().unwrap();
        let (from_port, to_port) = (4000, 53);
        let data = Payload::Udp {
            from: from_port,
            to: to_port,
            data: b"odd",
        };
        let made = packet(from, to, data).unwrap();
        assert_eq!(made.len(), 31);
        assert_eq!(checksum(&made[..20]), [0, 0]);
        let mut pseudo = made[12..20].to_vec();
        pseudo.extend([0, 17, 0, 11]);
        pseudo.extend(&made[20..]);
        assert_eq!(checksum(&pseudo), [0, 0]);
    }

    #[test]
    fn families_are_not_mixed() {
        let from = "192.0.2.1".parse().unwrap();
        let to = "2001:db8::1".parse().unwrap();
        assert!(packet(from, to, Payload::Echo).is_err());
    }
}
