//! The packets of the protocol, read from and written as protobuf.
//!
//! ```text
//! message bytes ──▶ decode: bounds, type agrees with payload ──▶ Packet
//! Packet ──▶ encode ──▶ message bytes        DATA: head ──▶ buffer, payload ──▶ sent as it is
//! ```
//!
//! Knows nothing of the five bytes gRPC puts before a message ([`frame`](crate::frame) does),
//! nor of what a packet means.

mod wire;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::id::{ConnectId, DialId};

/// One packet. Texts are what the peer sent, bounded in length but not otherwise checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// DIAL_CLS: the dialler no longer wants the dial.
    CloseDial {
        /// The dial.
        random: DialId,
    },
    /// CLOSE_REQ: end the connection.
    CloseRequest {
        /// The connection.
        connect_id: ConnectId,
    },
    /// CLOSE_RSP: the connection has ended, asked for or not.
    CloseResponse {
        /// The connection.
        connect_id: ConnectId,
        /// Why, or empty.
        error: String,
    },
    /// CREDIT, ours: the receiver takes so many bytes more.
    Credit {
        /// The connection.
        connect_id: ConnectId,
        /// Bytes, in addition to what was granted before.
        bytes: u64,
    },
    /// DATA.
    Data {
        /// The connection; 0 is none.
        connect_id: ConnectId,
        /// The bytes, a slice of the message they came in.
        data: Bytes,
    },
    /// DIAL_REQ: open a connection.
    DialRequest {
        /// `tcp`.
        protocol: String,
        /// `host:port`, to be resolved by the agent.
        address: String,
        /// The dialler's number for the dial.
        random: DialId,
    },
    /// DIAL_RSP: what became of a dial.
    DialResponse {
        /// Empty when it succeeded.
        error: String,
        /// The new connection; 0 with an error.
        connect_id: ConnectId,
        /// The dial that is answered.
        random: DialId,
    },
    /// DRAIN: dial others if you can; from a server, ours: connect to others.
    Drain,
    /// A known type without its payload. Upstream crashes on these; they mean nothing.
    Empty,
    /// FIN, ours: no more DATA will come on this connection, but it may go the other way.
    Fin {
        /// The connection.
        connect_id: ConnectId,
    },
    /// A type that is not known here, to be ignored.
    Unknown {
        /// The number of the type.
        packet_type: i32,
    },
}

/// What a packet is, as counted by the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PacketKind {
    /// DIAL_CLS.
    CloseDial,
    /// CLOSE_REQ.
    CloseRequest,
    /// CLOSE_RSP.
    CloseResponse,
    /// CREDIT.
    Credit,
    /// DATA.
    Data,
    /// DIAL_REQ.
    DialRequest,
    /// DIAL_RSP.
    DialResponse,
    /// DRAIN.
    Drain,
    /// FIN.
    Fin,
    /// Any other.
    Unknown,
}

impl PacketKind {
    /// Returns the name upstream's metrics use, in capitals.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CloseDial => "DIAL_CLS",
            Self::CloseRequest => "CLOSE_REQ",
            Self::CloseResponse => "CLOSE_RSP",
            Self::Credit => "CREDIT",
            Self::Data => "DATA",
            Self::DialRequest => "DIAL_REQ",
            Self::DialResponse => "DIAL_RSP",
            Self::Drain => "DRAIN",
            Self::Fin => "FIN",
            Self::Unknown => "Unknown",
        }
    }
}

/// Longest message that is accepted, in bytes: upstream sends up to 4 MiB, and a frontend's
/// single write may be larger.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Longest address of a dial: a name of 255 bytes (RFC 1035 §2.3.4), or an IPv6 address with its
/// zone, and a port, with space to spare.
pub const MAX_ADDRESS: usize = 512;
/// Longest name of a protocol.
pub const MAX_PROTOCOL: usize = 32;
/// Longest error text; Go's dial errors name the address twice and fit easily.
pub const MAX_ERROR: usize = 4096;

/// Why a message is no packet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PacketError {
    /// Not protobuf, or fields of another shape than the protocol's.
    #[error("decoding a packet")]
    Malformed(#[source] prost::DecodeError),
    /// The payload belongs to another type.
    #[error("a packet of type {packet_type} carries the payload of another type")]
    PayloadMismatch {
        /// The type given.
        packet_type: i32,
    },
    /// Longer than its bound.
    #[error("{field} of {len} bytes, more than {max}")]
    TooLong {
        /// What is too long.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The bound.
        max: usize,
    },
}

