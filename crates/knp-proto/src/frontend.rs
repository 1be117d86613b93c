//! An API server that speaks packets: one stream, one dial, one tunnel.
//!
//! ```text
//! DIAL_REQ ──▶ Dial            Established ──▶ DIAL_RSP
//! DATA ──────▶ Data            Read::Data ───▶ DATA
//! CLOSE_REQ, DIAL_CLS ─▶ Close        Ended ─▶ CLOSE_RSP, or DIAL_RSP with an error
//! ```
//!
//! The client's number for its dial never reaches an agent, and a connection id only selects this
//! stream's own tunnel: whatever a client sends, no other tunnel is touched. There is no half-close
//! toward API servers: at [`Read::End`](crate::Read::End) close the tunnel.

use bytes::Bytes;

use crate::id::{ConnectId, DialId};
use crate::link::DialTarget;
use crate::packet::{Packet, check_dial};
use crate::tunnel::{EndReason, RESET_BY_PEER};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendAction {
    /// Close the tunnel, or call the dial off: [`Link::close`](crate::Link::close).
    Close,
    /// Write to the tunnel.
    Data(Bytes),
    /// Choose an agent and dial.
    Dial(DialTarget),
}

/// The state of one client's stream, by default a new one.
#[derive(Debug, Default)]
pub struct GrpcFrontend {
    state: State,
    random: DialId,
    connect_id: ConnectId,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    Dialing,
    Open,
    /// CLOSE_REQ came; CLOSE_RSP is to be sent at the end.
    Closing,
    /// Nothing is read any more, nothing is to be sent.
    Done,
}

impl GrpcFrontend {
    /// Handles a packet the client sent. What is to be sent back at once is added to `replies`, at
    /// most two packets.
    pub fn handle_packet(
        &mut self,
        packet: Packet,
        replies: &mut Vec<Packet>,
    ) -> Option<FrontendAction> {
        let mut told = |id, error: &str| replies.push(close_response(id, error));
        match (self.state, packet) {
            (State::Closing | State::Done, _) => None,
            (
                State::Idle,
                Packet::DialRequest {
                    protocol,
                    address,
                    random,
                },
            ) => {
                if let Err(error) = check_dial(&protocol, &address) {
                    self.state = State::Done;
                    replies.push(dial_response(random, ConnectId(0), &error.to_string()));
                    return None;
                }
                self.state = State::Dialing;
                self.random = random;
                Some(FrontendAction::Dial(DialTarget { protocol, address }))
            }
            (_, Packet::DialRequest { random, .. }) => {
                let error = "only one dial per stream";
                replies.push(dial_response(random, ConnectId(0), error));
                None
            }
            (
                _,
                Packet::Data {
                    connect_id: ConnectId(0),
                    ..
                },
            ) => None,
            (State::Idle, Packet::Data { connect_id, .. }) => {
                self.state = State::Done;
                told(connect_id, "backend not initialized");
                None
            }
            (State::Dialing, Packet::Data { connect_id, .. }) => {
                told(connect_id, "unrecognized connectID");
                None
            }
            (State::Open, Packet::Data { connect_id, data }) if connect_id == self.connect_id => {
                Some(FrontendAction::Data(data))
            }
            (State::Open, Packet::Data { connect_id, .. }) => {
                self.state = State::Done;
                told(connect_id, "mismatched connection IDs");
                told(self.connect_id, "mismatched connection IDs");
                Some(FrontendAction::Close)
            }
            (State::Open, Packet::CloseRequest { connect_id }) if connect_id == self.connect_id => {
                self.state = State::Closing;
                Some(FrontendAction::Close)
            }
            (State::Idle, Packet::CloseRequest { connect_id }) => {
                told(connect_id, "backend uninitialized");
                None
            }
            (State::Dialing | State::Open, Packet::CloseRequest { connect_id }) => {
                told(connect_id, "Unknown connectID");
                None
            }
            // Also when it crossed our answer: the client has given up.
            (State::Dialing | State::Open, Packet::CloseDial { random })
                if random == self.random =>
            {
                self.state = State::Done;
                Some(FrontendAction::Close)
            }
            (
                State::Idle | State::Dialing | State::Open,
                Packet::CloseDial { .. }
                | Packet::CloseResponse { .. }
                | Packet::Credit { .. }
                | Packet::DialResponse { .. }
                | Packet::Drain
                | Packet::Empty
                | Packet::Fin { .. }
                | Packet::Unknown { .. },
            ) => None,
        }
    }

    /// Returns what the client is told of its tunnel; nothing when it has given up.
    pub fn established(&mut self, connect_id: ConnectId) -> Option<Packet> {
        (self.state == State::Dialing).then(|| {
            self.state = State::Open;
            self.connect_id = connect_id;
            dial_response(self.random, connect_id, "")
        })
    }

    /// Returns what the client is told of a dial that failed; nothing when it has given up. The
    /// stream is not read any more.
    pub fn dial_failed(&mut self, error: &str) -> Option<Packet> {
        (self.state == State::Dialing).then(|| {
            self.state = State::Done;
            dial_response(self.random, ConnectId(0), error)
        })
    }

    /// Returns the client's packet for bytes from the tunnel; nothing when it takes none.
    #[must_use]
    pub fn data(&self, data: Bytes) -> Option<Packet> {
        matches!(self.state, State::Open | State::Closing).then_some(Packet::Data {
            connect_id: self.connect_id,
            data,
        })
    }

    /// Returns what the client is told at the end of its tunnel, be it established or not; nothing
    /// when it knows.
    pub fn ended(&mut self, reason: &EndReason) -> Option<Packet> {
        let error = match (reason.peer_text(), reason.is_clean()) {
            // By its own word only: the peer's was a close without FIN.
            (Some(""), _) if matches!(reason, EndReason::PeerReset { .. }) => RESET_BY_PEER,
            (Some(text), _) => text,
            (None, true) => "",
            (None, false) => reason.reason(),
        };
        if self.state == State::Dialing {
            let error = if error.is_empty() { "closed" } else { error };
            return self.dial_failed(error);
        }
        let tell = matches!(self.state, State::Open | State::Closing);
        self.state = State::Done;
        tell.then(|| close_response(self.connect_id, error))
    }
}

fn dial_response(random: DialId, connect_id: ConnectId, error: &str) -> Packet {
    Packet::DialResponse {
        error: error.to_owned(),
        connect_id,
        random,
    }
}

fn close_response(connect_id: ConnectId, error: &str) -> Packet {
    Packet::CloseResponse {
        connect_id,
        error: error.to_owned(),
    }
}

#[cfg(test)]
mod tests;
