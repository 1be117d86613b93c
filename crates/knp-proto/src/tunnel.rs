//! One tunnel: what it may do next, what waits in it, and when it is over.
//!
//! ```text
//!            Dialing ──DIAL_RSP──▶ Open ──CLOSE_REQ sent──▶ Closing ──CLOSE_RSP──▶ Lingering ──▶ gone
//!               │                   │  (server)                                      ▲
//!               └─ failed: gone     └─ FIN both ways, or CLOSE_RSP sent or received ─┘
//! ```
//!
//! Toward the link each direction ends by itself: ours by FIN or CLOSE behind the last DATA, the
//! peer's by its FIN or CLOSE. A tunnel lingers while its socket still takes what had arrived
//! before. Ids, timers and the order of sending among tunnels are the [`Link`](crate::Link)'s.

mod closing;
mod end;

pub(crate) use end::RESET_BY_PEER;
pub use end::{EndReason, Gone, Read, Violation, WriteError};

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::admission::Permit;
use crate::config::{LinkConfig, Role};
use crate::credit::{RecvWindow, SendCredit};
use crate::id::{ConnectId, DialId};
use crate::metadata::Extensions;
use crate::packet::Packet;
use crate::progress::Progress;
use crate::queue::ByteQueue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No connection yet.
    Dialing,
    /// The peer knows the connection.
    Open,
    /// CLOSE_REQ was sent, CLOSE_RSP has not come.
    Closing,
    /// The peer has forgotten the connection.
    Lingering,
}

/// The direction toward the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outbound {
    Open,
    /// Once the outbox is empty, this is sent.
    Ending(Last),
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    /// Without FIN before it, where FIN was agreed on, this is a reset.
    Close,
    Fin,
    FinThenClose,
    /// As `Close`, and an agent says so by its error.
    Reset,
}

/// The direction from the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inbound {
    Open,
    /// Nothing more will come, and all that was sent has come.
    Complete,
    /// Nothing more will come, and something is missing or may be.
    Cut,
}

#[derive(Debug)]
pub(crate) struct Tunnel {
    role: Role,
    /// Tells it from earlier ones in its slot.
    pub(crate) serial: u32,
    extensions: Extensions,
    pub(crate) phase: Phase,
    pub(crate) dial_id: DialId,
    /// 0 while dialing.
    pub(crate) connect_id: ConnectId,
    /// DIAL_REQ, until it is sent.
    pub(crate) request: Option<Box<Packet>>,
    pub(crate) permit: Permit,
    outbound: Outbound,
    outbox: ByteQueue,
    credit: Option<SendCredit>,
    inbox: ByteQueue,
    /// Bytes read and not yet consumed.
    in_hand: usize,
    /// Bytes of the pieces that they are in memory with.
    pieces: usize,
    inflow: Inflow,
    /// Credit to be sent.
    owed: u64,
    inbound: Inbound,
    /// The socket is gone.
    detached: bool,
    pub(crate) deadline: Option<Instant>,
    pub(crate) end: Option<EndReason>,
    pub(crate) marks: Marks,
}

/// What keeps the peer from sending more than the socket takes.
#[derive(Debug)]
enum Inflow {
    Window(RecvWindow),
    /// The peer knows no credit, and is held up by the stream's window, for all tunnels; or the tunnel
    /// is not open.
    Watched(Progress),
}

/// What the link has noted down about a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) credit_queued: bool,
    /// See [`Tunnel::excess`].
    pub(crate) excess: usize,
    pub(crate) readable_told: bool,
    pub(crate) ended_told: bool,
    pub(crate) timer: Option<Instant>,
    pub(crate) wants_write: bool,
    /// The peer is to close it, and has not answered.
    pub(crate) closing: bool,
    /// Its close waits for those before it.
    pub(crate) close_waits: bool,
    /// It was given up for its slowness, or its socket went while it was [busy](Tunnel::is_busy).
    pub(crate) long_close: bool,
}