impl Packet {
    /// Reads the packet that `message` is, whole; DATA keeps a slice of it instead of a copy.
    ///
    /// # Errors
    /// - [`PacketError::TooLong`] above [`MAX_MESSAGE`] or [`MAX_ERROR`]. Where a dial leads is for
    ///   [`check_dial`]: one that cannot be dialed is answered, and ends no stream.
    /// - [`PacketError::Malformed`] when it is no protobuf.
    /// - [`PacketError::PayloadMismatch`] when type and payload disagree.
    pub fn decode(message: Bytes) -> Result<Self, PacketError> {
        bound("message", message.len(), MAX_MESSAGE)?;
        let packet = wire::Packet::decode(message).map_err(PacketError::Malformed)?;
        let packet_type = packet.packet_type;
        if !is_known(packet_type) {
            return Ok(Self::Unknown { packet_type });
        }
        match packet.payload {
            None if packet_type == DRAIN => Ok(Self::Drain),
            None => Ok(Self::Empty),
            Some(payload) if payload_type(&payload) == packet_type => Self::of(payload),
            Some(_) => Err(PacketError::PayloadMismatch { packet_type }),
        }
    }

    fn of(payload: wire::Payload) -> Result<Self, PacketError> {
        use wire::Payload;
        Ok(match payload {
            Payload::CloseDial(close) => Self::CloseDial {
                random: DialId(close.random),
            },
            Payload::CloseRequest(close) => Self::CloseRequest {
                connect_id: ConnectId(close.connect_id),
            },
            Payload::CloseResponse(close) => {
                bound("error", close.error.len(), MAX_ERROR)?;
                Self::CloseResponse {
                    connect_id: ConnectId(close.connect_id),
                    error: close.error,
                }
            }
            Payload::Credit(credit) => Self::Credit {
                connect_id: ConnectId(credit.connect_id),
                bytes: credit.bytes,
            },
            Payload::Data(data) => Self::Data {
                connect_id: ConnectId(data.connect_id),
                data: data.data,
            },
            Payload::DialRequest(dial) => Self::DialRequest {
                protocol: dial.protocol,
                address: dial.address,
                random: DialId(dial.random),
            },
            Payload::DialResponse(dial) => {
                bound("error", dial.error.len(), MAX_ERROR)?;
                Self::DialResponse {
                    error: dial.error,
                    connect_id: ConnectId(dial.connect_id),
                    random: DialId(dial.random),
                }
            }
            Payload::Drain(()) => Self::Drain,
            Payload::Fin(fin) => Self::Fin {
                connect_id: ConnectId(fin.connect_id),
            },
        })
    }

    /// Appends the packet to `buf`. [`Packet::Empty`] and [`Packet::Unknown`], which are only ever
    /// received, append nothing.
    pub fn encode(self, buf: &mut BytesMut) {
        let Some(payload) = self.into_payload() else {
            return;
        };
        let packet = wire::Packet {
            packet_type: payload_type(&payload),
            payload: Some(payload),
        };
        packet.encode_raw(buf);
    }

    fn into_payload(self) -> Option<wire::Payload> {
        use wire::Payload;
        Some(match self {
            Self::CloseDial { random } => Payload::CloseDial(wire::CloseDial { random: random.0 }),
            Self::CloseRequest { connect_id } => Payload::CloseRequest(wire::ConnectionOnly {
                connect_id: connect_id.0,
            }),
            Self::CloseResponse { connect_id, error } => {
                Payload::CloseResponse(wire::CloseResponse {
                    error,
                    connect_id: connect_id.0,
                })
            }
            Self::Credit { connect_id, bytes } => Payload::Credit(wire::Credit {
                connect_id: connect_id.0,
                bytes,
            }),
            Self::Data { connect_id, data } => Payload::Data(wire::Data {
                connect_id: connect_id.0,
                data,
            }),
            Self::DialRequest {
                protocol,
                address,
                random,
            } => Payload::DialRequest(wire::DialRequest {
                protocol,
                address,
                random: random.0,
            }),
            Self::DialResponse {
                error,
                connect_id,
                random,
            } => Payload::DialResponse(wire::DialResponse {
                error,
                connect_id: connect_id.0,
                random: random.0,
            }),
            Self::Drain => Payload::Drain(()),
            Self::Empty | Self::Unknown { .. } => return None,
            Self::Fin { connect_id } => Payload::Fin(wire::ConnectionOnly {
                connect_id: connect_id.0,
            }),
        })
    }

