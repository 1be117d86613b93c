//! The protocol's packets, written from the field numbers of its description.
//!
//! A packet is field 1, the type, and one message in a field of its own. As proto3 has it, what is 0
//! or empty is not written.

use anyhow::{Context, Result, bail, ensure};

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
    #[must_use]
    pub fn data(connect_id: i64, data: impl Into<Vec<u8>>) -> Self {
        Self::Data {
            connect_id,
            data: data.into(),
        }
    }

    /// Returns the connection it belongs to.
    #[must_use]
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

    /// Returns the message, without gRPC's five octets.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (packet_type, payload): (u64, _) = match self {
            Self::DialReq { address, random } => (
                0,
                message(&[(1, Text("tcp")), (2, Text(address)), (3, Int(*random))]),
            ),
            Self::DialRsp {
                error,
                connect_id,
                random,
            } => (
                1,
                message(&[(1, Text(error)), (2, Int(*connect_id)), (3, Int(*random))]),
            ),
            Self::CloseReq { connect_id } => (2, message(&[(1, Int(*connect_id))])),
            Self::CloseRsp { connect_id, error } => {
                (3, message(&[(1, Text(error)), (2, Int(*connect_id))]))
            }
            Self::Data { connect_id, data } => {
                (4, message(&[(1, Int(*connect_id)), (3, Octets(data))]))
            }
            Self::DialCls { random } => (5, message(&[(1, Int(*random))])),
            Self::Drain => (6, Vec::new()),
            Self::Credit { connect_id, bytes } => {
                let bytes = Int(bytes.cast_signed());
                (64, message(&[(1, Int(*connect_id)), (2, bytes)]))
            }
            Self::Fin { connect_id } => (65, message(&[(1, Int(*connect_id))])),
            Self::Empty { packet_type } => {
                return message(&[(1, Int(packet_type.cast_signed()))]);
            }
        };
        let mut packet = message(&[(1, Int(packet_type.cast_signed()))]);
        put_octets(payload_field(packet_type), &payload, &mut packet);
        packet
    }

    /// Reads a message, strictly: a field that the description does not have is an error.
    ///
    /// # Errors
    /// When it is no packet of the description.
    pub fn decode(message: &[u8]) -> Result<Self> {
        let mut packet_type = 0;
        let mut payload = None;
        for (number, value) in fields(message)? {
            match (number, value) {
                (1, Value::Number(value)) => packet_type = value,
                (number, Value::Octets(octets)) if number > 1 => {
                    ensure!(payload.is_none(), "two payloads");
                    payload = Some((number, octets));
                }
                other => bail!("field {other:?} of a packet"),
            }
        }
        let Some((number, octets)) = payload else {
            return Ok(Self::Empty { packet_type });
        };
        ensure!(
            number == payload_field(packet_type),
            "type {packet_type} with payload {number}"
        );
        Self::of(packet_type, &Fields(fields(octets)?))
    }

    fn of(packet_type: u64, fields: &Fields<'_>) -> Result<Self> {
        let only = |known: &[u64]| {
            let unknown = fields.0.iter().find(|(number, _)| !known.contains(number));
            ensure!(unknown.is_none(), "type {packet_type}: {unknown:?}");
            Ok(())
        };
        Ok(match packet_type {
            0 => {
                only(&[1, 2, 3])?;
                ensure!(fields.text(1)? == "tcp", "protocol {:?}", fields.text(1));
                Self::DialReq {
                    address: fields.text(2)?,
                    random: fields.int(3)?,
                }
            }
            1 => {
                only(&[1, 2, 3])?;
                Self::DialRsp {
                    error: fields.text(1)?,
                    connect_id: fields.int(2)?,
                    random: fields.int(3)?,
                }
            }
            2 | 65 => {
                only(&[1])?;
                let connect_id = fields.int(1)?;
                if packet_type == 2 {
                    Self::CloseReq { connect_id }
                } else {
                    Self::Fin { connect_id }
                }
            }
            3 => {
                only(&[1, 2])?;
                Self::CloseRsp {
                    error: fields.text(1)?,
                    connect_id: fields.int(2)?,
                }
            }
            4 => {
                only(&[1, 3])?;
                Self::Data {
                    connect_id: fields.int(1)?,
                    data: fields.octets(3)?.to_vec(),
                }
            }
            5 => {
                only(&[1])?;
                Self::DialCls {
                    random: fields.int(1)?,
                }
            }
            6 => {
                only(&[])?;
                Self::Drain
            }
            64 => {
                only(&[1, 2])?;
                Self::Credit {
                    connect_id: fields.int(1)?,
                    bytes: fields.int(2)?.cast_unsigned(),
                }
            }
            other => bail!("a packet of type {other}"),
        })
    }
}