impl Tunnel {
    pub(crate) fn dialing(
        role: Role,
        serial: u32,
        dial_id: DialId,
        extensions: Extensions,
        permit: Permit,
        deadline: Instant,
    ) -> Self {
        Self {
            role,
            serial,
            extensions,
            phase: Phase::Dialing,
            dial_id,
            connect_id: ConnectId(0),
            request: None,
            permit,
            outbound: Outbound::Open,
            outbox: ByteQueue::default(),
            credit: None,
            inbox: ByteQueue::default(),
            in_hand: 0,
            pieces: 0,
            inflow: Inflow::Watched(Progress::default()),
            owed: 0,
            inbound: Inbound::Open,
            detached: false,
            deadline: Some(deadline),
            end: None,
            marks: Marks::default(),
        }
    }

    pub(crate) fn establish(&mut self, now: Instant, connect_id: ConnectId) {
        self.phase = Phase::Open;
        self.connect_id = connect_id;
        self.permit.answered();
        self.deadline = None;
        if self.extensions.window {
            self.credit = Some(SendCredit::new());
            self.inflow = Inflow::Window(RecvWindow::new(now));
        }
    }

    // === From the socket ===

    /// Returns how many bytes may be written now: enough to be worth a read, or 0.
    pub(crate) fn write_capacity(&self, config: &LinkConfig) -> usize {
        if self.phase != Phase::Open || self.outbound != Outbound::Open {
            return 0;
        }
        let space = config.outbox_bytes.saturating_sub(self.outbox.len());
        let space = space.min(self.permit.allowance());
        if self.outbox.is_empty() {
            // However short memory is, every tunnel makes progress.
            return space.max(WRITE_FLOOR);
        }
        if space < WRITE_FLOOR { 0 } else { space }
    }

    /// Returns whether enough has gone for writing to be worthwhile again.
    pub(crate) fn is_writable(&self, config: &LinkConfig) -> bool {
        self.outbox.len() <= config.outbox_bytes / 2 && self.write_capacity(config) > 0
    }

    pub(crate) fn write(&mut self, config: &LinkConfig, data: Bytes) -> Result<(), WriteError> {
        match (self.phase, self.outbound) {
            (Phase::Dialing, _) => return Err(WriteError::Dialing),
            (Phase::Open, Outbound::Open) => {}
            _ => return Err(WriteError::Closed),
        }
        if self.outbox.len() + data.len() > config.outbox_bytes.max(WRITE_FLOOR) {
            return Err(WriteError::Full);
        }
        self.outbox.push(data);
        self.recharge();
        Ok(())
    }

    /// The socket will send no more.
    pub(crate) fn finish(&mut self, now: Instant, config: &LinkConfig) {
        if self.phase == Phase::Open && self.outbound == Outbound::Open {
            if self.extensions.fin {
                self.outbound = Outbound::Ending(Last::Fin);
            } else {
                self.end_with(Last::Close, now, config);
            }
        }
    }

    /// The socket is gone.
    pub(crate) fn close(&mut self, now: Instant, config: &LinkConfig) {
        self.detach();
        self.end.get_or_insert(EndReason::LocalClosed);
        if self.phase == Phase::Open {
            let last = match self.outbound {
                Outbound::Open => Last::Reset,
                // It was finished before it went.
                Outbound::Ending(Last::Fin | Last::FinThenClose) => Last::FinThenClose,
                Outbound::Ending(Last::Close | Last::Reset) | Outbound::Ended => Last::Close,
            };
            self.end_with(last, now, config);
        }
        self.recharge();
    }

    /// Gives up the tunnel because of `reason`; the peer is told as soon as possible.
    pub(crate) fn kill(&mut self, now: Instant, config: &LinkConfig, reason: EndReason) {
        self.end = Some(reason);
        self.outbox.clear();
        if self.outbound != Outbound::Open {
            // With nothing left to send, an end that was begun is a close.
            self.outbound = Outbound::Ended;
        }
        self.close(now, config);
    }

