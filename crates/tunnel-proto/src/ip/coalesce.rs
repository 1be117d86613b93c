//! Finds the packets of a batch that a TUN device takes as one super-packet.
//!
//! ```text
//! push(packet 0), push(packet 1), …  ──▶ groups, in the order of their first packets
//!                                          │ finish(head) ──▶ VnetHeader, headers changed
//!                                          │ members()    ──▶ which packets, data from where
//!                                          ▼
//!          one write: VnetHeader · packet 0 · data of 2 · data of 3        (nothing is copied)
//! ```
//!
//! The rules are those of Linux's generic receive offload (`tcp_gro_receive`,
//! `udp_gro_receive_segment`), so that the super-packet stands for exactly these packets: one
//! flow, in order, equal headers, equal sizes except for the last, right checksums. Packets of a
//! flow are never put before earlier ones. A packet that cannot be joined is a group of its own
//! and stays as it is.
//!
//! Looks at one batch only: nothing is held back to wait for more.

use crate::wire::{put, u8_at, u16_at, u32_at};

use super::checksum::{Sum, checksum};
use super::segment::{TCP_CHECKSUM, UDP_CHECKSUM};
use super::transport::{TCP_LEN, Tcp, UDP_LEN, Udp, address_bytes, checksum_is_right, flags};
use super::vnet::{Gso, VnetHeader};
use super::{Header, V4_LEN, V6_LEN, Version, protocol};

/// Groups the packets of a batch.
///
/// Memory is about 200 bytes for each packet of the largest batch so far; nothing is allocated
/// once that was seen.
#[derive(Debug, Default)]
pub struct Coalescer {
    members: Vec<Member>,
    groups: Vec<Group>,
    /// The number of the first group that may still grow.
    floor: usize,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    data_at: usize,
    next: Option<usize>,
}

#[derive(Clone, Debug)]
struct Group {
    first: usize,
    last: usize,
    packets: usize,
    /// `None` for a packet that is no candidate.
    flow: Option<Flow>,
}

/// What the next packet of a group must agree with.
#[derive(Clone, Debug)]
struct Flow {
    hash: u32,
    head: [u8; MAX_HEAD],
    head_len: usize,
    ip_len: usize,
    tcp: bool,
    open: bool,
    size: usize,
    data: usize,
    next_seq: u32,
    next_id: u16,
    /// FIN and PSH of the packets so far.
    flags: u8,
}

/// A group: one write to the device.
#[derive(Clone, Copy, Debug)]
pub struct GroupRef<'a> {
    group: &'a Group,
    members: &'a [Member],
}

impl Coalescer {
    /// Returns one without packets.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the batch.
    pub fn clear(&mut self) {
        self.members.clear();
        self.groups.clear();
        self.floor = 0;
    }

    /// Adds the next packet of the batch, without padding behind it.
    pub fn push(&mut self, packet: &[u8]) {
        let index = self.members.len();
        let candidate = Candidate::new(packet);
        let head = candidate.as_ref().map(|candidate| candidate.head);
        self.members.push(Member {
            data_at: head.map_or(0, <[u8]>::len),
            next: None,
        });
        let Some(candidate) = candidate else {
            // It may belong to any flow, as fragments do: nothing may overtake it.
            self.floor = self.groups.len() + 1;
            self.groups.push(Group::alone(index, None));
            return;
        };
        if !self.append(&candidate, index) {
            let flow = candidate.into_flow();
            self.groups.push(Group::alone(index, Some(flow)));
        }
    }

    /// Returns the groups, in the order of their first packets.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = GroupRef<'_>> {
        self.groups.iter().map(|group| GroupRef {
            group,
            members: &self.members,
        })
    }

    /// Appends to the flow's latest group, if it can.
    fn append(&mut self, candidate: &Candidate<'_>, index: usize) -> bool {
        let open = self.groups.get_mut(self.floor..).unwrap_or_default();
        let Some(group) = open.iter_mut().rev().find(|group| {
            let flow = group.flow.as_ref();
            flow.is_some_and(|flow| flow.hash == candidate.hash && flow.is_of(candidate))
        }) else {
            return false;
        };
        let fits = group
            .flow
            .as_mut()
            .is_some_and(|flow| flow.take(candidate, group.packets));
        if fits {
            if let Some(last) = self.members.get_mut(group.last) {
                last.next = Some(index);
            }
            group.last = index;
            group.packets += 1;
        }
        fits
    }
}

impl Group {
    fn alone(index: usize, flow: Option<Flow>) -> Self {
        Self {
            first: index,
            last: index,
            packets: 1,
            flow,
        }
    }
}