    /// Returns the bytes of payload that the packet keeps: those whose number has no small bound.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        match self {
            Self::Data { data, .. } => data.len(),
            Self::DialRequest {
                protocol, address, ..
            } => protocol.len() + address.len(),
            Self::CloseDial { .. }
            | Self::CloseRequest { .. }
            | Self::CloseResponse { .. }
            | Self::Credit { .. }
            | Self::DialResponse { .. }
            | Self::Drain
            | Self::Empty
            | Self::Fin { .. }
            | Self::Unknown { .. } => 0,
        }
    }

    /// Returns what the packet is.
    #[must_use]
    pub fn kind(&self) -> PacketKind {
        match self {
            Self::CloseDial { .. } => PacketKind::CloseDial,
            Self::CloseRequest { .. } => PacketKind::CloseRequest,
            Self::CloseResponse { .. } => PacketKind::CloseResponse,
            Self::Credit { .. } => PacketKind::Credit,
            Self::Data { .. } => PacketKind::Data,
            Self::DialRequest { .. } => PacketKind::DialRequest,
            Self::DialResponse { .. } => PacketKind::DialResponse,
            Self::Drain => PacketKind::Drain,
            Self::Empty | Self::Unknown { .. } => PacketKind::Unknown,
            Self::Fin { .. } => PacketKind::Fin,
        }
    }
}

/// Checks the lengths of what a dial asks for.
///
/// # Errors
/// [`PacketError::TooLong`] above [`MAX_PROTOCOL`] or [`MAX_ADDRESS`].
pub fn check_dial(protocol: &str, address: &str) -> Result<(), PacketError> {
    bound("protocol", protocol.len(), MAX_PROTOCOL)?;
    bound("address", address.len(), MAX_ADDRESS)
}

/// Appends everything of a DATA packet but its `len` bytes of payload, which must follow.
///
/// The payload is the last field of the packet, so that it can be sent from where it is.
pub fn encode_data_head(connect_id: ConnectId, len: usize, buf: &mut BytesMut) {
    // Protobuf writes an int64 as the unsigned number of the same 64 bits.
    let id = connect_id.0.cast_unsigned();
    let id_len = if id == 0 { 0 } else { 1 + varint_len(id) };
    let data_len = if len == 0 {
        0
    } else {
        1 + varint_len(len as u64) + len
    };
    buf.put_slice(&[PACKET_TYPE, DATA_TYPE, DATA_PAYLOAD]);
    put_varint((id_len + data_len) as u64, buf);
    if id != 0 {
        buf.put_u8(DATA_CONNECT_ID);
        put_varint(id, buf);
    }
    if len != 0 {
        buf.put_u8(DATA_DATA);
        put_varint(len as u64, buf);
    }
}

fn varint_len(value: u64) -> usize {
    // Seven bits a byte, and one byte for 0.
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

fn put_varint(mut value: u64, buf: &mut BytesMut) {
    while value >= 0x80 {
        buf.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    buf.put_u8((value & 0x7f) as u8);
}

fn bound(field: &'static str, len: usize, max: usize) -> Result<(), PacketError> {
    if len > max {
        return Err(PacketError::TooLong { field, len, max });
    }
    Ok(())
}

fn is_known(packet_type: i32) -> bool {
    matches!(packet_type, 0..=DRAIN | CREDIT | FIN)
}

fn payload_type(payload: &wire::Payload) -> i32 {
    use wire::Payload;
    match payload {
        Payload::DialRequest(_) => 0,
        Payload::DialResponse(_) => 1,
        Payload::CloseRequest(_) => 2,
        Payload::CloseResponse(_) => 3,
        Payload::Data(_) => i32::from(DATA_TYPE),
        Payload::CloseDial(_) => 5,
        Payload::Drain(_) => DRAIN,
        Payload::Credit(_) => CREDIT,
        Payload::Fin(_) => FIN,
    }
}

const DRAIN: i32 = 6;
const CREDIT: i32 = 64;
const FIN: i32 = 65;

/// Keys of fields: number << 3 | wire type (0 varint, 2 length and bytes).
const PACKET_TYPE: u8 = 1 << 3;
const DATA_TYPE: u8 = 4;
const DATA_PAYLOAD: u8 = 4 << 3 | 2;
const DATA_CONNECT_ID: u8 = 1 << 3;
const DATA_DATA: u8 = 3 << 3 | 2;
