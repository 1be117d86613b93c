//! CRC32C (Castagnoli; RFC 9260 Appendix A), as the PROXY protocol's checksum TLV uses it.
//!
//! One table of 256 entries: a header is tens of bytes, so wider tables would not pay.

/// Returns the CRC32C of the bytes.
pub(super) fn crc32c(bytes: impl IntoIterator<Item = u8>) -> u32 {
    !bytes.into_iter().fold(u32::MAX, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        crc >> 8
            ^ TABLE
                .get(usize::from(low ^ byte))
                .copied()
                .unwrap_or_default()
    })
}

static TABLE: [u32; 256] = table();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "computed while compiling, where a slip is a compile error; the index is below 256"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

/// 0x1EDC6F41 with its bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

#[cfg(test)]
mod tests {
    use super::crc32c;

    /// RFC 3720 B.4, and the check value every CRC catalogue lists for "123456789".
    #[test]
    fn known_vectors() {
        assert_eq!(crc32c(*b"123456789"), 0xE306_9283);
        assert_eq!(crc32c([]), 0);
        assert_eq!(crc32c([0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c([0xff; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(0..32), 0x46DD_794E);
        assert_eq!(crc32c((0..32).rev()), 0x113F_DB5C);
    }
}
