//! What two processes of a handover say to each other: see docs/handover.md.
//!
//! ```text
//!     bytes of JSON, bytes behind it, descriptors (u32 each, big-endian) │ JSON │ bytes behind it
//! ```
//!
//! Fields that a newer version adds are ignored by an older one, and have a default in the newer. Sends and
//! receives nothing.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Versions of the protocol that this program speaks, lowest and highest.
pub(super) const VERSIONS: [u32; 2] = [1, 1];

/// Most relays of one message.
pub(super) const BATCH: usize = 64;

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 12;

/// Most bytes of a message's JSON: a batch of relays with names of 255 bytes has 80 KiB.
const MAX_JSON: usize = 1 << 20;

/// Most bytes behind it: what the relays of a batch hold. The sender ends a batch early at [`HELD`].
const MAX_TAIL: usize = 8 << 20;

/// Bytes held by the relays of one batch at which it ends, with up to two pipes' more.
pub(super) const HELD: usize = 1 << 20;

/// Most descriptors of a message (SCM_MAX_FD of unix(7)).
pub(super) const MAX_DESCRIPTORS: usize = 253;

/// One message.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub(super) enum Message {
    /// From the newcomer, first: the versions it speaks.
    Hello { lowest: u32, highest: u32 },
    /// The version that both use.
    Agreed { version: u32 },
    /// Nothing is handed over.
    Refused { reason: String },
    /// Listening sockets, a descriptor each; `last` with the last of these messages.
    Sockets {
        sockets: Vec<SocketRecord>,
        last: bool,
    },
    /// From the newcomer: it accepts connections.
    Serving,
    /// Relays, two descriptors each, downstream's first; behind it what they hold.
    Relays { relays: Vec<RelayRecord> },
    /// From the newcomer: it can serve the relays of the last message.
    Taken,
    /// It shall serve them; the sender no longer does.
    Commit,
    /// What was established has been handed over; later relays may follow.
    Settled,
}

/// A listening socket.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketRecord {
    /// The name of its listener in the configuration.
    pub(super) listener: String,
}

/// A relay, and the connection it belongs to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RelayRecord {
    /// The name of the listener that accepted it.
    pub listener: String,
    pub(crate) peer: SocketAddr,
    pub(crate) client: SocketAddr,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) destination: Option<SocketAddr>,
    /// The address of the endpoint it is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alpn: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    /// The name of its route's cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub(crate) age_micros: u64,
    pub(crate) rx_bytes: u64,
    pub(crate) tx_bytes: u64,
    /// Microseconds since a byte moved.
    #[serde(default)]
    pub(crate) idle_micros: u64,
    /// From downstream to upstream.
    #[serde(default)]
    pub(crate) rx: HalfRecord,
    #[serde(default)]
    pub(crate) tx: HalfRecord,
}

/// One direction of a relay.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct HalfRecord {
    /// Bytes read and not yet written; they are behind the JSON, of each relay rx first.
    pub(super) held: u32,
    pub(super) end_passed: bool,
}

/// The lengths of what follows a frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) json: usize,
    pub(super) tail: usize,
    pub(super) descriptors: usize,
}

/// What came is no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("a message of {json} and {tail} bytes with {descriptors} descriptors is too large")]
    TooLarge {
        json: usize,
        tail: usize,
        descriptors: usize,
    },
    #[error("a message is no JSON of this protocol")]
    Json(#[from] serde_json::Error),
    #[error("{0} relays with {1} descriptors")]
    Descriptors(usize, usize),
    #[error("relays hold other bytes than the {0} that came with them")]
    Held(usize),
}

impl Head {
    /// Reads a head.
    ///
    /// # Errors
    /// It announces more than a message may have.
    pub(super) fn parse(bytes: [u8; HEAD]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let length = |bytes| u32::from_be_bytes(bytes) as usize;
        let (json, tail) = (length([a, b, c, d]), length([e, f, g, h]));
        let descriptors = length([i, j, k, l]);
        if json > MAX_JSON || tail > MAX_TAIL || descriptors > MAX_DESCRIPTORS {
            return Err(WireError::TooLarge {
                json,
                tail,
                descriptors,
            });
        }
        Ok(Self {
            json,
            tail,
            descriptors,
        })
    }
}

/// Writes a frame but for the bytes behind its JSON, of which there will be `tail`.
///
/// # Errors
/// It is larger than a message may be.
pub(super) fn encode(
    message: &Message,
    tail: usize,
    descriptors: usize,
) -> Result<Vec<u8>, WireError> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message)?;
    let json = bytes.len() - HEAD;
    let mut head = [0; HEAD];
    let lengths = [json, tail, descriptors];
    for (field, length) in head.chunks_exact_mut(4).zip(lengths) {
        field.copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    }
    Head::parse(head)?;
    if let Some(start) = bytes.first_chunk_mut() {
        *start = head;
    }
    Ok(bytes)
}

