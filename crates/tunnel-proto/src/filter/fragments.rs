//! Remembers first fragments that passed, so that later ones may follow.
//!
//! A fixed ring: the newest takes the place of the oldest. Only first fragments of packets that
//! passed get in, so refused packets cannot evict others.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::allowed::PeerIndex;
use crate::ip::{Header, Version};

use super::Refusal;

/// How long later fragments may follow the first.
const LIFETIME: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Fragments {
    ring: Vec<Entry>,
    next: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Key,
    /// Where the first fragment's bytes end.
    end: usize,
    peer: PeerIndex,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    src: IpAddr,
    dst: IpAddr,
    id: u32,
    /// Part of the identity of a packet in IPv4 only (RFC 791 §3.2, RFC 8200 §4.5).
    protocol: u8,
}

impl Key {
    fn of(header: &Header) -> Option<Self> {
        Some(Self {
            src: header.src,
            dst: header.dst,
            id: header.fragment?.id,
            protocol: match header.version {
                Version::V4 => header.protocol,
                Version::V6 => 0,
            },
        })
    }
}

impl Fragments {
    pub(super) fn new(max: usize) -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            max,
        }
    }

    /// Remembers the first fragment of a packet.
    pub(super) fn first(&mut self, now: Instant, header: &Header, peer: PeerIndex) {
        let (Some(key), Some(fragment)) = (Key::of(header), header.fragment) else {
            return;
        };
        let entry = Entry {
            key,
            end: header.total_len.saturating_sub(fragment.data_at),
            peer,
            since: now,
        };
        if let Some(known) = self.ring.iter_mut().find(|known| known.key == key) {
            *known = entry;
        } else if self.ring.len() < self.max {
            self.ring.push(entry);
        } else if let Some(oldest) = self.ring.get_mut(self.next) {
            *oldest = entry;
            self.next = (self.next + 1) % self.max;
        }
    }

    /// Returns the peer of the first fragment that a later one follows.
    pub(super) fn later(&self, now: Instant, header: &Header) -> Result<PeerIndex, Refusal> {
        let refused = Refusal::Fragment;
        let key = Key::of(header).ok_or(refused)?;
        let fragment = header.fragment.ok_or(refused)?;
        let offset = usize::from(fragment.offset);
        let len = header.total_len.saturating_sub(fragment.data_at);
        let first = self.ring.iter().find(|first| first.key == key);
        first
            .filter(|first| now.saturating_duration_since(first.since) <= LIFETIME)
            .filter(|first| offset >= first.end)
            .filter(|_| offset + len <= usize::from(u16::MAX))
            .map(|first| first.peer)
            .ok_or(refused)
    }
}
