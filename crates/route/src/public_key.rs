//! The text of WireGuard public keys.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Bytes of a key.
const KEY: usize = 32;

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
    let key = BASE64_STANDARD.decode(text).map_err(|_| PublicKeyError)?;
    key.try_into().map_err(|_| PublicKeyError)
}

/// Writes a WireGuard public key as [`parse_public_key`] reads it.
#[must_use]
pub fn public_key_text(key: &[u8; KEY]) -> String {
    BASE64_STANDARD.encode(key)
}

/// Writes the start of a public key, for logs: a whole one lets handshakes be made that a server
/// has to compute for.
#[must_use]
pub fn public_key_start(key: &[u8; KEY]) -> String {
    let mut text = public_key_text(key);
    text.truncate(6);
    text + "…"
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
