//! An issuer's public keys (RFC 7517), and whether one of them signed a token.
//!
//! ```text
//!     JWKS ──parse──▶ KeySet ──by kid, then by kind of key──▶ signature right or wrong
//! ```
//!
//! What a signature may be follows from the key: the token's `alg` only has to agree, so that it
//! cannot turn a public key into a shared secret. RS256, PS256, ES256 and ES384; RSA from 2048
//! bits on. Everything else in a set is skipped.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::{Map, Value};
use thiserror::Error;

use super::jwt::Jwt;
use super::refused::TokenRefused;
use super::strict_json;

/// Why no keys can be had from a text.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySetError {
    /// No set of keys at all.
    #[error("this is no JSON object with an array \"keys\"")]
    Malformed,
    /// No key in it can be used.
    #[error("none of {0} keys is one for RS256, PS256, ES256 or ES384")]
    NoneUsable(usize),
    /// More than 100 keys.
    #[error("{0} keys are too many")]
    TooMany(usize),
}

/// Public keys, by which tokens are checked.
#[derive(Clone, Debug)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    id: Option<String>,
    /// The only algorithm it is for, if it says so.
    algorithm: Option<String>,
    material: Material,
}

#[derive(Clone, Debug)]
enum Material {
    P256(Vec<u8>),
    P384(Vec<u8>),
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
}

impl KeySet {
    /// Reads a JSON Web Key Set.
    ///
    /// # Errors
    /// When it is none, or no key in it can be used.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeySetError> {
        let set = strict_json::parse(bytes);
        let listed = set.as_ref().and_then(|set| set.get("keys")?.as_array());
        let listed = listed.ok_or(KeySetError::Malformed)?;
        if listed.len() > MAX_KEYS {
            return Err(KeySetError::TooMany(listed.len()));
        }
        let keys: Vec<_> = listed
            .iter()
            .filter_map(|key| Key::parse(key.as_object()?))
            .collect();
        if keys.is_empty() {
            return Err(KeySetError::NoneUsable(listed.len()));
        }
        Ok(Self { keys })
    }

    /// Checks that one of the keys signed `jwt`.
    ///
    /// # Errors
    /// `Key` when none is of its name and for its algorithm, `Signature` when those did not sign
    /// it, `Malformed` when its algorithm is none that is accepted.
    pub(super) fn verify(&self, jwt: &Jwt<'_>) -> Result<(), TokenRefused> {
        if !ALGORITHMS.contains(&jwt.algorithm.as_str()) {
            return Err(TokenRefused::Malformed);
        }
        let mut refused = TokenRefused::Key;
        for key in &self.keys {
            // Without a name in the token every key may be the one.
            if jwt.key_id.is_some() && jwt.key_id != key.id {
                continue;
            }
            match key.verify(jwt) {
                Some(true) => return Ok(()),
                Some(false) => refused = TokenRefused::Signature,
                None => {}
            }
        }
        Err(refused)
    }
}

impl Key {
    fn parse(key: &Map<String, Value>) -> Option<Self> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        if key.contains_key("use") && text("use") != Some("sig") {
            return None;
        }
        if let Some(uses) = key.get("key_ops") {
            uses.as_array()?.iter().find(|one| *one == "verify")?;
        }
        let number = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?).ok();
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => Material::Rsa {
                modulus: stripped(number("n")?),
                exponent: stripped(number("e")?),
            },
            ("EC", Some("P-256")) => Material::P256(point(&number("x")?, &number("y")?, 32)?),
            ("EC", Some("P-384")) => Material::P384(point(&number("x")?, &number("y")?, 48)?),
            _ => return None,
        };
        Some(Self {
            id: text("kid").map(str::to_owned),
            algorithm: text("alg").map(str::to_owned),
            material,
        })
    }

    /// Returns whether this key signed `jwt`; `None` when it is not for such signatures.
    fn verify(&self, jwt: &Jwt<'_>) -> Option<bool> {
        let only = self.algorithm.as_ref();
        if only.is_some_and(|only| *only != jwt.algorithm) {
            return None;
        }
        let curve = |algorithm: &'static dyn VerificationAlgorithm, point: &[u8]| {
            UnparsedPublicKey::new(algorithm, point).verify(jwt.signed, &jwt.signature)
        };
        let verified = match (&self.material, jwt.algorithm.as_str()) {
            (Material::P256(point), "ES256") => curve(&ECDSA_P256_SHA256_FIXED, point),
            (Material::P384(point), "ES384") => curve(&ECDSA_P384_SHA384_FIXED, point),
            (Material::Rsa { modulus, exponent }, algorithm @ ("RS256" | "PS256")) => {
                let parameters = match algorithm {
                    "RS256" => &RSA_PKCS1_2048_8192_SHA256,
                    _ => &RSA_PSS_2048_8192_SHA256,
                };
                let key = RsaPublicKeyComponents {
                    n: modulus,
                    e: exponent,
                };
                key.verify(parameters, jwt.signed, &jwt.signature)
            }
            (Material::P256(_) | Material::P384(_) | Material::Rsa { .. }, _) => return None,
        };
        Some(verified.is_ok())
    }
}

/// Returns a number without the zeros in front that some write (RFC 7518 §6.3.1.1).
fn stripped(number: Vec<u8>) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.into_iter().skip(zeros).collect()
}

/// Returns a point in its uncompressed form (SEC 1 §2.3.3).
fn point(x: &[u8], y: &[u8], size: usize) -> Option<Vec<u8>> {
    (x.len() == size && y.len() == size).then(|| [&[4], x, y].concat())
}

const ALGORITHMS: [&str; 4] = ["ES256", "ES384", "PS256", "RS256"];

const MAX_KEYS: usize = 100;
