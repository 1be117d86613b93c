//! Base64 for URLs without padding (RFC 4648 §5), as JOSE has it: one text for each octet string.

/// Returns the octets; `None` when the text is no such encoding, or not the shortest.
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for block in text.as_bytes().chunks(4) {
        let mut bits = 0_u32;
        for letter in block {
            bits = bits << 6 | value(*letter)?;
        }
        let (kept, spare) = match block.len() {
            4 => (3, 0),
            3 => (2, 2),
            2 => (1, 4),
            _ => return None,
        };
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        let whole = (bits >> spare).to_be_bytes();
        octets.extend(whole.iter().skip(4 - kept));
    }
    Some(octets)
}

fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648 §10, without the padding, and letters that only this alphabet has.
    #[test]
    fn known_texts_are_decoded() {
        for (text, octets) in [
            ("", &b""[..]),
            ("Zg", b"f"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("-_8", &[0xfb, 0xff]),
        ] {
            assert_eq!(decode(text).as_deref(), Some(octets), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["Z", "Zg==", "Zh", "Zm9", "+/8", "Zm9v\n", "Zm 8"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