    fn end_with(&mut self, last: Last, now: Instant, config: &LinkConfig) {
        self.outbound = Outbound::Ending(last);
        self.deadline = Some(now + config.linger_timeout);
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.detached
    }

    fn detach(&mut self) {
        self.detached = true;
        self.inbox.clear();
        self.in_hand = 0;
        self.pieces = 0;
        self.owed = 0;
        if let Inflow::Watched(progress) = &mut self.inflow {
            *progress = Progress::default();
        }
    }

    // === Toward the socket ===

    pub(crate) fn read(&mut self, max: usize) -> Read {
        if let Some(data) = self.inbox.pop(max) {
            self.in_hand += data.len();
            self.pieces += data.len();
            return Read::Data(data);
        }
        if self.inbound == Inbound::Complete {
            return Read::End;
        }
        self.marks.readable_told = false;
        Read::Pending
    }

    pub(crate) fn is_readable(&self) -> bool {
        !self.inbox.is_empty()
            || (self.inbound == Inbound::Complete && self.phase != Phase::Lingering)
    }

    /// The socket has taken `len` bytes of what was read.
    pub(crate) fn consumed(&mut self, now: Instant, config: &LinkConfig, len: usize) {
        let len = len.min(self.in_hand);
        self.in_hand -= len;
        if self.in_hand == 0 {
            self.pieces = 0;
        }
        let drained = self.held() == 0;
        if self.phase == Phase::Lingering {
            self.deadline = Some(now + config.linger_timeout);
        }
        match &mut self.inflow {
            Inflow::Window(window) if self.inbound == Inbound::Open => {
                let (permit, max) = (&self.permit, config.tunnel_bytes as u64);
                let headroom = |growth| permit.headroom(growth);
                self.owed += window.consume(now, len, drained, max, headroom);
            }
            Inflow::Watched(progress) if len > 0 => progress.took(now, len, drained),
            Inflow::Window(_) | Inflow::Watched(_) => {}
        }
        self.recharge();
    }

    fn held(&self) -> usize {
        self.inbox.len() + self.in_hand
    }

    /// Returns how much of the stream's window is to be kept from a peer that knows no credit: what
    /// waits beyond what each tunnel may hold, as long as more may come.
    pub(crate) fn excess(&self) -> usize {
        match self.inflow {
            Inflow::Watched(_) if self.phase != Phase::Lingering => {
                self.held().saturating_sub(FREE)
            }
            Inflow::Watched(_) | Inflow::Window(_) => 0,
        }
    }

    /// Returns whether data of a peer that knows no credit waits, and more may come.
    pub(crate) fn is_waiting(&self) -> bool {
        self.held() > 0 && self.progress().is_some() && self.phase != Phase::Lingering
    }

    fn progress(&self) -> Option<&Progress> {
        match &self.inflow {
            Inflow::Watched(progress) => Some(progress),
            Inflow::Window(_) => None,
        }
    }

    /// Returns the excess, if any, when the socket has taken nothing for `limit`.
    pub(crate) fn stalled(&self, now: Instant, limit: Duration) -> Option<usize> {
        let stalled = self.progress()?.is_stalled(now, limit);
        (stalled && self.excess() > 0).then(|| self.excess())
    }

    /// Returns whether the peer, which knows no credit, may have read much that it has not sent.
    pub(crate) fn is_busy(&self, now: Instant) -> bool {
        self.marks.excess > 0 || self.progress().is_some_and(|own| own.is_busy(now))
    }

    /// Returns the excess, if any, when the socket has taken little for `limit`.
    pub(crate) fn slow(&self, now: Instant, limit: Duration) -> Option<usize> {
        let slow = self.progress()?.is_slow(now, limit);
        (slow && self.excess() > 0).then(|| self.excess())
    }

