//! Checks a message against the tables of its fields, before it is decoded.
//!
//! Decoding drops unknown fields. A control plane that sends one would rely on
//! something that has no effect, so such a resource is refused with the field's path.

use std::str;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::decode::fault::Fault;
use crate::proto::known::{Field, Kind, Known, Message};

/// Messages inside messages; those of the tables nest less deeply, but for matchers in matchers.
const MAX_DEPTH: usize = 32;

/// Messages with the fields of another one by name: understood only where those do not matter.
const TYPED_STRUCTS: [&str; 2] = ["udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"];

/// Checks that `body` holds nothing that is not understood.
pub(super) fn walk<M: Known>(body: &[u8]) -> Result<(), Fault> {
    walk_at(M::known(), body, 0)
}

fn walk_at(message: &Message, body: &[u8], depth: usize) -> Result<(), Fault> {
    if depth > MAX_DEPTH {
        return Err(Fault::new("it is nested too deeply"));
    }
    let mut rest = body;
    while !rest.is_empty() {
        let before = body.len() - rest.len();
        let (number, value) = field(&mut rest).ok_or_else(malformed)?;
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
fn follow(field: &Field, value: Option<&[u8]>, depth: usize) -> Result<(), Fault> {
    match field.2 {
        Kind::Ignored | Kind::Value => Ok(()),
        Kind::One(message) | Kind::Each(message) => {
            walk_at(message(), value.ok_or_else(malformed)?, depth + 1)
        }
        Kind::Any(messages) => {
            let (mut kind, mut body) = any(value.ok_or_else(malformed)?)?;
            let by_names = TYPED_STRUCTS.contains(&kind);
            if by_names {
                (kind, body) = any(body)?;
            }
            match messages.iter().find(|(name, _)| *name == kind) {
                Some((_, None)) => Ok(()),
                Some((name, Some(message))) if !by_names => {
                    let name = name.rsplit('.').next().unwrap_or(name);
                    walk_at(message(), body, depth + 1)
                        .map_err(|fault| fault.within(format_args!("({name})")))
                }
                Some(_) | None => Err(Fault::new(format!("the type {kind:?} is not understood"))),
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
    let mut rest = before;
    let earlier = std::iter::from_fn(|| self::field(&mut rest));
    let place = earlier.filter(|(other, _)| other == number).count();
    format!("{name}[{place}]")
}

/// Unpacks an `Any`: the full name of its message, and the message.
fn any(body: &[u8]) -> Result<(&str, &[u8]), Fault> {
    let mut rest = body;
    let (mut url, mut value): (&[u8], &[u8]) = (&[], &[]);
    while !rest.is_empty() {
        match field(&mut rest).ok_or_else(malformed)? {
            (1, Some(bytes)) => url = bytes,
            (2, Some(bytes)) => value = bytes,
            _ => return Err(malformed()),
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

/// Reads a field: its number, and its bytes if it has a length; `None` when it is not a whole one.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u32, Option<&'a [u8]>)> {
    let (number, wire) = decode_key(rest).ok()?;
    match wire {
        WireType::LengthDelimited => {
            let len = usize::try_from(decode_varint(rest).ok()?).ok()?;
            let (value, after) = rest.split_at_checked(len)?;
            *rest = after;
            Some((number, Some(value)))
        }
        WireType::SixtyFourBit | WireType::ThirtyTwoBit | WireType::Varint => {
            skip_field(wire, number, rest, DecodeContext::default()).ok()?;
            Some((number, None))
        }
        WireType::EndGroup | WireType::StartGroup => None,
    }
}
