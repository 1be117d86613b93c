//! Reads and writes numbers at offsets of slices, with bounds.
//!
//! Network byte order unless the name says otherwise. Knows nothing of what the bytes mean.

/// Copies `N` bytes from `at`, or returns `None` when they are not all there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(crate) fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_be_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_be_bytes)
}

pub(crate) fn u32_le_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_le_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Writes `value` at `at`; returns whether it fitted. Nothing is written otherwise.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) -> bool {
    let slot = at
        .checked_add(value.len())
        .and_then(|end| bytes.get_mut(at..end));
    slot.is_some_and(|slot| {
        slot.copy_from_slice(value);
        true
    })
}

/// Mixes 64 bits under a secret: folded multiplication, enough to keep others from aiming at one
/// bucket of a table, not a cryptographic hash.
pub(crate) fn mix(seed: u64, value: u64) -> u64 {
    let product = u128::from(seed ^ value ^ 0x9e37_79b9_7f4a_7c15)
        .wrapping_mul(u128::from(value.rotate_left(32) ^ seed.rotate_left(17) | 1));
    let bytes = product.to_le_bytes();
    let low = u64_le_at(&bytes, 0).unwrap_or(0);
    let high = u64_le_at(&bytes, 8).unwrap_or(0);
    (low ^ high)
        .wrapping_mul(0xd6e8_feb8_6659_fd93)
        .rotate_left(29)
        ^ high
}
