//! The cleartext header of a WireGuard datagram, and the route id in it.
//!
//! ```text
//!  0     1        4            8            12
//! ┌─────┬────────┬────────────┬────────────┬───
//! │type │reserved│ index      │ index      │
//! └─────┴────────┴────────────┴────────────┴───
//!   1    route id  sender                        initiation, 148 bytes
//!   2    route id  sender       receiver         response,    92 bytes
//!   3    route id  receiver                      cookie reply, 64 bytes
//!   4    route id  receiver     counter (64 bit) data, at least 32 bytes
//! ```
//!
//! The three reserved bytes, zero in the protocol, carry a route id (big-endian, 20 bits) between
//! a client and the gateway of this project; they are zeroed before WireGuard sees the
//! datagram. The same id stands in the upper 20 bits of every index that a server of ours chooses, so
//! that datagrams of clients that know nothing of this find their way as well.
//!
//! Nothing here is authenticated: a route id names a destination and grants nothing.

use std::num::NonZeroU32;

use crate::wire::{array, put, u8_at, u32_le_at, u64_le_at};

/// The number of a tunnel server behind a gateway, 1 to 1,048,575.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(NonZeroU32);

impl RouteId {
    /// The largest id: 20 bits.
    pub const MAX: u32 = 0xf_ffff;

    /// Returns the id of that number, or `None` for 0 and for what needs more than 20 bits.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number)
            .filter(|number| number.get() <= Self::MAX)
            .map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Returns the id in the upper 20 bits of an index, `None` when they are zero.
    #[must_use]
    pub fn of_index(index: u32) -> Option<Self> {
        Self::new(index >> 12)
    }

    fn reserved(self) -> [u8; 3] {
        let [_, reserved @ ..] = self.get().to_be_bytes();
        reserved
    }
}

/// The kinds of WireGuard datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Handshake initiation, type 1.
    Initiation,
    /// Handshake response, type 2.
    Response,
    /// Cookie reply, type 3.
    CookieReply,
    /// Transport data, type 4; keepalives too.
    Data,
}

/// The cleartext header of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which of the four it is.
    pub kind: Kind,
    /// The route id of the reserved bytes, `None` when they are zero.
    pub route: Option<RouteId>,
    /// The index its sender goes by; initiations and responses have one.
    pub sender: Option<u32>,
    /// The index of whom it is for; all but initiations have one.
    pub receiver: Option<u32>,
}

impl Header {
    /// Reads the header of a datagram and checks its size.
    ///
    /// # Errors
    ///
    /// - [`DatagramError::Size`]: empty, larger than UDP carries, or not the size of its kind;
    /// - [`DatagramError::Kind`]: a first byte other than 1 to 4;
    /// - [`DatagramError::Reserved`]: more than 20 bits in the reserved bytes.
    pub fn parse(datagram: &[u8]) -> Result<Self, DatagramError> {
        let len = datagram.len();
        let size = DatagramError::Size(len);
        let (kind, fits) = match u8_at(datagram, 0).ok_or(size)? {
            1 => (Kind::Initiation, len == INITIATION_LEN),
            2 => (Kind::Response, len == RESPONSE_LEN),
            3 => (Kind::CookieReply, len == COOKIE_REPLY_LEN),
            4 => (Kind::Data, (DATA_MIN_LEN..=MAX_LEN).contains(&len)),
            other => return Err(DatagramError::Kind(other)),
        };
        if !fits {
            return Err(size);
        }
        let first = u32_le_at(datagram, 4);
        let (sender, receiver) = match kind {
            Kind::Initiation => (first, None),
            Kind::Response => (first, u32_le_at(datagram, 8)),
            Kind::CookieReply | Kind::Data => (None, first),
        };
        Ok(Self {
            kind,
            route: reserved_route(datagram)?,
            sender,
            receiver,
        })
    }

    /// Returns the server this datagram of a client is for, if it names one: by the reserved
    /// bytes, else by the receiver's index. `None` leaves an initiation of a client that knows
    /// nothing of route ids (see [`crate::mac1`]).
    ///
    /// Datagrams *of* a server carry the client's index, which means nothing here.
    ///
    /// # Errors
    ///
    /// [`DatagramError::Disagree`] when the reserved bytes name one server and the index another.
    pub fn destination(&self) -> Result<Option<RouteId>, DatagramError> {
        let by_index = self.receiver.and_then(RouteId::of_index);
        match (self.route, by_index, self.receiver) {
            (Some(route), by_index, Some(_)) if by_index != Some(route) => {
                Err(DatagramError::Disagree)
            }
            (Some(route), ..) => Ok(Some(route)),
            (None, by_index, _) => Ok(by_index),
        }
    }
}

/// Returns the counter of a data datagram, `None` for others and for what is too short.
#[must_use]
pub fn counter(datagram: &[u8]) -> Option<u64> {
    (u8_at(datagram, 0)? == 4)
        .then(|| u64_le_at(datagram, 8))
        .flatten()
}

/// Zeroes the reserved bytes, as WireGuard wants them.
///
/// # Errors
///
/// [`DatagramError::Size`] when there are fewer than four bytes.
pub fn clear_route(datagram: &mut [u8]) -> Result<(), DatagramError> {
    put_reserved(datagram, [0; 3])
}

/// Writes a route id into the reserved bytes.
///
/// # Errors
///
/// [`DatagramError::Size`] when there are fewer than four bytes.
pub fn set_route(datagram: &mut [u8], route: RouteId) -> Result<(), DatagramError> {
    put_reserved(datagram, route.reserved())
}

fn put_reserved(datagram: &mut [u8], reserved: [u8; 3]) -> Result<(), DatagramError> {
    let len = datagram.len();
    put(datagram, 1, &reserved)
        .then_some(())
        .ok_or(DatagramError::Size(len))
}

fn reserved_route(datagram: &[u8]) -> Result<Option<RouteId>, DatagramError> {
    let [a, b, c] = array(datagram, 1).ok_or(DatagramError::Size(datagram.len()))?;
    match u32::from_be_bytes([0, a, b, c]) {
        0 => Ok(None),
        number => RouteId::new(number)
            .map(Some)
            .ok_or(DatagramError::Reserved),
    }
}

/// Bytes of a handshake initiation (WireGuard paper §5.4.2).
pub const INITIATION_LEN: usize = 148;
/// Bytes of a handshake response (§5.4.3).
pub const RESPONSE_LEN: usize = 92;
/// Bytes of a cookie reply (§5.4.7).
pub const COOKIE_REPLY_LEN: usize = 64;
/// The minimum size of transport data (§5.4.6): header and tag. Padding to 16 is not required,
/// since not every implementation pads.
pub const DATA_MIN_LEN: usize = 32;
/// What UDP over IPv4 carries at most.
pub const MAX_LEN: usize = 65_507;

/// Why bytes are no WireGuard datagram, or none that can be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The reserved bytes name one server and the receiver's index another.
    #[error("route id and receiver index name different servers")]
    Disagree,
    /// The first byte is none of the four kinds.
    #[error("kind {0} is none of WireGuard's")]
    Kind(u8),
    /// The reserved bytes hold more than 20 bits.
    #[error("the reserved bytes hold no route id")]
    Reserved,
    /// The size is not that of the kind.
    #[error("{0} bytes are not the size of this kind of datagram")]
    Size(usize),
}

impl DatagramError {
    /// Returns the label for metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Disagree => "route_disagrees",
            Self::Kind(_) => "unknown_kind",
            Self::Reserved => "reserved_bits",
            Self::Size(_) => "bad_size",
        }
    }
}
