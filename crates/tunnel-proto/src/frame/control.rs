//! Control messages: what the two ends of a TCP stream exchange beside the datagrams.
//!
//! ```text
//!  type  fields, big-endian
//!   1    hello     version u8, instance u64, length u8, identity
//! ```
//!
//! 2 and 3 (ping, pong), 4 (drain), 5 (MTU hint), 6 and 7 (padding and its request) are of earlier
//! versions: they are not reused, and are ignored like any unknown type.
//!
//! A later version may append fields to a message and add types: what follows the known fields is
//! skipped, an unknown type is handed up as such. When to send which is decided elsewhere.

use bytes::{BufMut, BytesMut};

use super::FrameError;
use crate::wire::{u8_at, u64_at};

/// Maximum bytes of a control message. Larger ones end the stream.
pub const MAX_CONTROL_LEN: u16 = 512;
/// Maximum bytes of an identity.
pub const MAX_IDENTITY_LEN: usize = 128;

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// The first message of each end.
    Hello {
        /// The highest version of these messages the sender knows; 1 at present.
        version: u8,
        /// A number drawn at the sender's start, so that a restart differs from a reconnect.
        instance: u64,
        /// What the sender calls itself. A claim, for logs only.
        identity: Identity<'a>,
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
            kind => Some(Self::Unknown { kind }),
        };
        control.ok_or(FrameError::Control(kind))
    }

    pub(super) fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        match *self {
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
            Self::Unknown { kind } => return Err(FrameError::Control(kind)),
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

const HELLO: u8 = 1;
