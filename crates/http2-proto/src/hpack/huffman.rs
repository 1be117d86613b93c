//! The Huffman code of header strings (RFC 7541 appendix B), read.
//!
//! ```text
//!   bits ──▶ a length, and the how manieth code of that length ──▶ SYMBOLS ──▶ byte
//! ```
//!
//! The code is canonical: codes of one length are consecutive numbers, in the order of their
//! symbols, and those of a longer one are larger. So a table of symbols and how many codes each
//! length has say everything, and a comparison for each length finds that of the next code, of which
//! most have five to eight bits. Nothing is written in it.

use super::HUFFMAN;
use crate::error::ConnectionError;

/// Appends what `bytes` stand for.
pub(super) fn decode(bytes: &[u8], to: &mut Vec<u8>) -> Result<(), ConnectionError> {
    let mut bytes = bytes.iter();
    // The next bits, of which there are so many.
    let (mut bits, mut have) = (0_u64, 0_u32);
    loop {
        while have <= 56
            && let Some(byte) = bytes.next()
        {
            (bits, have) = (bits << 8 | u64::from(*byte), have + 8);
        }
        // Behind the last there are ones, as the end as a symbol has, which is the last.
        let next = match have.checked_sub(32) {
            Some(later) => bits >> later,
            None => bits << (32 - have) | u64::from(u32::MAX >> have),
        };
        let next = next & u64::from(u32::MAX);
        let mut lengths = LENGTHS.iter();
        let length = lengths.find(|length| next < length.end).ok_or(HUFFMAN)?;
        if length.bits > have {
            let ones = (1 << have) - 1;
            return match have < 8 && bits & ones == ones {
                true => Ok(()),
                false => Err(HUFFMAN),
            };
        }
        let number = (next - length.first) >> (32 - length.bits);
        let symbol = usize::try_from(number).ok();
        let symbol = symbol.and_then(|own| SYMBOLS.get(length.before + own));
        to.push(*symbol.ok_or(HUFFMAN)?);
        have -= length.bits;
    }
}

/// The codes of one length, with zeros behind them to make 32 bits.
#[derive(Clone, Copy)]
struct Length {
    bits: u32,
    first: u64,
    /// Behind the last.
    end: u64,
    /// Symbols with shorter codes.
    before: usize,
}

/// All lengths that there are, the shortest first.
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "what is wrong here does not compile"
)]
const LENGTHS: [Length; CODES.len() - SHORTEST] = {
    let none = Length {
        bits: 0,
        first: 0,
        end: 0,
        before: 0,
    };
    let mut all = [none; CODES.len() - SHORTEST];
    let (mut at, mut first, mut before) = (0, 0, 0);
    while at < all.len() {
        let bits = (at + SHORTEST) as u32;
        let end = first + ((CODES[at + SHORTEST] as u64) << (32 - bits));
        all[at] = Length {
            bits,
            first,
            end,
            before,
        };
        (first, before) = (end, before + CODES[at + SHORTEST] as usize);
        at += 1;
    }
    all
};

/// Bits of the shortest codes.
const SHORTEST: usize = 5;

/// How many codes have 0, 1, 2 … bits; the last is that of the end.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];

/// Bytes by the length of their codes, then by number.
const SYMBOLS: [u8; 256] = [
    48, 49, 50, 97, 99, 101, 105, 111, 115, 116, 32, 37, 45, 46, 47, 51, 52, 53, 54, 55, 56, 57,
    61, 65, 95, 98, 100, 102, 103, 104, 108, 109, 110, 112, 114, 117, 58, 66, 67, 68, 69, 70, 71,
    72, 73, 74, 75, 76, 77, 78, 79, 80, 81, 82, 83, 84, 85, 86, 87, 89, 106, 107, 113, 118, 119,
    120, 121, 122, 38, 42, 44, 59, 88, 90, 33, 34, 40, 41, 63, 39, 43, 124, 35, 62, 0, 36, 64, 91,
    93, 126, 94, 125, 60, 96, 123, 92, 195, 208, 128, 130, 131, 162, 184, 194, 224, 226, 153, 161,
    167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230, 129, 132, 133, 134, 136, 146, 154, 156,
    160, 163, 164, 169, 170, 173, 178, 181, 185, 186, 187, 189, 190, 196, 198, 228, 232, 233, 1,
    135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166, 168, 174,
    175, 180, 182, 183, 188, 191, 197, 231, 239, 9, 142, 144, 145, 148, 159, 171, 206, 215, 225,
    236, 237, 199, 207, 234, 235, 192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242,
    243, 255, 203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252,
    253, 254, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 127, 220, 249, 10, 13, 22,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(bytes: &[u8]) -> Result<Vec<u8>, ConnectionError> {
        let mut to = Vec::new();
        decode(bytes, &mut to).map(|()| to)
    }

    /// RFC 7541 appendix C.4 and C.6.
    #[test]
    fn examples_of_the_specification_are_read() {
        let host = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(decoded(&host).unwrap(), b"www.example.com");
        let value = [0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
        assert_eq!(decoded(&value).unwrap(), b"no-cache");
        assert_eq!(decoded(&[0x64, 0x02]).unwrap(), b"302");
        assert_eq!(decoded(&[]).unwrap(), b"");
    }

    #[test]
    fn every_byte_has_one_code() {
        let mut seen = [false; 256];
        for symbol in SYMBOLS {
            seen[usize::from(symbol)] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
        // All codes together fill the space.
        let filled: u64 = (0u64..)
            .zip(CODES)
            .map(|(length, count)| u64::from(count) << (30 - length))
            .sum();
        assert_eq!(filled, 1 << 30);
    }

    #[test]
    fn wrong_padding_is_refused() {
        // `0` is 00000: what follows it must be ones.
        assert_eq!(decoded(&[0b0000_0111]).unwrap(), b"0");
        assert_eq!(decoded(&[0b0000_0110]), Err(HUFFMAN));
        // More than seven bits, and the end as a symbol.
        assert_eq!(decoded(&[0b0000_0111, 0xff]), Err(HUFFMAN));
        assert_eq!(decoded(&[0xff; 4]), Err(HUFFMAN));
    }

    /// Each after the other, with what fills the last byte.
    #[test]
    fn every_code_is_read() {
        let mut codes = Vec::new();
        let mut next = 0_u64;
        for (bits, count) in CODES.iter().enumerate() {
            next <<= 1;
            for _ in 0..*count {
                codes.push((next, bits));
                next += 1;
            }
        }
        assert_eq!(codes.pop(), Some(((1 << 30) - 1, 30)));
        let mut text = String::new();
        for (code, bits) in &codes {
            text.push_str(&format!("{code:0bits$b}"));
        }
        while !text.len().is_multiple_of(8) {
            text.push('1');
        }
        let bytes = text.as_bytes().chunks(8);
        let bytes = bytes.map(|bits| u8::from_str_radix(str::from_utf8(bits).unwrap(), 2).unwrap());
        assert_eq!(decoded(&bytes.collect::<Vec<_>>()).unwrap(), SYMBOLS);
    }
}
