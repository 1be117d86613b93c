//! Control messages: what the two ends of a TCP stream tell each other beside the datagrams.
//!
//! ```text
//!  type  fields, big-endian
//!   1    hello     version u8, instance u64, length u8, identity
//!   2    ping      id u32, sent u64
//!   3    pong      id u32, sent u64 (the ping's), delay u32
//!   4    drain     grace u32, milliseconds
//!   5    MTU hint  mtu u16, octets of an inner packet
//!   6    padding   any octets, 511 as it is sent
//!   7    request   octets u32, of padding
//! ```
//!
//! A later version may append fields to a message and add types: what follows the known fields is
//! skipped, an unknown type is handed up as such. Says nothing of when to send which.

use std::time::Duration;

use bytes::{BufMut, BytesMut};

use super::FrameError;
use crate::octets::{u8_at, u16_at, u32_at, u64_at};

/// The most octets of a control message. Larger ones end the stream.
pub const MAX_CONTROL_LEN: u16 = 512;
/// The most octets of an identity.
pub const MAX_IDENTITY_LEN: usize = 128;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// The sender is about to go: take another path, then close.
    Drain {
        /// For how long this stream will still work; to the millisecond, at most about 49 days.
        grace: Duration,
    },
    /// The first message of each end.
    Hello {
        /// The highest version of these messages the sender knows; 1 at present.
        version: u8,
        /// A number drawn at the sender's start, so that a restart can be told from a reconnect.
        instance: u64,
        /// What the sender calls itself. A claim, for logs only.
        identity: Identity<'a>,
    },
    /// The largest inner packet the sender would like to get.
    MtuHint {
        /// Octets of an IP packet, 576 to 65535.
        mtu: u16,
    },
    /// Nothing: to be thrown away.
    Padding,
    /// So much padding is asked for.
    PaddingRequest {
        /// Octets of the frames.
        octets: u32,
    },
    /// To be answered by a pong at once.
    Ping {
        /// Chosen by the sender.
        id: u32,
        /// The sender's clock, in microseconds since a moment of its own.
        sent: u64,
    },
    /// The answer to a ping.
    Pong {
        /// The ping's.
        id: u32,
        /// The ping's.
        sent: u64,
        /// Microseconds between the arrival of the ping and the sending of this, so that they can
        /// be taken off the round trip.
        delay: u32,
    },
    /// A type this version does not know. To be ignored.
    Unknown {
        /// The type.
        kind: u8,
    },
}

impl<'a> Control<'a> {
    pub(super) fn decode(message: &'a [u8]) -> Result<Self, FrameError> {
        let kind = u8_at(message, 0).ok_or(FrameError::Empty)?;
        let control = match kind {
            HELLO => hello(message),
            PING => ping(message),
            PONG => pong(message),
            DRAIN => u32_at(message, 1).map(|millis| Self::Drain {
                grace: Duration::from_millis(millis.into()),
            }),
            MTU_HINT => u16_at(message, 1)
                .filter(|mtu| *mtu >= LEAST_MTU)
                .map(|mtu| Self::MtuHint { mtu }),
            PADDING => Some(Self::Padding),
            PADDING_REQUEST => u32_at(message, 1).map(|octets| Self::PaddingRequest { octets }),
            kind => Some(Self::Unknown { kind }),
        };
        control.ok_or(FrameError::Control { kind })
    }

    pub(super) fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        match *self {
            Self::Drain { grace } => {
                out.put_u8(DRAIN);
                out.put_u32(u32::try_from(grace.as_millis()).unwrap_or(u32::MAX));
            }
            Self::Hello {
                version,
                instance,
                identity: Identity(name),
            } => {
                out.put_u8(HELLO);
                out.put_u8(version);
                out.put_u64(instance);
                out.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
                out.put_slice(name.as_bytes());
            }
            Self::MtuHint { mtu } => {
                out.put_u8(MTU_HINT);
                out.put_u16(mtu.max(LEAST_MTU));
            }
            Self::Padding => {
                out.put_u8(PADDING);
                out.put_bytes(0, usize::from(MAX_CONTROL_LEN) - 1);
            }
            Self::PaddingRequest { octets } => {
                out.put_u8(PADDING_REQUEST);
                out.put_u32(octets);
            }
            Self::Ping { id, sent } => {
                out.put_u8(PING);
                out.put_u32(id);
                out.put_u64(sent);
            }
            Self::Pong { id, sent, delay } => {
                out.put_u8(PONG);
                out.put_u32(id);
                out.put_u64(sent);
                out.put_u32(delay);
            }
            Self::Unknown { kind } => return Err(FrameError::Control { kind }),
        }
        Ok(())
    }
}

fn hello(message: &[u8]) -> Option<Control<'_>> {
    let len = usize::from(u8_at(message, 10)?);
    let name = std::str::from_utf8(message.get(11..)?.get(..len)?).ok()?;
    Some(Control::Hello {
        version: u8_at(message, 1)?,
        instance: u64_at(message, 2)?,
        identity: Identity::new(name)?,
    })
}

fn ping(message: &[u8]) -> Option<Control<'_>> {
    Some(Control::Ping {
        id: u32_at(message, 1)?,
        sent: u64_at(message, 5)?,
    })
}

fn pong(message: &[u8]) -> Option<Control<'_>> {
    Some(Control::Pong {
        id: u32_at(message, 1)?,
        sent: u64_at(message, 5)?,
        delay: u32_at(message, 13)?,
    })
}

/// What an end of a stream calls itself: up to 128 visible ASCII characters, possibly none, so
/// that it can be logged as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'a>(&'a str);

impl<'a> Identity<'a> {
    /// Returns the identity, or `None` when it is too long or has other characters.
    #[must_use]
    pub fn new(name: &'a str) -> Option<Self> {
        let fits = name.len() <= MAX_IDENTITY_LEN && name.bytes().all(|c| c.is_ascii_graphic());
        fits.then_some(Self(name))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &'a str {
        self.0
    }
}

/// What every IPv4 host takes (RFC 791 §3.1).
const LEAST_MTU: u16 = 576;

const HELLO: u8 = 1;
const PING: u8 = 2;
const PONG: u8 = 3;
const DRAIN: u8 = 4;
const MTU_HINT: u8 = 5;
const PADDING: u8 = 6;
const PADDING_REQUEST: u8 = 7;
