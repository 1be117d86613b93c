//! What two processes of a handover say to each other: see docs/handover.md.
//!
//! ```text
//!     bytes of JSON, bytes behind it, descriptors (u32 each, big-endian) │ JSON │ bytes behind it
//! ```
//!
//! Fields that a newer version adds are ignored by an older one, and have a default in the newer. Sends and
//! receives nothing.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Versions of the protocol that this program speaks, lowest and highest.
pub(super) const VERSIONS: [u32; 2] = [1, 1];

/// Most relays of one message.
pub(super) const BATCH: usize = 64;

/// Most flows of one message.
pub(super) const FLOWS: usize = 256;

/// Most flows of one table: all that a process may have.
pub(super) const TABLE: usize = 20 << 20;

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
    Hello {
        lowest: u32,
        highest: u32,
        /// It lacks what it needs to serve: nothing is to be handed over by a process that serves.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unready: bool,
    },
    /// The version that both use.
    Agreed { version: u32 },
    /// Nothing is handed over.
    Refused { reason: String },
    /// Listening sockets, a descriptor each; `last` with the last of these messages, and the listener of each
    /// table of flows that is to come.
    Sockets {
        sockets: Vec<SocketRecord>,
        last: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        flows: Vec<String>,
    },
    /// From the newcomer: it accepts connections.
    Serving,
    /// Relays, two descriptors each, downstream's first; behind it what they hold.
    Relays { relays: Vec<RelayRecord> },
    /// A table of flows, or a part of it: its first message has two descriptors, those of the sockets toward
    /// clients and toward servers.
    Flows {
        listener: String,
        flows: Vec<FlowRecord>,
        last: bool,
    },
    /// From the newcomer: it can serve the relays of the last message, or the table that it ended.
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
    /// The destination that a PROXY header named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    /// The address of the endpoint it is connected to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    /// The name that a client asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alpn: Option<String>,
    /// The target of a CONNECT, or what its header said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<String>,
    /// The name of its route's cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    pub(crate) age_micros: u64,
    /// Bytes from the client so far.
    pub rx_bytes: u64,
    /// Bytes to the client so far.
    pub tx_bytes: u64,
    /// Microseconds since a byte moved; of a flow, since its client was heard.
    #[serde(default)]
    pub idle_micros: u64,
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

/// One client of a listener of datagrams, on one route.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRecord {
    /// The connection that it counts as, once it is proven.
    pub connection: RelayRecord,
    /// Its server has answered.
    pub proven: bool,
    /// The number of its route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_id: Option<u32>,
    /// The address of ours that the client sends to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<IpAddr>,
    /// Handshake bytes that the client is owed.
    #[serde(default)]
    pub credit: u32,
    /// The client has sent data.
    #[serde(default)]
    pub sent_data: bool,
    /// Microseconds for which a handshake has been without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_micros: Option<u64>,
    /// Indices that the server chose last, the latest first.
    #[serde(default)]
    pub indices: Vec<u32>,
    /// The keys of its route, where that has no number. Last, since they are half secret and the beginning of a
    /// message may be logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub public_keys: Vec<[u8; 32]>,
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
    #[error("{0} flows, of a table of {1}, with {2} descriptors")]
    Flows(usize, usize, usize),
    #[error("relays hold other bytes than the {0} that came with them")]
    Held(usize),
}

impl RelayRecord {
    /// Describes what is no connection yet: a client of a listener of datagrams whose server has not answered.
    pub fn of_claim(
        listener: &str,
        client: SocketAddr,
        (cluster, server): (&str, SocketAddr),
        [rx_bytes, tx_bytes]: [u64; 2],
    ) -> Self {
        Self {
            listener: listener.to_owned(),
            peer: client,
            client,
            destination: None,
            endpoint: Some(server),
            server_name: None,
            alpn: None,
            connect: None,
            cluster: Some(cluster.to_owned()),
            age_micros: 0,
            rx_bytes,
            tx_bytes,
            idle_micros: 0,
            rx: HalfRecord::default(),
            tx: HalfRecord::default(),
        }
    }

    /// Returns the client's address.
    pub fn client(&self) -> SocketAddr {
        self.client
    }
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

/// Checks a part of a table of flows of which `before` have come; `None` says that it is the first part.
///
/// # Errors
/// The numbers of flows and descriptors are not those of such a part, or bytes came with it.
pub(super) fn check_flows(
    flows: &[FlowRecord],
    before: Option<usize>,
    descriptors: usize,
    tail: &[u8],
) -> Result<(), WireError> {
    let all = before.unwrap_or(0) + flows.len();
    let sockets = if before.is_none() { 2 } else { 0 };
    if flows.len() > FLOWS || all > TABLE || descriptors != sockets {
        return Err(WireError::Flows(flows.len(), all, descriptors));
    }
    match tail {
        [] => Ok(()),
        _ => Err(WireError::Held(tail.len())),
    }
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
    if let Message::Flows { flows, .. } = &message {
        let first = check_flows(flows, None, head.descriptors, tail);
        first
            .or_else(|_| check_flows(flows, Some(0), head.descriptors, tail))
            .ok()?;
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
            unready: false,
        };
        let said = r#"{"type":"hello","lowest":1,"highest":2}"#;
        assert_eq!(serde_json::from_str::<Message>(said).unwrap(), hello);
        assert_eq!(text(hello), said);
        assert_eq!(text(Message::Settled), r#"{"type":"settled"}"#);
        let relays = vec![relay(3, 0)];
        let relays = text(Message::Relays { relays });
        assert!(
            relays.contains(r#""rx":{"held":3,"endPassed":false"#),
            "{relays}"
        );
        assert!(!relays.contains("serverName"), "{relays}");
        let sockets = |flows| {
            text(Message::Sockets {
                sockets: vec![],
                last: true,
                flows,
            })
        };
        assert_eq!(
            sockets(vec![]),
            r#"{"type":"sockets","sockets":[],"last":true}"#
        );
        assert!(sockets(vec!["wg".into()]).ends_with(r#","flows":["wg"]}"#));
        let flows = Message::Flows {
            listener: "wg".to_owned(),
            flows: vec![flow()],
            last: true,
        };
        let json = text(flows.clone());
        assert!(json.starts_with(r#"{"type":"flows","listener":"wg","flows":[{"connection":{"#));
        assert!(
            json.contains(r#""routeId":7,"credit":0,"sentData":false,"indices":[9]}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Message>(&json).unwrap(), flows);
    }

    fn flow() -> FlowRecord {
        let text = format!(
            r#"{{"connection":{},"proven":true,"routeId":7,"indices":[9],"later":1}}"#,
            serde_json::to_string(&relay(0, 0)).unwrap()
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn parts_of_tables_that_do_not_fit_are_refused() {
        let flows = vec![flow(); FLOWS + 1];
        let (many, all) = (&flows[..], &flows[..FLOWS]);
        assert!(check_flows(all, None, 2, b"").is_ok());
        assert!(check_flows(all, Some(FLOWS), 0, b"").is_ok());
        assert!(check_flows(&[], None, 2, b"").is_ok());
        let wrong = [
            check_flows(many, None, 2, b""),
            check_flows(all, None, 0, b""),
            check_flows(all, Some(0), 2, b""),
            check_flows(all, Some(TABLE), 0, b""),
            check_flows(all, None, 2, b"x"),
        ];
        assert!(wrong.iter().all(Result::is_err), "{wrong:?}");
    }
}