    // === From the link ===

    /// Queues DATA, or returns why the tunnel cannot go on.
    pub(crate) fn receive(&mut self, now: Instant, data: Bytes) -> Result<(), EndReason> {
        if self.detached || self.phase == Phase::Lingering {
            return Ok(());
        }
        if self.inbound != Inbound::Open {
            return Err(EndReason::Violation(Violation::DataAfterFin));
        }
        match &mut self.inflow {
            Inflow::Window(window) => {
                let received = window.receive(data.len());
                received.map_err(|error| EndReason::Violation(Violation::Credit(error)))?;
            }
            Inflow::Watched(progress) => progress.arrived(now, data.len()),
        }
        self.inbox.push(data);
        let charged = self.permit.try_charge(self.charge());
        charged.then_some(()).ok_or(EndReason::OverBudget)
    }

    pub(crate) fn receive_credit(&mut self, bytes: u64) -> Result<(), EndReason> {
        let granted = self
            .credit
            .as_mut()
            .map_or(Ok(()), |credit| credit.grant(bytes));
        granted.map_err(|error| EndReason::Violation(Violation::Credit(error)))
    }

    pub(crate) fn receive_fin(&mut self, now: Instant, config: &LinkConfig) {
        self.inbound = Inbound::Complete;
        if self.phase == Phase::Open && self.outbound == Outbound::Ended {
            self.wire_over(now, config, EndReason::Finished);
        }
    }

    /// The server wants the tunnel closed.
    pub(crate) fn receive_close_request(&mut self, now: Instant, config: &LinkConfig) {
        let reason = self.closed_by_peer(String::new());
        self.end.get_or_insert(reason);
        if self.extensions.fin {
            // The server's socket is gone: one that only has nothing more to send gives FIN.
            self.outbox.clear();
            self.recharge();
        }
        self.end_with(Last::Close, now, config);
    }

    /// Ends what comes from the peer, and says how. Upstream's close ends both directions in good
    /// order; where there is a FIN, a close without one says that something is missing.
    fn closed_by_peer(&mut self, error: String) -> EndReason {
        if self.inbound == Inbound::Open {
            let complete = error.is_empty() && !self.extensions.fin;
            self.inbound = if complete {
                Inbound::Complete
            } else {
                Inbound::Cut
            };
        }
        match self.inbound {
            Inbound::Complete => EndReason::PeerClosed { error },
            Inbound::Cut | Inbound::Open => EndReason::PeerReset { error },
        }
    }

    /// The agent has closed the tunnel.
    pub(crate) fn receive_close_response(
        &mut self,
        now: Instant,
        config: &LinkConfig,
        error: String,
    ) {
        let reason = self.closed_by_peer(error);
        if !self.detached && self.inbound == Inbound::Cut {
            // Also of one we asked to close: the answer to it is not all there.
            self.end = Some(reason.clone());
        }
        self.wire_over(now, config, reason);
    }

    pub(crate) fn lose_link(&mut self, now: Instant, config: &LinkConfig) {
        if self.phase == Phase::Lingering {
            return;
        }
        if !self.detached {
            self.end = Some(EndReason::LinkLost);
        }
        if self.inbound != Inbound::Complete {
            self.inbound = Inbound::Cut;
            self.detach();
        }
        self.wire_over(now, config, EndReason::LinkLost);
    }

    /// From here on the peer does not know the tunnel.
    fn wire_over(&mut self, now: Instant, config: &LinkConfig, reason: EndReason) {
        self.phase = Phase::Lingering;
        self.outbound = Outbound::Ended;
        self.outbox.clear();
        if self.inbound == Inbound::Open {
            self.inbound = Inbound::Cut;
        }
        self.owed = 0;
        // The window's promises are void, only what is there counts.
        self.inflow = Inflow::Watched(Progress::default());
        self.credit = None;
        self.end.get_or_insert(reason);
        self.deadline = Some(now + config.linger_timeout);
        self.recharge();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Lingering && (self.detached || self.held() == 0)
    }

