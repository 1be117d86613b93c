//! What is done for each packet of a tunnel and of a konnectivity stream.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use knp_proto::frame::{Deframer, put_head};
use knp_proto::{ConnectId, DialId, Packet, packet};
use tunnel_proto::frame::{self, Decoder, Frame};
use tunnel_proto::{datagram, wrapped};

use crate::workload::Workload;

pub(crate) fn workloads() -> Vec<Workload> {
    let mut all = tunnel();
    all.extend(konnectivity());
    all
}

fn tunnel() -> Vec<Workload> {
    let stream = framed(DATAGRAMS);
    let read = |name, len| {
        Workload::shared(name, DATAGRAMS, DATAGRAMS, stream.clone(), move |stream| {
            let mut decoder = Decoder::new(frame::MAX_LEN);
            let pieces = stream.chunks(len);
            pieces.map(|piece| datagrams(&mut decoder, piece)).sum()
        })
    };
    vec![
        read("tunnel frames, in one read", usize::MAX),
        read("tunnel frames, in reads of 4096", 4096),
        Workload::repeated(
            "tunnel frame, written",
            frame::HEADER_LEN,
            DATAGRAM,
            |len| frame::header(*len).map_or(0, |header| black_box(header).len()),
        ),
        Workload::repeated("datagram routed by its index", 17, sealed(), |sealed| {
            let header = datagram::Header::parse(sealed);
            let route = header.and_then(|header| header.destination());
            route.ok().flatten().map_or(0, |route| route.get() as usize)
        }),
        Workload::repeated(
            "datagram wrapped for a server",
            wrapped::HEADER_LEN,
            CLIENT,
            |client| black_box(wrapped::header(*client)).len(),
        ),
        Workload::repeated("datagram unwrapped", DATAGRAM, in_wrapping(), |bytes| {
            wrapped::parse(bytes).map_or(0, |wrapped| wrapped.datagram.len())
        }),
    ]
}

fn datagrams(decoder: &mut Decoder, mut piece: &[u8]) -> usize {
    let mut found = 0;
    while let Ok(Some(Frame::Datagram(_))) = decoder.next(&mut piece) {
        found += 1;
    }
    found
}

fn framed(count: usize) -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..count {
        stream.extend(frame::header(DATAGRAM).unwrap_or_default());
        stream.extend_from_slice(&sealed());
    }
    stream
}

/// A data datagram of a foreign client, to the server with route id 17.
fn sealed() -> Vec<u8> {
    let mut datagram = vec![4, 0, 0, 0];
    datagram.extend_from_slice(&(17_u32 << 12 | 3).to_le_bytes());
    datagram.resize(DATAGRAM, 0x5a);
    datagram
}

fn in_wrapping() -> Vec<u8> {
    let mut bytes = wrapped::header(CLIENT).to_vec();
    bytes.extend_from_slice(&sealed());
    bytes
}

fn konnectivity() -> Vec<Workload> {
    let stream = packets(PACKETS);
    vec![
        Workload::consuming(
            "konnectivity packets of 4 KiB, read",
            PACKETS,
            PACKETS * PAYLOAD,
            move || in_pieces(&stream, PIECE),
            read_packets,
        ),
        Workload::repeated("konnectivity packet of 4 KiB, written", 17, (), |()| {
            let mut out = BytesMut::new();
            let mut packet = BytesMut::new();
            packet::encode_data_head(CONNECTION, PAYLOAD, &mut packet);
            put_head(packet.len() + PAYLOAD, &mut out);
            out.put_slice(&packet);
            out.len()
        }),
        Workload::repeated("konnectivity dial, written and read", 1, (), |()| {
            let mut out = BytesMut::new();
            let dial = Packet::DialRequest {
                protocol: "tcp".to_owned(),
                address: "10.250.0.17:10250".to_owned(),
                random: DialId(7_919),
            };
            dial.encode(&mut out);
            let read = Packet::decode(out.freeze());
            usize::from(matches!(read, Ok(Packet::DialRequest { .. })))
        }),
    ]
}

fn packets(count: usize) -> Vec<u8> {
    let mut stream = BytesMut::new();
    for _ in 0..count {
        let mut packet = BytesMut::new();
        packet::encode_data_head(CONNECTION, PAYLOAD, &mut packet);
        packet.put_bytes(0x5a, PAYLOAD);
        put_head(packet.len(), &mut stream);
        stream.extend_from_slice(&packet);
    }
    stream.to_vec()
}

/// The stream as HTTP/2 brings it.
fn in_pieces(stream: &[u8], len: usize) -> Vec<Bytes> {
    stream.chunks(len).map(Bytes::copy_from_slice).collect()
}

fn read_packets(pieces: Vec<Bytes>) -> usize {
    let mut deframer = Deframer::new(64 * 1024);
    let mut bytes = 0;
    for piece in pieces {
        deframer.push(piece);
        while let Ok(Some(message)) = deframer.next_message() {
            bytes += Packet::decode(message).map_or(0, |packet| packet.payload_len());
        }
    }
    bytes
}

const DATAGRAMS: usize = 1000;
/// A full packet at the default MTU of 1420, sealed.
const DATAGRAM: usize = 1452;
const PACKETS: usize = 256;
const PAYLOAD: usize = 4096;
/// HTTP/2's largest frame, unless agreed otherwise (RFC 9113 §4.2).
const PIECE: usize = 16_384;
const CONNECTION: ConnectId = ConnectId(1_234_567);
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 40_000);
