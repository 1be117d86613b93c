//! The text of WireGuard public keys.

/// Bytes of a key.
const KEY: usize = 32;

/// Characters of a key in base64: 43 and one `=` of padding.
const TEXT: usize = 44;

/// Why a text is no WireGuard public key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a WireGuard public key, which is 32 bytes in base64: 43 characters and a `=`")]
pub struct PublicKeyError;

/// Reads a WireGuard public key as `wg pubkey` writes it: base64 (RFC 4648 §4) of 32 bytes, with
/// its padding, and without bits behind the last byte.
///
/// # Errors
/// The text is anything else.
pub fn parse_public_key(text: &str) -> Result<[u8; KEY], PublicKeyError> {
    let digits = text
        .strip_suffix('=')
        .filter(|_| text.len() == TEXT)
        .ok_or(PublicKeyError)?;
    let mut key = [0; KEY];
    let mut bytes = key.iter_mut();
    let mut bits = 0_u32;
    let mut held = 0;
    for digit in digits.bytes() {
        bits = bits << 6 | u32::from(value(digit).ok_or(PublicKeyError)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            let byte = bytes.next().ok_or(PublicKeyError)?;
            *byte = (bits >> held & 0xff) as u8;
            bits &= (1 << held) - 1;
        }
    }
    if bits == 0 {
        Ok(key)
    } else {
        Err(PublicKeyError)
    }
}

/// Writes a WireGuard public key as [`parse_public_key`] reads it.
#[must_use]
pub fn public_key_text(key: &[u8; KEY]) -> String {
    let mut text = String::with_capacity(TEXT);
    for three in key.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..=three.len() {
            text.push(digit(bits >> (18 - 6 * place) & 0x3f));
        }
    }
    text.push('=');
    text
}

/// Returns the digit of a value below 64.
fn digit(value: u32) -> char {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = usize::try_from(value).ok().and_then(|at| DIGITS.get(at));
    char::from(*digit.unwrap_or(&b'A'))
}

fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_byte_by_byte() {
        let zeros = format!("{}=", "A".repeat(43));
        assert_eq!(parse_public_key(&zeros), Ok([0; 32]));
        let ones = format!("{}8=", "/".repeat(42));
        assert_eq!(parse_public_key(&ones), Ok([0xff; 32]));
        // Bytes 0, 1, 2 and so on.
        let counted = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        assert_eq!(
            parse_public_key(counted),
            Ok(std::array::from_fn(|at| at as u8))
        );
    }

    #[test]
    fn keys_are_written_as_they_are_read() {
        for seed in 0..=255_u8 {
            let key = std::array::from_fn(|at| seed.wrapping_mul(at as u8).wrapping_add(seed));
            assert_eq!(parse_public_key(&public_key_text(&key)), Ok(key));
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        let good = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        for bad in [
            "",
            "=",
            &good[..43],
            &good[1..],
            &format!("{good}="),
            &format!(" {good}"),
            &good.replace("AAEC", "AA-C"),
            &good.replace("AAEC", "AA=C"),
            &good.replace("h8=", "h9="),
            &good.replace("Hh8=", "Hh=="),
        ] {
            assert_eq!(parse_public_key(bad), Err(PublicKeyError), "{bad:?}");
        }
    }
}