    // === Toward the link ===

    pub(crate) fn owes_credit(&self) -> bool {
        self.owed > 0 && self.phase == Phase::Open
    }

    pub(crate) fn take_credit(&mut self) -> Option<Packet> {
        let bytes = std::mem::take(&mut self.owed);
        (bytes > 0 && self.phase == Phase::Open && self.inbound == Inbound::Open).then_some(
            Packet::Credit {
                connect_id: self.connect_id,
                bytes,
            },
        )
    }

    pub(crate) fn is_sendable(&self) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        let credit = self.credit.as_ref().is_none_or(|credit| credit.left() > 0);
        match self.outbound {
            Outbound::Open => !self.outbox.is_empty() && credit,
            Outbound::Ending(_) => self.outbox.is_empty() || credit,
            Outbound::Ended => false,
        }
    }

    /// Returns at most `max` bytes to send.
    pub(crate) fn take_data(
        &mut self,
        now: Instant,
        config: &LinkConfig,
        max: usize,
    ) -> Option<Bytes> {
        let credit = self
            .credit
            .as_ref()
            .map_or(max, |credit| credit.left().min(max));
        let data = self.outbox.pop(credit)?;
        if let Some(credit) = &mut self.credit {
            credit.spend(data.len());
        }
        if let Outbound::Ending(Last::Close | Last::FinThenClose | Last::Reset) = self.outbound {
            self.deadline = Some(now + config.linger_timeout);
        }
        self.recharge();
        Some(data)
    }

    /// Returns what ends our direction, once all before it was sent.
    pub(crate) fn take_last(&mut self, now: Instant, config: &LinkConfig) -> Option<Packet> {
        let Outbound::Ending(last) = self.outbound else {
            return None;
        };
        if self.phase != Phase::Open || !self.outbox.is_empty() {
            return None;
        }
        let connect_id = self.connect_id;
        if let Last::Fin | Last::FinThenClose = last {
            self.outbound = match last {
                Last::FinThenClose => Outbound::Ending(Last::Close),
                Last::Close | Last::Fin | Last::Reset => Outbound::Ended,
            };
            if self.inbound == Inbound::Complete {
                // The peer knows as much and forgets the connection, too.
                self.wire_over(now, config, EndReason::Finished);
            }
            return Some(Packet::Fin { connect_id });
        }
        self.outbound = Outbound::Ended;
        self.end.get_or_insert(EndReason::LocalClosed);
        if self.role == Role::Server {
            self.phase = Phase::Closing;
            self.deadline = Some(now + config.close_timeout);
            return Some(Packet::CloseRequest { connect_id });
        }
        let error = match self.end.as_ref().map_or("", EndReason::told_to_peer) {
            "" if last == Last::Reset => RESET_BY_PEER,
            error => error,
        };
        let error = error.to_owned();
        self.wire_over(now, config, EndReason::LocalClosed);
        Some(Packet::CloseResponse { connect_id, error })
    }

    fn charge(&self) -> usize {
        let promised = match &self.inflow {
            Inflow::Window(window) => window.grown(),
            Inflow::Watched(_) => 0,
        };
        (self.inbox.len() + self.pieces).max(promised) + self.outbox.len()
    }

    fn recharge(&mut self) {
        self.permit.charge(self.charge());
    }
}

/// A tunnel with nothing waiting may always take so much from its socket: what upstream's agent
/// reads at a time.
const WRITE_FLOOR: usize = 4096;
/// Bytes that a tunnel may hold before a peer that knows no credit notices: as much as one that
/// does may send at first.
const FREE: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_tunnel_is_small() {
        assert!(size_of::<Tunnel>() <= 408, "{} bytes", size_of::<Tunnel>());
    }
}