/// Returns what each relay holds, rx and tx.
///
/// # Errors
/// The numbers of relays, descriptors and bytes do not fit together, or there are too many relays.
pub(super) fn split_held<'a>(
    relays: &[RelayRecord],
    descriptors: usize,
    mut tail: &'a [u8],
) -> Result<Vec<[&'a [u8]; 2]>, WireError> {
    if relays.len() > BATCH || descriptors != 2 * relays.len() {
        return Err(WireError::Descriptors(relays.len(), descriptors));
    }
    let all = tail.len();
    let mut of_half = |half: HalfRecord| {
        let (held, rest) = tail.split_at_checked(half.held as usize)?;
        tail = rest;
        Some(held)
    };
    let held: Option<Vec<_>> = { relays.iter() }
        .map(|relay| Some([of_half(relay.rx)?, of_half(relay.tx)?]))
        .collect();
    held.filter(|_| tail.is_empty()).ok_or(WireError::Held(all))
}

/// Reads a message and checks what came with it, as a newcomer does, and writes it again: for fuzzing.
#[doc(hidden)]
pub fn parse_message(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, rest) = frame.split_first_chunk()?;
    let head = Head::parse(*head).ok()?;
    let (json, tail) = rest.split_at_checked(head.json)?;
    let message: Message = serde_json::from_slice(json).ok()?;
    if let Message::Relays { relays } = &message {
        let held = split_held(relays, head.descriptors, tail).ok()?;
        assert_eq!(held.concat().concat(), tail);
    }
    let mut again = encode(&message, tail.len(), head.descriptors).ok()?;
    again.extend_from_slice(tail);
    Some(again)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(rx: u32, tx: u32) -> RelayRecord {
        let text = r#"{"listener":"10.1.2.3:443","peer":"10.0.0.1:5","client":"10.0.0.1:5",
            "ageMicros":7,"rxBytes":1,"txBytes":2,"later":{"unknown":[]}}"#;
        let mut relay: RelayRecord = serde_json::from_str(text).unwrap();
        (relay.rx.held, relay.tx.held) = (rx, tx);
        relay
    }

    #[test]
    fn frame_is_read_as_written() {
        let message = Message::Relays {
            relays: vec![relay(3, 0), relay(0, 2)],
        };
        let frame = encode(&message, 5, 4).unwrap();
        let (head, json) = frame.split_first_chunk().unwrap();
        let head = Head::parse(*head).unwrap();
        assert_eq!((head.json, head.tail, head.descriptors), (json.len(), 5, 4));
        assert_eq!(serde_json::from_slice::<Message>(json).unwrap(), message);
        let Message::Relays { relays } = message else {
            unreachable!()
        };
        let held = split_held(&relays, 4, b"abcde").unwrap();
        assert_eq!(held, [[b"abc".as_slice(), b""], [b"", b"de"]]);
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let relays = [relay(3, 0)];
        for (descriptors, tail) in [(1, "abc"), (4, "abc"), (2, "ab"), (2, "abcd")] {
            assert!(split_held(&relays, descriptors, tail.as_bytes()).is_err());
        }
        let many = vec![relay(0, 0); BATCH + 1];
        assert!(split_held(&many, 2 * many.len(), b"").is_err());
        let huge = [relay(u32::MAX, u32::MAX), relay(u32::MAX, 9)];
        assert!(split_held(&huge, 4, b"abc").is_err());
        assert!(encode(&Message::Serving, MAX_TAIL + 1, 0).is_err());
        assert!(encode(&Message::Serving, 0, MAX_DESCRIPTORS + 1).is_err());
    }

    #[test]
    fn messages_keep_their_documented_form() {
        let text = |message| serde_json::to_string(&message).unwrap();
        let hello = Message::Hello {
            lowest: 1,
            highest: 2,
        };
        assert_eq!(text(hello), r#"{"type":"hello","lowest":1,"highest":2}"#);
        assert_eq!(text(Message::Settled), r#"{"type":"settled"}"#);
        let relays = vec![relay(3, 0)];
        let relays = text(Message::Relays { relays });
        assert!(
            relays.contains(r#""rx":{"held":3,"endPassed":false"#),
            "{relays}"
        );
        assert!(!relays.contains("serverName"), "{relays}");
    }
}
