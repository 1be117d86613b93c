//! Packets byte by byte, put together by hand from the field numbers of upstream's messages, and
//! bytes that are none.

use bytes::{Bytes, BytesMut};
use knp_proto::packet::{
    MAX_ADDRESS, MAX_ERROR, MAX_MESSAGE, MAX_PROTOCOL, PacketError, encode_data_head,
};
use knp_proto::{
    ConnectId, DialId, Event, Extensions, GrpcFrontend, Link, LinkConfig, Packet, StreamId, Tenant,
    TenantId, TenantLimits,
};
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::world::{generous, start, tenant};

const ID: ConnectId = ConnectId(1);
const RANDOM: DialId = DialId(42);

fn known_answers() -> Vec<(Packet, Vec<u8>)> {
    vec![
        // DIAL_REQ is type 0, which proto3 leaves out; dialRequest is field 2.
        (
            Packet::DialRequest {
                protocol: "tcp".to_owned(),
                address: "10.0.0.1:80".to_owned(),
                random: RANDOM,
            },
            b"\x12\x14\x0a\x03tcp\x12\x0b10.0.0.1:80\x18\x2a".to_vec(),
        ),
        (
            Packet::DialResponse {
                error: String::new(),
                connect_id: ID,
                random: RANDOM,
            },
            b"\x08\x01\x1a\x04\x10\x01\x18\x2a".to_vec(),
        ),
        (
            Packet::DialResponse {
                error: "no".to_owned(),
                connect_id: ConnectId(0),
                random: RANDOM,
            },
            b"\x08\x01\x1a\x06\x0a\x02no\x18\x2a".to_vec(),
        ),
        (
            Packet::CloseRequest { connect_id: ID },
            b"\x08\x02\x2a\x02\x08\x01".to_vec(),
        ),
        (
            Packet::CloseResponse {
                connect_id: ID,
                error: "x".to_owned(),
            },
            b"\x08\x03\x32\x05\x0a\x01x\x10\x01".to_vec(),
        ),
        (
            Packet::Data {
                connect_id: ID,
                data: Bytes::from_static(b"abc"),
            },
            b"\x08\x04\x22\x07\x08\x01\x1a\x03abc".to_vec(),
        ),
        (
            Packet::CloseDial { random: RANDOM },
            b"\x08\x05\x3a\x02\x08\x2a".to_vec(),
        ),
        (Packet::Drain, b"\x08\x06\x42\x00".to_vec()),
        // 64 << 3 | 2 = 514 is the key of field 64; 65536 bytes.
        (
            Packet::Credit {
                connect_id: ID,
                bytes: 65536,
            },
            b"\x08\x40\x82\x04\x06\x08\x01\x10\x80\x80\x04".to_vec(),
        ),
        (
            Packet::Fin { connect_id: ID },
            b"\x08\x41\x8a\x04\x02\x08\x01".to_vec(),
        ),
        // A negative int64 takes ten bytes.
        (
            Packet::CloseDial { random: DialId(-1) },
            b"\x08\x05\x3a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01".to_vec(),
        ),
    ]
}

fn encode(packet: Packet) -> Vec<u8> {
    let mut buf = BytesMut::new();
    packet.encode(&mut buf);
    buf.to_vec()
}

#[test]
fn packets_are_written_and_read_byte_by_byte() {
    for (packet, bytes) in known_answers() {
        assert_eq!(encode(packet.clone()), bytes, "{packet:?}");
        assert_eq!(Packet::decode(Bytes::from(bytes)), Ok(packet));
    }
}

#[test]
fn data_is_a_slice_of_its_message() {
    let message = Bytes::from_static(b"\x08\x04\x22\x07\x08\x01\x1a\x03abc");
    let Ok(Packet::Data { data, .. }) = Packet::decode(message.clone()) else {
        panic!("no DATA");
    };
    assert_eq!(data.as_ptr(), message.slice(8..).as_ptr());
}

#[test]
fn unknown_fields_are_ignored() {
    // Field 99 of Packet, and Data.error, which upstream defines and never sets.
    let message = b"\x08\x04\x22\x0a\x08\x01\x12\x01e\x1a\x03abc\x9a\x06\x01z";
    let packet = Packet::decode(Bytes::from_static(message));
    assert!(matches!(packet, Ok(Packet::Data { data, .. }) if data == "abc"));
    let message = Bytes::from_static(b"\x08\x63");
    let unknown = Packet::Unknown { packet_type: 99 };
    assert_eq!(Packet::decode(message), Ok(unknown));
}