impl<'a> GroupRef<'a> {
    /// Returns the place in the batch of the packet that is written whole.
    #[must_use]
    pub fn head(&self) -> usize {
        self.group.first
    }

    /// Returns the number of packets.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.group.packets
    }

    /// Returns for each packet behind the head its place in the batch and where its data begin;
    /// from there to its end it is written.
    pub fn members(&self) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let members = self.members;
        let mut next = members.get(self.group.first).and_then(|first| first.next);
        std::iter::from_fn(move || {
            let index = next?;
            let found = members.get(index)?;
            next = found.next;
            Some((index, found.data_at))
        })
    }

    /// Changes the headers of the head so that they describe all of the group, and returns what
    /// is to be written in front. A group of one packet is left alone.
    ///
    /// `head` is the packet at [`GroupRef::head`].
    pub fn finish(&self, head: &mut [u8]) -> VnetHeader {
        match &self.group.flow {
            Some(flow) if self.group.packets > 1 => flow.finish(head).unwrap_or_default(),
            _ => VnetHeader::default(),
        }
    }
}

/// A packet that could be part of a super-packet.
struct Candidate<'a> {
    hash: u32,
    head: &'a [u8],
    ip_len: usize,
    tcp: bool,
    flags: u8,
    data: usize,
    seq: u32,
    /// Data, no flags that end a group, right checksums.
    mergeable: bool,
}

impl<'a> Candidate<'a> {
    /// Looks at a packet; `None` when its headers are not those of the plain case.
    fn new(packet: &'a [u8]) -> Option<Self> {
        let header = Header::parse(packet).ok()?;
        let ip_len = match header.version {
            Version::V4 => V4_LEN,
            Version::V6 => V6_LEN,
        };
        let plain = header.transport == ip_len
            && header.fragment.is_none()
            && header.total_len == packet.len();
        if !plain {
            return None;
        }
        let segment = header.segment(packet);
        let (header_len, tcp, flags, seq, usual) = match header.protocol {
            protocol::TCP => {
                let tcp = Tcp::new(segment)?;
                let usual = tcp.flags() & !(flags::PSH | flags::FIN | flags::ECE) == flags::ACK;
                (tcp.header_len(), true, tcp.flags(), tcp.seq(), usual)
            }
            protocol::UDP => {
                let udp = Udp::new(segment)?;
                let usual = udp.declared_len() == segment.len() && udp.checksum() != 0;
                (UDP_LEN, false, 0, 0, usual)
            }
            _ => return None,
        };
        let (head, data) = packet.split_at_checked(ip_len + header_len)?;
        let ip_is_right = ip_len == V6_LEN || checksum(packet.get(..V4_LEN)?) == 0;
        let mergeable =
            usual && ip_is_right && !data.is_empty() && checksum_is_right(&header, packet);
        Some(Self {
            hash: flow_hash(packet, ip_len),
            head,
            ip_len,
            tcp,
            flags,
            data: data.len(),
            seq,
            mergeable,
        })
    }

    fn data_len(&self) -> u32 {
        u32::try_from(self.data).unwrap_or(u32::MAX)
    }

    fn id(&self) -> u16 {
        if self.ip_len == V4_LEN {
            u16_at(self.head, 4).unwrap_or(0)
        } else {
            0
        }
    }

    fn into_flow(self) -> Flow {
        let mut head = [0; MAX_HEAD];
        put(&mut head, 0, self.head);
        Flow {
            hash: self.hash,
            head,
            head_len: self.head.len(),
            ip_len: self.ip_len,
            tcp: self.tcp,
            open: self.mergeable && self.flags & (flags::PSH | flags::FIN) == 0,
            size: self.data,
            data: self.data,
            next_seq: self.seq.wrapping_add(self.data_len()),
            next_id: self.id().wrapping_add(1),
            flags: self.flags & (flags::PSH | flags::FIN),
        }
    }
}

impl Flow {
    fn head(&self) -> &[u8] {
        self.head.get(..self.head_len).unwrap_or_default()
    }

    /// Returns whether the packet has the same addresses, ports and protocol.
    fn is_of(&self, candidate: &Candidate<'_>) -> bool {
        let ports = |head: &[u8]| u32_at(head, self.ip_len);
        self.ip_len == candidate.ip_len
            && self.tcp == candidate.tcp
            && address_bytes(self.head()) == address_bytes(candidate.head)
            && ports(self.head()) == ports(candidate.head)
    }

