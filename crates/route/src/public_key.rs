//! The text of WireGuard public keys.

/// Octets of a key.
const KEY: usize = 32;

/// Characters of a key in base64: 43 and one `=` of padding.
const TEXT: usize = 44;

/// Why a text is no WireGuard public key.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a WireGuard public key, which is 32 octets in base64: 43 characters and a `=`")]
pub struct PublicKeyError;

/// Reads a WireGuard public key as `wg pubkey` writes it: base64 (RFC 4648 §4) of 32 octets, with
/// its padding, and without bits behind the last octet.
///
/// # Errors
/// The text is anything else.
pub fn parse_public_key(text: &str) -> Result<[u8; KEY], PublicKeyError> {
    let digits = text
        .strip_suffix('=')
        .filter(|_| text.len() == TEXT)
        .ok_or(PublicKeyError)?;
    let mut key = [0; KEY];
    let mut octets = key.iter_mut();
    let mut bits = 0_u32;
    let mut held = 0;
    for digit in digits.bytes() {
        bits = bits << 6 | u32::from(value(digit).ok_or(PublicKeyError)?);
        held += 6;
        if held >= 8 {
            held -= 8;
            let octet = octets.next().ok_or(PublicKeyError)?;
            *octet = (bits >> held & 0xff) as u8;
            bits &= (1 << held) - 1;
        }
    }
    if bits == 0 {
        Ok(key)
    } else {
        Err(PublicKeyError)
    }
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
    fn keys_are_read_octet_by_octet() {
        let zeros = format!("{}=", "A".repeat(43));
        assert_eq!(parse_public_key(&zeros), Ok([0; 32]));
        let ones = format!("{}8=", "/".repeat(42));
        assert_eq!(parse_public_key(&ones), Ok([0xff; 32]));
        // Octets 0, 1, 2 and so on.
        let counted = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        assert_eq!(
            parse_public_key(counted),
            Ok(std::array::from_fn(|at| at as u8))
        );
    }

    #[test]
    fn what_is_no_key_is_refused() {
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
