//! Which peers an inner address belongs to: the longest network that holds it decides.
//!
//! ```text
//! networks with peers ──▶ Builder ──▶ AllowedIps: the longest first, searched one by one
//!                                        ▲
//!                       address of a packet ──▶ PeerSet
//! ```
//!
//! Rules of overlap: of nested networks the longest counts alone, so a /24 of one peer is a hole
//! in the /16 of another. The same network given to several peers as [`Sharing::Shared`] belongs
//! to all of them (two clients in front of one cluster); as [`Sharing::Exclusive`] (a peer's own
//! address) it can have one owner only. The table is immutable: it is built anew and swapped.
//!
//! Chooses no peer among several.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Reads a network: `address/length`, or an address alone.
///
/// # Errors
///
/// - [`AllowedError::Syntax`];
/// - [`AllowedError::PrefixLength`]: more bits than the address has;
/// - [`AllowedError::HostBits`]: bits behind the prefix are set;
/// - [`AllowedError::Mapped`]: IPv4-mapped addresses, which never appear in a packet.
pub fn parse_network(text: &str) -> Result<IpNet, AllowedError> {
    let (address, len) = match text.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (text, None),
    };
    // Not by `IpNet`'s own reader, which takes numbers with leading zeros.
    let address: IpAddr = address.parse().map_err(|_| AllowedError::Syntax)?;
    let network = match len {
        Some(len) => {
            let len = len.parse().map_err(|_| AllowedError::Syntax)?;
            IpNet::new(address, len).map_err(|_| AllowedError::PrefixLength(len))?
        }
        None => address.into(),
    };
    check(network)?;
    Ok(network)
}

fn check(network: IpNet) -> Result<(), AllowedError> {
    let address = network.addr();
    if address != network.network() {
        return Err(AllowedError::HostBits(network));
    }
    if address != address.to_canonical() {
        return Err(AllowedError::Mapped(address));
    }
    Ok(())
}

/// The number of a peer, 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIndex(u8);

impl PeerIndex {
    /// One more than the largest number.
    pub const COUNT: u8 = 64;

    /// Returns the peer of that number, `None` from 64 on.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number < Self::COUNT).then_some(Self(number))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// A set of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PeerSet(u64);

impl PeerSet {
    /// No peer.
    pub const EMPTY: Self = Self(0);

    /// Returns the set with `peer` in it as well.
    #[must_use]
    pub fn with(self, peer: PeerIndex) -> Self {
        Self(self.0 | 1 << peer.0)
    }

    /// Returns whether `peer` is in the set.
    #[must_use]
    pub fn contains(self, peer: PeerIndex) -> bool {
        self.0 >> peer.0 & 1 == 1
    }

    /// Returns whether there is no peer in the set.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the peers by ascending number.
    pub fn iter(self) -> impl Iterator<Item = PeerIndex> {
        (0..PeerIndex::COUNT)
            .map(PeerIndex)
            .filter(move |peer| self.contains(*peer))
    }
}

/// Whether a network may belong to several peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// To one peer only.
    Exclusive,
    /// To every peer it is given to.
    Shared,
}

/// Collects networks for an [`AllowedIps`].
#[derive(Clone, Debug, Default)]
pub struct Builder {
    networks: BTreeMap<IpNet, (PeerSet, Sharing)>,
}

impl Builder {
    /// Gives a network to a peer. Giving it to the same peer again changes nothing.
    ///
    /// # Errors
    ///
    /// [`AllowedError::Conflict`] when the network is another peer's and either of the two wants
    /// it exclusively; [`AllowedError::HostBits`] and [`AllowedError::Mapped`] as for
    /// [`parse_network`].
    pub fn insert(
        &mut self,
        network: IpNet,
        peer: PeerIndex,
        sharing: Sharing,
    ) -> Result<&mut Self, AllowedError> {
        check(network)?;
        let (peers, before) = self
            .networks
            .entry(network)
            .or_insert((PeerSet::EMPTY, sharing));
        let alone = PeerSet::EMPTY.with(peer);
        let shared = *before == Sharing::Shared && sharing == Sharing::Shared;
        if !(shared || peers.is_empty() || *peers == alone) {
            return Err(AllowedError::Conflict(network));
        }
        *peers = peers.with(peer);
        if sharing == Sharing::Exclusive {
            *before = sharing;
        }
        Ok(self)
    }

    /// Builds the table.
    #[must_use]
    pub fn build(&self) -> AllowedIps {
        let mut networks: Vec<_> = self.networks.iter().collect();
        networks.sort_by_key(|(network, _)| Reverse(network.prefix_len()));
        let mut table = AllowedIps::default();
        for (network, (peers, _)) in networks {
            match network {
                IpNet::V4(net) => {
                    let ends = [net.network(), net.broadcast()].map(Ipv4Addr::to_bits);
                    table.v4.push((ends, *peers));
                }
                IpNet::V6(net) => {
                    let ends = [net.network(), net.broadcast()].map(Ipv6Addr::to_bits);
                    table.v6.push((ends, *peers));
                }
            }
        }
        table
    }
}

/// Inner addresses and the peers they belong to: first and last address of each network, the longest
/// ones first.
#[derive(Clone, Debug, Default)]
pub struct AllowedIps {
    v4: Vec<([u32; 2], PeerSet)>,
    v6: Vec<([u128; 2], PeerSet)>,
}

impl AllowedIps {
    /// Returns the peers of the longest network that holds the address; none when there is no
    /// such network, and none for IPv4-mapped addresses.
    #[must_use]
    pub fn peers(&self, address: IpAddr) -> PeerSet {
        match address {
            IpAddr::V4(address) => find(&self.v4, address.to_bits()),
            IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => PeerSet::EMPTY,
            IpAddr::V6(address) => find(&self.v6, address.to_bits()),
        }
    }

    /// Returns whether `peer` may send packets with this source.
    #[must_use]
    pub fn allows(&self, peer: PeerIndex, source: IpAddr) -> bool {
        self.peers(source).contains(peer)
    }
}

fn find<B: Ord>(networks: &[([B; 2], PeerSet)], address: B) -> PeerSet {
    let mut all = networks.iter();
    let found = all.find(|([first, last], _)| *first <= address && address <= *last);
    found.map_or(PeerSet::EMPTY, |(_, peers)| *peers)
}

/// Why a network cannot be had, or not by this peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllowedError {
    /// Another peer has the network, and it is not shared.
    #[error("network {0} belongs to another peer")]
    Conflict(IpNet),
    /// Bits behind the prefix are set.
    #[error("{0} has bits set behind its prefix")]
    HostBits(IpNet),
    /// An IPv4-mapped address.
    #[error("{0} is an IPv4-mapped address; write the IPv4 address")]
    Mapped(IpAddr),
    /// More bits than an address has.
    #[error("a prefix of {0} bits is longer than the address")]
    PrefixLength(u8),
    /// Neither an address nor a network.
    #[error("not an address or network")]
    Syntax,
}
