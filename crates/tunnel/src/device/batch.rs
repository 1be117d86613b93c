//! Where opened packets are collected, and how they go to the device in as few calls as can be.
//!
//! ```text
//!   slot(len) ─ filled ─▶ commit(len) ─▶ packets, one behind the other
//!                                          │ flush: Coalescer finds those of one flow
//!                                          ▼
//!              writev: VnetHeader · packet · data of the next · data of the next
//! ```
//!
//! What the device does not take now is lost and counted. A kernel that refuses a super-packet
//! gets none any more, and its packets one by one.

use std::io::{self, IoSlice};
use std::ops::Range;

use rustix::io::Errno;
use tunnel_proto::ip::coalesce::{Coalescer, GroupRef};
use tunnel_proto::ip::protocol;
use tunnel_proto::ip::vnet::{Gso, LEN};

use super::{Abilities, Port};

/// Bytes of packets that are collected at most: what one call receives from a UDP socket.
const MAX_BYTES: usize = 1 << 20;
/// Packets that are collected at most.
const MAX_PACKETS: usize = 4096;
/// Packets that are looked at together, so that no super-packet has more parts than a call takes
/// (UIO_MAXIOV, 1024).
const ROUND: usize = 512;
/// Bytes of a packet that joining it with others may change: its headers.
const MAX_HEAD: usize = 128;

/// Packets on their way to the device.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    len: usize,
    packets: Vec<Range<usize>>,
    coalescer: Coalescer,
    writer: Writer,
}

/// What became of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Packets that the device took.
    pub packets: u64,
    /// Calls that this needed.
    pub writes: u64,
    /// Packets lost because the device's queue was full.
    pub blocked: u64,
    /// Packets refused for another reason; such as a device that is down.
    pub failed: u64,
    /// Super-packets that the kernel refused, and that went one by one. Each disables joining for
    /// its protocol.
    pub join_refused: u64,
}

impl Batch {
    /// Returns an empty one for a device that can do this.
    #[must_use]
    pub fn new(abilities: Abilities) -> Self {
        Self {
            bytes: Vec::new(),
            len: 0,
            packets: Vec::new(),
            coalescer: Coalescer::new(),
            writer: Writer {
                abilities,
                written: Written::default(),
            },
        }
    }

    /// Returns `len` bytes for the next packet, or `None` when the batch is full and must be
    /// flushed first: 1 MiB or 4096 packets. What they hold is undefined.
    pub fn slot(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.len + len;
        if end > MAX_BYTES || self.packets.len() >= MAX_PACKETS {
            return None;
        }
        if end > self.bytes.len() {
            let grown = end.max(self.bytes.len() * 2).min(MAX_BYTES);
            self.bytes.resize(grown, 0);
        }
        self.bytes.get_mut(self.len..end)
    }

    /// Makes the first `len` bytes of the last slot a packet of the batch. No bytes
    /// are no packet.
    pub fn commit(&mut self, len: usize) {
        let end = (self.len + len).min(self.bytes.len());
        if end > self.len {
            self.packets.push(self.len..end);
            self.len = end;
        }
    }

    /// Returns the number of packets that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether no packet waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Writes all packets.
    pub fn flush(&mut self, port: &Port) {
        self.flush_by(|parts| port.write(parts));
    }

    /// Gives the memory of an empty batch back: for when there has been no packet for a while.
    pub fn shrink(&mut self) {
        if self.packets.is_empty() {
            (self.bytes, self.packets) = (Vec::new(), Vec::new());
            self.coalescer = Coalescer::new();
        }
    }

    /// Returns what became of packets since the last call.
    pub fn take_written(&mut self) -> Written {
        std::mem::take(&mut self.writer.written)
    }

    /// Returns whether joining of packets has been given up, in whole or in part.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        self.writer.abilities
    }

    pub(super) fn flush_by(&mut self, mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>) {
        for round in self.packets.chunks(ROUND) {
            if !self.writer.joins() {
                for packet in round {
                    self.writer.alone(&self.bytes, packet, &mut write);
                }
                continue;
            }
            self.coalescer.clear();
            for packet in round {
                self.coalescer.push(slice(&self.bytes, packet));
            }
            for group in self.coalescer.groups() {
                self.writer.group(&mut self.bytes, round, group, &mut write);
            }
        }
        self.packets.clear();
        self.len = 0;
    }
}

