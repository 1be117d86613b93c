//! The protocol's packets, written from the field numbers of its description.
//!
//! A packet is field 1, the type, and one message in a field of its own.

use anyhow::{Result, bail, ensure};
use prost::{Message, Oneof};

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the protocol's own")]
pub enum Packet {
    /// CLOSE_REQ, type 2.
    CloseReq { connect_id: i64 },
    /// CLOSE_RSP, type 3.
    CloseRsp { connect_id: i64, error: String },
    /// CREDIT, type 64, no upstream program knows it.
    Credit { connect_id: i64, bytes: u64 },
    /// DATA, type 4.
    Data { connect_id: i64, data: Vec<u8> },
    /// DIAL_CLS, type 5.
    DialCls { random: i64 },
    /// DIAL_REQ, type 0.
    DialReq { address: String, random: i64 },
    /// DIAL_RSP, type 1.
    DialRsp {
        error: String,
        connect_id: i64,
        random: i64,
    },
    /// DRAIN, type 6.
    Drain,
    /// A type without any payload: what crashes upstream's programs when it is 0.
    Empty { packet_type: u64 },
    /// FIN, type 65, no upstream program knows it.
    Fin { connect_id: i64 },
}

impl Packet {
    /// Makes a DATA packet.
    pub fn data(connect_id: i64, data: impl Into<Vec<u8>>) -> Self {
        Self::Data {
            connect_id,
            data: data.into(),
        }
    }

    /// Returns the connection it belongs to.
    pub fn connect_id(&self) -> Option<i64> {
        match self {
            Self::CloseReq { connect_id }
            | Self::CloseRsp { connect_id, .. }
            | Self::Credit { connect_id, .. }
            | Self::Data { connect_id, .. }
            | Self::DialRsp { connect_id, .. }
            | Self::Fin { connect_id } => Some(*connect_id),
            Self::DialCls { .. } | Self::DialReq { .. } | Self::Drain | Self::Empty { .. } => None,
        }
    }

    /// Returns the message, without gRPC's five bytes.
    pub fn encode(&self) -> Vec<u8> {
        Wire::from(self.clone()).encode_to_vec()
    }

    /// Reads a message, strictly: a field that the description does not have is an error.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let wire = Wire::decode(message)?;
        // Unknown fields are skipped, and the last of two payloads wins: neither is encoded again.
        let known = wire.encoded_len();
        ensure!(known == message.len(), "fields unknown: {message:?}");
        wire.packet()
    }
}

/// A packet as it is on the wire, its type first.
#[derive(Clone, PartialEq, Message)]
struct Wire(
    #[prost(uint64, tag = "1")] u64,
    #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7, 8, 64, 65")] Option<Payload>,
);

#[derive(Clone, PartialEq, Oneof)]
enum Payload {
    #[prost(message, tag = "2")]
    DialReq(DialRequest),
    #[prost(message, tag = "3")]
    DialRsp(DialResponse),
    #[prost(message, tag = "4")]
    Data(Data),
    #[prost(message, tag = "5")]
    CloseReq(Connection),
    #[prost(message, tag = "6")]
    CloseRsp(CloseResponse),
    #[prost(message, tag = "7")]
    DialCls(Connection),
    #[prost(message, tag = "8")]
    Drain(Nothing),
    #[prost(message, tag = "64")]
    Credit(Credit),
    #[prost(message, tag = "65")]
    Fin(Connection),
}

/// Protocol, address, random number.
#[derive(Clone, PartialEq, Message)]
struct DialRequest(
    #[prost(string, tag = "1")] String,
    #[prost(string, tag = "2")] String,
    #[prost(int64, tag = "3")] i64,
);

/// Error, the id of the connection, random number.
#[derive(Clone, PartialEq, Message)]
struct DialResponse(
    #[prost(string, tag = "1")] String,
    #[prost(int64, tag = "2")] i64,
    #[prost(int64, tag = "3")] i64,
);