    /// Takes the packet into the group when it continues it, and closes the group when no other can
    /// follow.
    fn take(&mut self, candidate: &Candidate<'_>, packets: usize) -> bool {
        let total = self.head_len + self.data + candidate.data;
        let fits = self.open
            && candidate.mergeable
            && candidate.data <= self.size
            && total <= MAX_TOTAL
            && (self.tcp || packets < MAX_DATAGRAMS)
            && self.ip_agrees(candidate)
            && (!self.tcp || self.tcp_agrees(candidate));
        if !fits {
            return false; // the packet begins the flow's next group, which is found instead
        }
        self.data += candidate.data;
        self.next_seq = self.next_seq.wrapping_add(candidate.data_len());
        self.next_id = candidate.id().wrapping_add(1);
        self.flags |= candidate.flags & (flags::PSH | flags::FIN);
        self.open = candidate.data == self.size && self.flags == 0;
        true
    }

    fn ip_agrees(&self, candidate: &Candidate<'_>) -> bool {
        let (ours, theirs) = (self.head(), candidate.head);
        let same = |from: usize, to: usize| ours.get(from..to) == theirs.get(from..to);
        if self.ip_len == V6_LEN {
            return same(0, 4) && same(6, 8); // class, flow label; next header, hop limit
        }
        let dont_fragment = u8_at(ours, 6).is_some_and(|flags| flags & 0x40 != 0);
        // Service, flags, time to live; identifications matter when they may be used.
        same(0, 2) && same(6, 9) && (dont_fragment || candidate.id() == self.next_id)
    }

    fn tcp_agrees(&self, candidate: &Candidate<'_>) -> bool {
        let (ours, theirs) = (self.head(), candidate.head);
        let at = self.ip_len;
        let same = |from: usize, to: usize| ours.get(from..to) == theirs.get(from..to);
        let ending = !(flags::PSH | flags::FIN);
        candidate.seq == self.next_seq
            && self.head_len == theirs.len()
            && same(at + 8, at + 13) // acknowledgment, length of the header
            && u8_at(ours, at + 13).map(|f| f & ending) == Some(candidate.flags & ending)
            && same(at + 14, at + 16) // window
            && same(at + TCP_LEN, self.head_len)
    }

    fn finish(&self, packet: &mut [u8]) -> Option<VnetHeader> {
        let total = self.head_len + self.data;
        let at = self.ip_len;
        let (gso, csum_offset, protocol) = match (self.tcp, at == V4_LEN) {
            (true, true) => (Gso::TcpV4, TCP_CHECKSUM, protocol::TCP),
            (true, false) => (Gso::TcpV6, TCP_CHECKSUM, protocol::TCP),
            (false, _) => (Gso::Udp, UDP_CHECKSUM, protocol::UDP),
        };
        if at == V4_LEN {
            put(packet, 2, &u16::try_from(total).ok()?.to_be_bytes());
            put(packet, 10, &[0, 0]);
            let sum = checksum(packet.get(..V4_LEN)?);
            put(packet, 10, &sum.to_be_bytes());
        } else {
            let len = u16::try_from(total - V6_LEN).ok()?;
            put(packet, 4, &len.to_be_bytes());
        }
        let len = total - at;
        if self.tcp {
            *packet.get_mut(at + 13)? |= self.flags;
        } else {
            put(packet, at + 4, &u16::try_from(len).ok()?.to_be_bytes());
        }
        let len = u32::try_from(len).ok()?;
        let sum = Sum::default().pseudo_header(address_bytes(packet), protocol, len);
        put(packet, at + csum_offset, &sum.partial().to_be_bytes());
        Some(VnetHeader {
            needs_csum: true,
            gso,
            hdr_len: u16::try_from(self.head_len).ok()?,
            gso_size: u16::try_from(self.size).ok()?,
            csum_start: u16::try_from(at).ok()?,
            csum_offset: u16::try_from(csum_offset).ok()?,
        })
    }
}

/// Sums addresses and ports; only ever compared within a batch, and confirmed by `is_of`.
fn flow_hash(packet: &[u8], ip_len: usize) -> u32 {
    let (words, _) = address_bytes(packet).as_chunks::<4>();
    words
        .iter()
        .map(|word| u32::from_ne_bytes(*word))
        .chain(u32_at(packet, ip_len))
        .fold(0, |hash: u32, word| {
            hash.rotate_left(5).wrapping_mul(0x9e37_79b1) ^ word
        })
}

/// IPv6 without extensions and the longest TCP header.
const MAX_HEAD: usize = 100;
/// Maximum bytes of a super-packet.
const MAX_TOTAL: usize = 65_535;
/// UDP_MAX_SEGMENTS of Linux before 6.9; later ones take 128.
const MAX_DATAGRAMS: usize = 64;
