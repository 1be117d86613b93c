//! Ends and their parameters, the output of one call of an engine, and TCP segments with right
//! checksums.

use bytes::BytesMut;
use tunnel_proto::datagram::RouteId;
use tunnel_proto::frame::put_control;
use tunnel_proto::ip::checksum::Sum;

use super::super::*;
use crate::handle::PeerSpec;
use crate::keys::PrivateKey;

pub(crate) fn key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number; 32])
}

/// Bytes without a pattern, the same for each seed.
pub(crate) fn random_bytes(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed;
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    }
}

/// A peer with the key of this number.
pub(crate) fn peer(name: &str, number: u8, address: &str) -> PeerSpec {
    PeerSpec {
        name: name.to_owned(),
        public_keys: vec![key(number).public()],
        preshared_key: None,
        addresses: vec![address.parse().unwrap()],
        route: None,
    }
}

pub(crate) fn params(role: Role, name: &str, address: &str) -> Params {
    Params {
        role,
        name: name.to_owned(),
        addresses: vec![address.parse().unwrap()],
        mtu: 1420,
        stream: crate::stream::StreamParams::default(),
        offloads: udp::Offloads::default(),
    }
}

/// A client of a shoot whose pods it is for.
pub(crate) fn client_role(mode: path::Mode) -> Role {
    Role::Client {
        networks: vec!["100.96.0.0/11".parse().unwrap()],
        path: path::Params {
            mode,
            ..path::Params::default()
        },
    }
}

/// A server of the same.
pub(crate) fn server_role(route: u32) -> Role {
    Role::Server {
        route: RouteId::new(route),
        networks: vec!["100.96.0.0/11".parse().unwrap()],
        filter: tunnel_proto::filter::Params::default(),
    }
}

#[derive(Default)]
pub(super) struct Sink {
    pub(super) datagrams: Vec<(Remote, Vec<u8>)>,
    pub(super) packets: Vec<Vec<u8>>,
}

impl Out for Sink {
    fn datagram(
        &mut self,
        to: &Remote,
        _band: Band,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) {
        let mut buf = vec![0; max];
        let len = fill(&mut buf);
        buf.truncate(len);
        if len == 0 {
            return;
        }
        if let Remote::Stream(_) = to {
            let mut frame = u16::try_from(len).unwrap().to_be_bytes().to_vec();
            frame.append(&mut buf);
            buf = frame;
        }
        self.datagrams.push((*to, buf));
    }

    fn control(&mut self, stream: StreamId, control: &Control<'_>) {
        let mut frame = BytesMut::new();
        put_control(control, &mut frame).unwrap();
        self.datagrams
            .push((Remote::Stream(stream), frame.to_vec()));
    }

    fn packet(&mut self, max: usize, fill: impl FnOnce(&mut [u8]) -> usize) {
        let mut buf = vec![0; max];
        let len = fill(&mut buf);
        buf.truncate(len);
        if len > 0 {
            self.packets.push(buf);
        }
    }
}

/// A TCP segment between two addresses, from the server's port 2000 to 443 and back.
pub(super) fn packet(source: &str, target: &str, flags: u8, data: usize) -> Vec<u8> {
    let ports = if source.starts_with("100.") {
        (443, 2000)
    } else {
        (2000, 443)
    };
    let data = if flags & tunnel_proto::ip::transport::flags::SYN == 0 {
        data
    } else {
        0
    };
    tcp(source, target, ports, flags, &[], data)
}

pub(super) fn syn_with_mss(source: &str, target: &str, mss: u16) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let syn = tunnel_proto::ip::transport::flags::SYN;
    tcp(source, target, (2000, 443), syn, &[2, 4, high, low], 0)
}

pub(super) fn tcp(
    source: &str,
    target: &str,
    (from, to): (u16, u16),
    flags: u8,
    options: &[u8],
    data: usize,
) -> Vec<u8> {
    let source: std::net::Ipv4Addr = source.parse().unwrap();
    let target: std::net::Ipv4Addr = target.parse().unwrap();
    let header = 20 + options.len();
    let total = u16::try_from(20 + header + data).unwrap();
    let mut packet = vec![0; usize::from(total)];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    packet[6] = 0x40;
    packet[8] = 64;
    packet[9] = 6;
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&target.octets());
    let sum = Sum::default().bytes(&packet[..20]).checksum();
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..22].copy_from_slice(&from.to_be_bytes());
    packet[22..24].copy_from_slice(&to.to_be_bytes());
    packet[32] = u8::try_from(header / 4).unwrap() << 4;
    packet[33] = flags;
    packet[40..40 + options.len()].copy_from_slice(options);
    let len = u32::from(total) - 20;
    let sum = Sum::default().pseudo_header(&packet[12..20], 6, len);
    let sum = sum.bytes(&packet[20..]).checksum();
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}
