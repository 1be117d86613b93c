//! What a packet does.
//!
//! ```text
//! packet ──▶ by role ──▶ Dispatch: whose? ──▶ Tunnel ──▶ settle
//!                             └─ unknown ──▶ the peer is told, as upstream does
//! ```

use std::time::Instant;

use bytes::Bytes;

use super::{DialTarget, Event, Link, LinkError};
use crate::config::{LinkConfig, Role};
use crate::id::{ConnectId, DialId};
use crate::packet::{MAX_ERROR, Packet, check_dial};
use crate::tunnel::{EndReason, Tunnel, Violation};

impl Link {
    /// Handles a packet the peer sent.
    ///
    /// # Errors
    /// [`LinkError`]: end the stream and call [`Link::end`]. What is wrong with one tunnel only
    /// ends that tunnel.
    pub fn handle_packet(&mut self, now: Instant, packet: Packet) -> Result<(), LinkError> {
        if self.ended {
            return Err(LinkError::Ended);
        }
        let before = self.stats;
        let late = matches!(&packet, Packet::Data { connect_id, .. } if self.dispatch.is_given_up(*connect_id));
        match (self.role, packet) {
            (_, Packet::Data { connect_id, data }) => self.on_data(now, connect_id, data),
            // May cross a close, and then means nothing, as FIN does.
            (_, Packet::Credit { connect_id, bytes }) if self.extensions.window => {
                self.change(now, connect_id, |tunnel, _| tunnel.receive_credit(bytes));
            }
            (_, Packet::Fin { connect_id }) if self.extensions.fin => {
                self.change(now, connect_id, |tunnel, config| {
                    tunnel.receive_fin(now, config);
                    Ok(())
                });
            }
            (
                Role::Server,
                Packet::DialResponse {
                    error,
                    connect_id,
                    random,
                },
            ) => {
                self.on_dial_response(now, random, connect_id, error);
            }
            (Role::Server, Packet::CloseResponse { connect_id, error }) => {
                self.on_close_response(now, connect_id, error);
            }
            (Role::Server, Packet::CloseDial { random }) => {
                let error = "the agent closed the dial".to_owned();
                self.on_dial_refused(random, error);
            }
            (_, Packet::Drain) if !std::mem::replace(&mut self.draining, true) => {
                self.events.push_back(Event::Draining);
            }
            (
                Role::Agent,
                Packet::DialRequest {
                    protocol,
                    address,
                    random,
                },
            ) => {
                self.on_dial_request(now, random, DialTarget { protocol, address });
            }
            (Role::Agent, Packet::CloseDial { random }) => {
                if let Some(slot) = self.dispatch.take_dial(random) {
                    self.fail_dial(slot, EndReason::Canceled);
                }
            }
            (Role::Agent, Packet::CloseRequest { connect_id }) => {
                self.on_close_request(now, connect_id);
            }
            _ => self.stats.ignored += 1,
        }
        self.garbage = match self.stats == before {
            // Neither garbage nor proof of the contrary.
            _ if late => self.garbage,
            true => self.garbage.saturating_sub(1),
            false => self.garbage.saturating_add(1),
        };
        // An agent trusts the servers it was given.
        if self.role == Role::Server && self.garbage > MAX_GARBAGE {
            return Err(LinkError::Garbage);
        }
        if self.control.len() > MAX_CONTROL || self.events.len() > MAX_EVENTS {
            return Err(LinkError::Backlog);
        }
        Ok(())
    }

    // === Both ends ===

    fn on_data(&mut self, now: Instant, connect_id: ConnectId, data: Bytes) {
        if connect_id == ConnectId(0) || data.is_empty() {
            self.stats.ignored += 1;
            return;
        }
        let len = data.len();
        if self.dispatch.is_given_up(connect_id) {
            return self.shared.receive(now, len);
        }
        let receive = |tunnel: &mut Tunnel, _: &_| tunnel.receive(now, data);
        if !self.change(now, connect_id, receive) {
            self.on_unknown_data(connect_id);
        }
        self.shared.receive(now, len);
    }

    /// Changes the tunnel of a connection, and kills it for the reason that is returned; false when
    /// the connection is not known.
    fn change(
        &mut self,
        now: Instant,
        connect_id: ConnectId,
        change: impl FnOnce(&mut Tunnel, &LinkConfig) -> Result<(), EndReason>,
    ) -> bool {
        let Some(slot) = self.dispatch.find(connect_id) else {
            self.stats.unknown_connections += 1;
            return false;
        };
        let changed = self.tunnels.get_mut(slot as usize);
        match changed.map_or(Ok(()), |tunnel| change(tunnel, &self.config)) {
            Ok(()) => self.settle(slot),
            Err(reason) => self.kill(now, slot, reason),
        }
        true
    }