fn payload_field(packet_type: u64) -> u64 {
    match packet_type {
        0 => 2,
        1 => 3,
        2 => 5,
        3 => 6,
        4 => 4,
        5 => 7,
        6 => 8,
        own => own,
    }
}

use Field::{Int, Octets, Text};

enum Field<'a> {
    Int(i64),
    Octets(&'a [u8]),
    Text(&'a str),
}

fn message(fields: &[(u64, Field<'_>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, field) in fields {
        match field {
            Int(0) => {}
            Int(value) => {
                put_number(number << 3, &mut out);
                put_number(value.cast_unsigned(), &mut out);
            }
            Octets([]) | Text("") => {}
            Octets(octets) => put_octets(*number, octets, &mut out),
            Text(text) => put_octets(*number, text.as_bytes(), &mut out),
        }
    }
    out
}

fn put_octets(number: u64, octets: &[u8], out: &mut Vec<u8>) {
    put_number(number << 3 | 2, out);
    put_number(octets.len() as u64, out);
    out.extend_from_slice(octets);
}

fn put_number(mut value: u64, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[derive(Debug)]
enum Value<'a> {
    Number(u64),
    Octets(&'a [u8]),
}

struct Fields<'a>(Vec<(u64, Value<'a>)>);

impl Fields<'_> {
    fn int(&self, number: u64) -> Result<i64> {
        match self.find(number) {
            None => Ok(0),
            Some(Value::Number(value)) => Ok(value.cast_signed()),
            Some(Value::Octets(_)) => bail!("field {number} is no number"),
        }
    }

    fn octets(&self, number: u64) -> Result<&[u8]> {
        match self.find(number) {
            None => Ok(&[]),
            Some(Value::Octets(octets)) => Ok(octets),
            Some(Value::Number(_)) => bail!("field {number} is a number"),
        }
    }

    fn text(&self, number: u64) -> Result<String> {
        String::from_utf8(self.octets(number)?.to_vec()).context("a text that is not UTF-8")
    }

    fn find(&self, number: u64) -> Option<&Value<'_>> {
        self.0
            .iter()
            .find(|(found, _)| *found == number)
            .map(|(_, value)| value)
    }
}

fn fields(mut message: &[u8]) -> Result<Vec<(u64, Value<'_>)>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let key = number(&mut message)?;
        let value = match key & 7 {
            0 => Value::Number(number(&mut message)?),
            2 => {
                let len = usize::try_from(number(&mut message)?)?;
                let (octets, rest) = message
                    .split_at_checked(len)
                    .context("a field longer than its message")?;
                message = rest;
                Value::Octets(octets)
            }
            other => bail!("wire type {other}"),
        };
        fields.push((key >> 3, value));
    }
    Ok(fields)
}

fn number(message: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (octet, rest) = message.split_first().context("a number without an end")?;
        *message = rest;
        value |= u64::from(octet & 0x7f) << shift;
        if octet & 0x80 == 0 {
            return Ok(value);
        }
    }
    bail!("a number of more than ten octets")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_those_of_the_description() {
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
    fn what_is_written_is_read_again() {
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
    fn what_is_no_packet_is_refused() {
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
