//! Checks a message against the tables of its fields, before it is decoded.
//!
//! Decoding drops unknown fields. A control plane that sends one would rely on
//! something that has no effect, so such a resource is refused with the field's path.

use std::str;

use crate::decode::fault::Fault;
use crate::proto::known::{Field, Kind, Known, Message};

/// Messages inside messages; those of the tables nest less deeply, but for matchers in matchers.
const MAX_DEPTH: usize = 32;

const VARINT: u64 = 0;
const FIXED_64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED_32: u64 = 5;

/// Checks that `body` holds nothing that is not understood.
pub(super) fn walk<M: Known>(body: &[u8]) -> Result<(), Fault> {
    walk_at(M::known(), body, 0)
}

fn walk_at(message: &Message, body: &[u8], depth: usize) -> Result<(), Fault> {
    if depth > MAX_DEPTH {
        return Err(Fault::new("it is nested too deeply"));
    }
    let mut reader = Reader { rest: body };
    while !reader.rest.is_empty() {
        let before = body.len() - reader.rest.len();
        let (number, value) = reader.field().ok_or_else(malformed)?;
        let Some(field) = message.fields.iter().find(|field| field.0 == number) else {
            if message.ignored.contains(&number) {
                continue;
            }
            let mut refused = message.refused.iter();
            return Err(match refused.find(|field| field.0 == number) {
                Some((_, name)) => Fault::at(name, "the field is not understood"),
                None => Fault::at(format!("#{number}"), "the field is unknown"),
            });
        };
        let step = || step(field, body.get(..before).unwrap_or_default());
        follow(field, value, depth).map_err(|fault| fault.within(step()))?;
    }
    Ok(())
}

/// Checks the value of a field.
fn follow(field: &Field, value: Value<'_>, depth: usize) -> Result<(), Fault> {
    match field.2 {
        Kind::Ignored | Kind::Value => Ok(()),
        Kind::One(message) | Kind::Each(message) => {
            walk_at(message(), value.bytes().ok_or_else(malformed)?, depth + 1)
        }
        Kind::Any(messages) => {
            let (kind, body) = any(value.bytes().ok_or_else(malformed)?)?;
            match messages.iter().find(|(name, _)| *name == kind) {
                Some((_, None)) => Ok(()),
                Some((name, Some(message))) => {
                    let name = name.rsplit('.').next().unwrap_or(name);
                    walk_at(message(), body, depth + 1)
                        .map_err(|fault| fault.within(format_args!("({name})")))
                }
                None => Err(Fault::new(format!("the type {kind:?} is not understood"))),
            }
        }
    }
}

/// Writes a field as in a path: with its place when there may be several.
fn step(field: &Field, before: &[u8]) -> String {
    let (number, name, kind) = field;
    if !matches!(kind, Kind::Each(_)) {
        return (*name).to_owned();
    }
    let mut reader = Reader { rest: before };
    let earlier = std::iter::from_fn(|| reader.field());
    let place = earlier.filter(|(other, _)| other == number).count();
    format!("{name}[{place}]")
}

/// Unpacks an `Any`: the full name of its message, and the message.
fn any(body: &[u8]) -> Result<(&str, &[u8]), Fault> {
    let mut reader = Reader { rest: body };
    let (mut url, mut value): (&[u8], &[u8]) = (&[], &[]);
    while !reader.rest.is_empty() {
        match reader.field().ok_or_else(malformed)? {
            (1, Value::Bytes(bytes)) => url = bytes,
            (2, Value::Bytes(bytes)) => value = bytes,
            (_, Value::Bytes(_) | Value::Number) => return Err(malformed()),
        }
    }
    let url = str::from_utf8(url).map_err(|_| malformed())?;
    // What stands before the last slash says where a type is described, not which it is.
    let name = url.rsplit('/').next().unwrap_or(url);
    Ok((name, value))
}

fn malformed() -> Fault {
    Fault::new("it is malformed")
}

/// A value on the wire.
#[derive(Clone, Copy)]
enum Value<'a> {
    Number,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Number => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// Reads fields one after the other.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a field; `None` when there is none, or not a whole one.
    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
        let value = match tag & 7 {
            VARINT => self.varint().map(|_| Value::Number)?,
            FIXED_64 => self.take(8).map(|_| Value::Number)?,
            DELIMITED => {
                let len = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.take(len)?)
            }
            FIXED_32 => self.take(4).map(|_| Value::Number)?,
            _ => return None,
        };
        Some((number, value))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f).checked_shl(7 * place).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }
}