/// Writes groups and packets, and counts.
#[derive(Debug)]
struct Writer {
    abilities: Abilities,
    written: Written,
}

impl Writer {
    fn joins(&self) -> bool {
        self.abilities.join_tcp || self.abilities.join_udp
    }

    fn group(
        &mut self,
        bytes: &mut [u8],
        round: &[Range<usize>],
        group: GroupRef<'_>,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) {
        let Some(head) = round.get(group.head()) else {
            return;
        };
        if group.packets() == 1 {
            return self.alone(bytes, head, write);
        }
        if self.may_join(slice(bytes, head)) && self.joined(bytes, round, group, &mut write) {
            return;
        }
        self.alone(bytes, head, &mut write);
        for (packet, _) in group.members() {
            if let Some(packet) = round.get(packet) {
                self.alone(bytes, packet, &mut write);
            }
        }
    }

    /// Writes a group as one super-packet, and returns whether that is done with.
    fn joined(
        &mut self,
        bytes: &mut [u8],
        round: &[Range<usize>],
        group: GroupRef<'_>,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        let Some(head) = round.get(group.head()) else {
            return true;
        };
        let mut before = [0; MAX_HEAD];
        let kept = head.len().min(MAX_HEAD);
        let packet = bytes.get_mut(head.clone()).unwrap_or_default();
        before[..kept].copy_from_slice(&packet[..kept]);
        let vnet = group.finish(packet);
        let front = vnet.encode();
        let mut parts = Vec::with_capacity(1 + group.packets());
        parts.push(IoSlice::new(&front));
        parts.push(IoSlice::new(slice(bytes, head)));
        for (packet, data_at) in group.members() {
            let packet = round.get(packet).map(|packet| slice(bytes, packet));
            let data = packet.and_then(|packet| packet.get(data_at..));
            parts.push(IoSlice::new(data.unwrap_or_default()));
        }
        let result = if vnet.gso == Gso::None {
            Err(Errno::INVAL.into())
        } else {
            write(&parts)
        };
        let refused = result.as_ref().is_err_and(is_invalid);
        if refused {
            let packet = bytes.get_mut(head.clone()).unwrap_or_default();
            packet[..kept].copy_from_slice(&before[..kept]);
            self.refused(vnet.gso);
        } else {
            self.count(group.packets(), &result);
        }
        !refused
    }

    fn alone(
        &mut self,
        bytes: &[u8],
        packet: &Range<usize>,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) {
        // The header of a packet that nothing is left to do for.
        const PLAIN: [u8; LEN] = [0; LEN];
        let packet = IoSlice::new(slice(bytes, packet));
        let result = if self.abilities.vnet {
            write(&[IoSlice::new(&PLAIN), packet])
        } else {
            write(&[packet])
        };
        self.count(1, &result);
    }

    /// Returns whether packets such as this one may be joined.
    fn may_join(&self, packet: &[u8]) -> bool {
        // Only packets without IPv6 extension headers are.
        let at = if packet.first().is_some_and(|byte| byte >> 4 == 4) {
            9
        } else {
            6
        };
        match packet.get(at) {
            Some(&protocol::TCP) => self.abilities.join_tcp,
            Some(_) => self.abilities.join_udp,
            None => false,
        }
    }

    fn refused(&mut self, gso: Gso) {
        self.written.join_refused += 1;
        // A device that refuses the older kind refuses the newer one.
        self.abilities.join_udp = false;
        self.abilities.join_tcp &= gso == Gso::Udp;
        tracing::warn!(
            ?gso,
            "the device refuses joined packets; writing them one by one"
        );
    }

    fn count(&mut self, packets: usize, result: &io::Result<()>) {
        let written = &mut self.written;
        let packets = packets as u64;
        match result {
            Ok(()) => {
                written.packets += packets;
                written.writes += 1;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => written.blocked += packets,
            Err(_) => written.failed += packets,
        }
    }
}

fn slice<'a>(bytes: &'a [u8], packet: &Range<usize>) -> &'a [u8] {
    bytes.get(packet.clone()).unwrap_or_default()
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}
