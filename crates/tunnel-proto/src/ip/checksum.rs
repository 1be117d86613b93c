//! The Internet checksum (RFC 1071), whole and by difference (RFC 1624).
//!
//! Sums are kept in the machine's byte order and turned at the end (RFC 1071 §2(B)), so that the
//! inner loop is additions alone.

/// A sum in progress. Bytes are added in even numbers, except for the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    /// Adds bytes; an odd one at the end counts as if a zero followed.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Self {
        let (words, rest) = bytes.as_chunks::<4>();
        // 32-bit words into 64 bits: no carry is lost below 16 GiB.
        let sum = words.iter().fold(0_u64, |sum, word| {
            sum.wrapping_add(u64::from(u32::from_ne_bytes(*word)))
        });
        let mut last = [0; 4];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        Self::folded(self.0, sum, u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds a 16-bit number, as if it stood there in network byte order.
    #[must_use]
    pub fn number(self, number: u16) -> Self {
        Self::folded(self.0, u64::from(number.to_be()), 0)
    }

    /// Adds the pseudo-header of TCP, UDP and ICMPv6 (RFC 9293 §3.1, RFC 8200 §8.1): addresses
    /// as they stand in the packet (8 or 32 bytes), protocol, length of header and data.
    #[must_use]
    pub fn pseudo_header(self, addresses: &[u8], protocol: u8, len: u32) -> Self {
        self.bytes(addresses)
            .number(protocol.into())
            .bytes(&len.to_be_bytes())
    }

    /// Returns the sum in 16 bits, not complemented: what a checksum field holds when the rest is
    /// left to an offload.
    #[must_use]
    pub fn partial(self) -> u16 {
        let folded = fold(fold(self.0, 32), 16);
        let folded = fold(fold(folded, 16), 16);
        u16::from_be(u16::try_from(folded).unwrap_or(u16::MAX))
    }

    /// Returns the checksum: the complement of the sum. Zero when the bytes held a right one.
    #[must_use]
    pub fn checksum(self) -> u16 {
        !self.partial()
    }

    /// Three sums of less than 2^62 each, added and brought below 2^33.
    fn folded(a: u64, b: u64, c: u64) -> Self {
        Self(fold(a, 32) + fold(b, 32) + fold(c, 32))
    }
}

/// Adds the bits above `bits` to those below.
fn fold(sum: u64, bits: u32) -> u64 {
    (sum >> bits) + (sum & ((1 << bits) - 1))
}

/// Returns the checksum of bytes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    Sum::default().bytes(bytes).checksum()
}

/// Returns the checksum after one 16-bit number it covers has changed (RFC 1624 §3, equation 3).
#[must_use]
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::default()
        .number(!checksum)
        .number(!old)
        .number(new)
        .checksum()
}

/// Returns the checksum after bytes it covers have changed, an even number of them at an even
/// place, such as addresses.
#[must_use]
pub fn update_bytes(checksum: u16, old: &[u8], new: &[u8]) -> u16 {
    let removed = Sum::default().bytes(old).checksum();
    Sum::default()
        .number(!checksum)
        .number(removed)
        .bytes(new)
        .checksum()
}