#[test]
fn types_without_payload_mean_nothing() {
    assert_eq!(Packet::decode(Bytes::new()), Ok(Packet::Empty));
    for packet_type in [1u8, 2, 3, 4, 5, 64, 65] {
        let message = Bytes::from(vec![8, packet_type]);
        assert_eq!(Packet::decode(message), Ok(Packet::Empty));
    }
    assert_eq!(
        Packet::decode(Bytes::from_static(b"\x08\x06")),
        Ok(Packet::Drain)
    );
    assert!(encode(Packet::Empty).is_empty());
    assert!(encode(Packet::Unknown { packet_type: 7 }).is_empty());
}

#[test]
fn malformed_packet_is_refused() {
    // CLOSE_REQ with the payload of DATA.
    let mixed = Bytes::from_static(b"\x08\x02\x22\x02\x08\x01");
    assert_eq!(
        Packet::decode(mixed),
        Err(PacketError::PayloadMismatch { packet_type: 2 })
    );
    for message in [
        &b"\x08"[..],
        b"\x12\x05\x0a",
        b"\x12\x03\x0a\x01\xff",
        b"\x0a\x00",
    ] {
        let decoded = Packet::decode(Bytes::from_static(message));
        assert!(
            matches!(decoded, Err(PacketError::Malformed(_))),
            "{message:?}"
        );
    }
}

#[test]
fn lengths_are_bounded() {
    let refusal = |packet: Packet| match Packet::decode(Bytes::from(encode(packet))) {
        Err(PacketError::TooLong { field, .. }) => Some(field),
        _ => None,
    };
    let response = Packet::CloseResponse {
        connect_id: ID,
        error: "e".repeat(MAX_ERROR + 1),
    };
    assert_eq!(refusal(response), Some("error"));
    let huge = Bytes::from(vec![0; MAX_MESSAGE + 1]);
    assert!(matches!(
        Packet::decode(huge),
        Err(PacketError::TooLong {
            field: "message",
            ..
        })
    ));
}

/// A link carries the tunnels of all clients, of which one asks for that.
#[test]
fn too_long_dial_is_answered_and_ends_no_link() {
    let tenant = tenant("agent", generous(), 1 << 20);
    let (none, config) = (Extensions::default(), LinkConfig::default());
    let mut link = Link::agent(&tenant, StreamId(1), none, config);
    for (protocol, address, field) in [
        (MAX_PROTOCOL, MAX_ADDRESS, None),
        (MAX_PROTOCOL + 1, 1, Some("protocol of 33 bytes")),
        (1, MAX_ADDRESS + 1, Some("address of 513 bytes")),
    ] {
        let dial = Packet::DialRequest {
            protocol: "p".repeat(protocol),
            address: "a".repeat(address),
            random: RANDOM,
        };
        let packet = Packet::decode(Bytes::from(encode(dial))).unwrap();
        assert_eq!(packet.payload_len(), protocol + address);

        link.handle_packet(start(), packet).unwrap();

        let mut answer = BytesMut::new();
        link.poll_transmit(start(), &mut answer);
        match (field, link.poll_event()) {
            (None, Some(Event::Dial(id, _))) => link.close(start(), id),
            (Some(field), None) => {
                let answer = Packet::decode(answer.freeze()).unwrap();
                let Packet::DialResponse { error, random, .. } = answer else {
                    panic!("{answer:?}");
                };
                assert!(error.contains(field) && random == RANDOM, "{error}");
            }
            (field, event) => panic!("{field:?}: {event:?}"),
        }
        while link.poll_event().is_some() {}
        while link.poll_transmit(start(), &mut BytesMut::new()).is_some() {}
    }
}