/// The id of a connection, or the random number of a dial.
#[derive(Clone, PartialEq, Message)]
struct Connection(#[prost(int64, tag = "1")] i64);

/// Error, the id of the connection.
#[derive(Clone, PartialEq, Message)]
struct CloseResponse(
    #[prost(string, tag = "1")] String,
    #[prost(int64, tag = "2")] i64,
);

#[derive(Clone, PartialEq, Message)]
struct Data(
    #[prost(int64, tag = "1")] i64,
    #[prost(bytes = "vec", tag = "3")] Vec<u8>,
);

#[derive(Clone, PartialEq, Message)]
struct Credit(
    #[prost(int64, tag = "1")] i64,
    #[prost(uint64, tag = "2")] u64,
);

#[derive(Clone, PartialEq, Message)]
struct Nothing {}

impl From<Packet> for Wire {
    fn from(packet: Packet) -> Self {
        let (packet_type, payload) = match packet {
            Packet::DialReq { address, random } => (
                0,
                Payload::DialReq(DialRequest("tcp".to_owned(), address, random)),
            ),
            Packet::DialRsp {
                error,
                connect_id,
                random,
            } => (1, Payload::DialRsp(DialResponse(error, connect_id, random))),
            Packet::CloseReq { connect_id } => (2, Payload::CloseReq(Connection(connect_id))),
            Packet::CloseRsp { connect_id, error } => {
                (3, Payload::CloseRsp(CloseResponse(error, connect_id)))
            }
            Packet::Data { connect_id, data } => (4, Payload::Data(Data(connect_id, data))),
            Packet::DialCls { random } => (5, Payload::DialCls(Connection(random))),
            Packet::Drain => (6, Payload::Drain(Nothing {})),
            Packet::Credit { connect_id, bytes } => {
                (64, Payload::Credit(Credit(connect_id, bytes)))
            }
            Packet::Fin { connect_id } => (65, Payload::Fin(Connection(connect_id))),
            Packet::Empty { packet_type } => return Self(packet_type, None),
        };
        Self(packet_type, Some(payload))
    }
}

impl Wire {
    /// Returns the packet of the type; a payload of another type is an error.
    fn packet(self) -> Result<Packet> {
        let Self(packet_type, payload) = self;
        let Some(payload) = payload else {
            return Ok(Packet::Empty { packet_type });
        };
        Ok(match (packet_type, payload) {
            (0, Payload::DialReq(DialRequest(protocol, address, random))) => {
                ensure!(protocol == "tcp", "protocol {protocol:?}");
                Packet::DialReq { address, random }
            }
            (1, Payload::DialRsp(DialResponse(error, connect_id, random))) => Packet::DialRsp {
                error,
                connect_id,
                random,
            },
            (2, Payload::CloseReq(Connection(connect_id))) => Packet::CloseReq { connect_id },
            (3, Payload::CloseRsp(CloseResponse(error, connect_id))) => {
                Packet::CloseRsp { connect_id, error }
            }
            (4, Payload::Data(Data(connect_id, data))) => Packet::Data { connect_id, data },
            (5, Payload::DialCls(Connection(random))) => Packet::DialCls { random },
            (6, Payload::Drain(Nothing {})) => Packet::Drain,
            (64, Payload::Credit(Credit(connect_id, bytes))) => {
                Packet::Credit { connect_id, bytes }
            }
            (65, Payload::Fin(Connection(connect_id))) => Packet::Fin { connect_id },
            (_, payload) => bail!("type {packet_type} with {payload:?}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_match_the_description() {
        let dial = Packet::DialReq {
            address: "a:1".to_owned(),
            random: 300,
        };
        // Type 0 is not written; field 2 is the dial.
        let expected = b"\x12\x0d\x0a\x03tcp\x12\x03a:1\x18\xac\x02";
        assert_eq!(dial.encode(), expected);
        let data = Packet::data(1, *b"xy");
        assert_eq!(data.encode(), b"\x08\x04\x22\x06\x08\x01\x1a\x02xy");
        assert_eq!(Packet::Drain.encode(), b"\x08\x06\x42\x00");
    }

    #[test]
    fn packet_reads_back_as_written() {
        for packet in [
            Packet::CloseReq { connect_id: 7 },
            Packet::CloseRsp {
                connect_id: -1,
                error: "gone".to_owned(),
            },
            Packet::Credit {
                connect_id: 1,
                bytes: 1 << 40,
            },
            Packet::data(0, Vec::new()),
            Packet::DialCls { random: i64::MAX },
            Packet::DialRsp {
                error: String::new(),
                connect_id: 1,
                random: i64::MIN,
            },
            Packet::Drain,
            Packet::Empty { packet_type: 0 },
            Packet::Fin { connect_id: 3 },
        ] {
            assert_eq!(Packet::decode(&packet.encode()).unwrap(), packet);
        }
    }

    #[test]
    fn malformed_packet_is_refused() {
        for message in [
            &b"\x08"[..],
            b"\x0a\x01",
            b"\x08\x04\x2a\x00",
            b"\x08\x63\x0a\x00",
        ] {
            assert!(Packet::decode(message).is_err(), "{message:?}");
        }
    }
}