    /// DATA may cross a close; the peer is told once that it is dropped.
    fn on_unknown_data(&mut self, connect_id: ConnectId) {
        if !self.dispatch.is_new_stray(connect_id) {
            return;
        }
        self.control.push_back(match self.role {
            Role::Server => Packet::CloseRequest { connect_id },
            Role::Agent => Packet::CloseResponse {
                connect_id,
                error: "unrecognized connectID".to_owned(),
            },
        });
    }

    // === Server ===

    fn on_dial_response(
        &mut self,
        now: Instant,
        random: DialId,
        connect_id: ConnectId,
        error: String,
    ) {
        if !error.is_empty() {
            return self.on_dial_refused(random, error);
        }
        let Some(slot) = self.dispatch.take_dial(random) else {
            return self.on_late_dial_response(connect_id);
        };
        if connect_id == ConnectId(0) {
            self.stats.violations += 1;
            return self.fail_dial(slot, EndReason::Violation(Violation::NoConnectId));
        }
        if !self.dispatch.establish(connect_id, slot) {
            return self.on_duplicate_id(now, slot, connect_id);
        }
        if let Some(tunnel) = self.tunnels.get_mut(slot as usize) {
            tunnel.request = None;
            tunnel.establish(now, connect_id);
        }
        self.dials.retain(|&waiting| waiting != slot);
        if let Some(tunnel) = self.id(slot) {
            self.events
                .push_back(Event::Established(tunnel, connect_id));
        }
        self.settle(slot);
    }

    fn on_dial_refused(&mut self, random: DialId, error: String) {
        match self.dispatch.take_dial(random) {
            Some(slot) => self.fail_dial(slot, EndReason::DialFailed { error }),
            None => self.stats.unrecognized_responses += 1,
        }
    }

    /// The dial was given up; the agent's connection must not stay behind.
    fn on_late_dial_response(&mut self, connect_id: ConnectId) {
        self.stats.unrecognized_responses += 1;
        if self.dispatch.find(connect_id).is_some() {
            // Not the connection of a dial given up: closing it would hit another one.
            self.stats.violations += 1;
        } else if connect_id != ConnectId(0) && self.dispatch.is_new_stray(connect_id) {
            self.control.push_back(Packet::CloseRequest { connect_id });
        }
    }

    /// The two connections cannot be told apart, so neither can be used.
    fn on_duplicate_id(&mut self, now: Instant, slot: u32, connect_id: ConnectId) {
        let reason = EndReason::Violation(Violation::DuplicateConnectId);
        if let Some(other) = self.dispatch.find(connect_id) {
            self.kill(now, other, reason.clone());
        }
        self.fail_dial(slot, reason);
    }

    fn on_close_response(&mut self, now: Instant, connect_id: ConnectId, error: String) {
        self.dispatch.forget_stray(connect_id);
        self.change(now, connect_id, |tunnel, config| {
            tunnel.receive_close_response(now, config, error);
            Ok(())
        });
    }

    // === Agent ===

    fn on_dial_request(&mut self, now: Instant, random: DialId, target: DialTarget) {
        if self.dispatch.is_pending(random) {
            self.stats.violations += 1;
            let error = "a dial with this id is under way".to_owned();
            return self.answer_dial(random, ConnectId(0), error);
        }
        if let Err(error) = check_dial(&target.protocol, &target.address) {
            return self.answer_dial(random, ConnectId(0), error.to_string());
        }
        match self.begin(now, random) {
            Ok(tunnel) => self.events.push_back(Event::Dial(tunnel, target)),
            Err(refused) => self.answer_dial(random, ConnectId(0), refused.to_string()),
        }
    }

    pub(super) fn answer_dial(&mut self, random: DialId, connect_id: ConnectId, error: String) {
        let mut error = error;
        error.truncate(error.floor_char_boundary(MAX_ERROR));
        self.control.push_back(Packet::DialResponse {
            error,
            connect_id,
            random,
        });
    }

    fn on_close_request(&mut self, now: Instant, connect_id: ConnectId) {
        self.dispatch.forget_stray(connect_id);
        let found = self.change(now, connect_id, |tunnel, config| {
            tunnel.receive_close_request(now, config);
            Ok(())
        });
        if !found {
            self.control.push_back(Packet::CloseResponse {
                connect_id,
                error: "Unknown connectID".to_owned(),
            });
        }
    }
}

/// More than crosses the closing of all tunnels there can be; and 256 MiB of an upstream agent that
/// cannot be told of a close because its loop is stuck.
const MAX_GARBAGE: u32 = 1 << 16;
/// Answers that may wait for a peer that does not read; far more than dials and closes can be
/// under way.
const MAX_CONTROL: usize = 1 << 16;
/// Events that may wait; several for each tunnel there can be.
const MAX_EVENTS: usize = 1 << 18;