fn packets() -> impl Strategy<Value = Packet> {
    let connect_id = || prop_oneof![0i64..4, any::<i64>()].prop_map(ConnectId);
    let random = || prop_oneof![0i64..4, any::<i64>()].prop_map(DialId);
    let text = || "\\PC{0,8}";
    let data = proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
    prop_oneof![
        random().prop_map(|random| Packet::CloseDial { random }),
        connect_id().prop_map(|connect_id| Packet::CloseRequest { connect_id }),
        connect_id().prop_map(|connect_id| Packet::Fin { connect_id }),
        (connect_id(), text())
            .prop_map(|(connect_id, error)| Packet::CloseResponse { connect_id, error }),
        (connect_id(), any::<u64>())
            .prop_map(|(connect_id, bytes)| Packet::Credit { connect_id, bytes }),
        (connect_id(), data).prop_map(|(connect_id, data)| Packet::Data { connect_id, data }),
        (text(), text(), random()).prop_map(|(protocol, address, random)| {
            Packet::DialRequest {
                protocol,
                address,
                random,
            }
        }),
        (text(), connect_id(), random()).prop_map(|(error, connect_id, random)| {
            Packet::DialResponse {
                error,
                connect_id,
                random,
            }
        }),
        Just(Packet::Drain),
        Just(Packet::Empty),
        any::<i32>().prop_map(|packet_type| Packet::Unknown { packet_type }),
    ]
}

proptest! {
    #[test]
    fn a_packet_comes_back_as_it_was(packet in packets()) {
        let bytes = encode(packet.clone());
        let expected = match packet {
            Packet::Unknown { .. } => Packet::Empty,
            packet => packet,
        };
        prop_assert_eq!(Packet::decode(Bytes::from(bytes)), Ok(expected));
    }

    #[test]
    fn head_and_payload_are_the_whole_packet(id: i64, data in proptest::collection::vec(any::<u8>(), 0..300)) {
        let connect_id = ConnectId(id);
        let mut split = BytesMut::new();
        encode_data_head(connect_id, data.len(), &mut split);
        split.extend_from_slice(&data);
        let data = Bytes::from(data);
        prop_assert_eq!(encode(Packet::Data { connect_id, data }), split);
    }

    #[test]
    fn any_bytes_are_an_answer(bytes: Vec<u8>) {
        let _ = Packet::decode(Bytes::from(bytes));
    }

    /// Packets in any order are survived, by both ends and by a frontend, and leave nothing behind
    /// once the stream has ended.
    #[test]
    fn any_packets_are_survived(
        packets in proptest::collection::vec(packets(), 0..60),
        extended: bool,
        seconds in 0u64..30,
    ) {
        let mut now = start();
        let tenant = Tenant::new(
            TenantId::new("a"),
            TenantLimits::default(),
            knp_proto::Budget::new(1 << 20),
        );
        let extensions = if extended { Extensions::ALL } else { Extensions::default() };
        let config = LinkConfig::default();
        let server = Link::server(&tenant, StreamId(1), extensions, config).unwrap();
        let agent = Link::agent(&tenant, StreamId(2), extensions, config);
        let mut frontend = GrpcFrontend::default();
        let mut replies = Vec::new();
        for packet in &packets {
            frontend.handle_packet(packet.clone(), &mut replies);
        }
        for mut link in [server, agent] {
            let target = knp_proto::DialTarget { protocol: "tcp".into(), address: "a:1".into() };
            let _ = link.dial(now, DialId(1), target);
            let mut tunnels = std::collections::BTreeSet::new();
            for packet in &packets {
                link.handle_packet(now, packet.clone()).unwrap();
                while let Some(event) = link.poll_event() {
                    if let Event::Dial(tunnel, _) = event {
                        link.dialed(now, tunnel, Ok(())).unwrap();
                        tunnels.insert(tunnel);
                    }
                }
                let mut buf = BytesMut::new();
                while link.poll_transmit(now, &mut buf).is_some() {}
                for tunnel in &tunnels {
                    while let Ok(knp_proto::Read::Data(data)) = link.read(*tunnel, 1000) {
                        link.consumed(now, *tunnel, data.len());
                    }
                }
                now += std::time::Duration::from_secs(seconds);
                link.handle_timeout(now);
            }
            link.end(now);
            now += LinkConfig::default().linger_timeout;
            link.handle_timeout(now);
            while link.poll_event().is_some() {}
            prop_assert!(link.is_idle(), "{:?}", link);
            prop_assert!(link.handle_packet(now, Packet::Drain).is_err());
        }
        prop_assert_eq!((tenant.tunnels(), tenant.pending_dials()), (0, 0));
        prop_assert_eq!((tenant.buffered_bytes(), tenant.agents()), (0, 0));
    }
}
