//! Packets that no kernel would send: forged sources, mapped addresses, connections out of nowhere.
//!
//! ```text
//!     Packet ──▶ Injector (a TUN device) ──▶ the namespace takes it for traffic to be forwarded
//! ```

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use etherparse::PacketBuilder;
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

    pub fn send(&self, packet: &[u8]) -> Result<()> {
        self.device.send(packet).context("injecting a packet")?;
        Ok(())
    }
}

/// Switches off what would drop packets for their source before they are forwarded.
fn trust(namespace: &Namespace, device: &str) -> Result<()> {
    for (switch, value) in [
        (format!("ipv4/conf/{device}/forwarding"), "1"),
        (format!("ipv4/conf/{device}/accept_local"), "1"),
        (format!("ipv4/conf/{device}/rp_filter"), "0"),
        ("ipv4/conf/all/rp_filter".to_owned(), "0"),
        ("ipv6/conf/all/forwarding".to_owned(), "1"),
    ] {
        namespace.set_sysctl(&switch, value)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    Echo,
    /// The first segment of a TCP connection.
    Syn {
        from: u16,
        to: u16,
    },
    Udp {
        from: u16,
        to: u16,
        data: &'a [u8],
    },
}

/// Returns a packet with valid checksums, TTL or hop limit 64.
pub fn packet(source: IpAddr, destination: IpAddr, payload: Payload<'_>) -> Result<Vec<u8>> {
    let header = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PacketBuilder::ipv4(source.octets(), destination.octets(), 64)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            PacketBuilder::ipv6(source.octets(), destination.octets(), 64)
        }
        _ => bail!("a packet from {source} to {destination}"),
    };
    let mut packet = Vec::new();
    let made = match payload {
        Payload::Echo if source.is_ipv4() => {
            header.icmpv4_echo_request(1, 1).write(&mut packet, &[])
        }
        Payload::Echo => header.icmpv6_echo_request(1, 1).write(&mut packet, &[]),
        Payload::Syn { from, to } => header
            .tcp(from, to, 0, u16::MAX)
            .syn()
            .write(&mut packet, &[]),
        Payload::Udp { from, to, data } => header.udp(from, to).write(&mut packet, data),
    };
    made.context("a payload that fits a packet")?;
    Ok(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_has_its_addresses_of_one_family() {
        let [four, other, six] = ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
            .map(|address| address.parse::<IpAddr>().unwrap());
        let data = Payload::Udp {
            from: 4000,
            to: 53,
            data: b"odd",
        };
        let made = packet(four, other, data).unwrap();
        assert_eq!(made.len(), 31);
        assert_eq!(made[12..20], [192, 0, 2, 1, 192, 0, 2, 2]);
        assert!(packet(four, six, Payload::Echo).is_err());
    }
}
