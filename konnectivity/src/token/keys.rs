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
use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use super::jwt::{Jwt, object};
use super::refused::TokenRefused;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    id: Option<String>,
    /// The only algorithm it is for, if it says so.
    algorithm: Option<String>,
    material: Material,
}

/// A set as it is written; what is no key of the expected form is skipped.
#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Listed>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    Key(Box<Jwk>),
    Other(IgnoredAny),
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    crv: Option<String>,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    use_: Option<String>,
    key_ops: Option<Vec<String>>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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
        let Jwks { keys: listed } = object(bytes).ok_or(KeySetError::Malformed)?;
        let count = listed.len();
        if count > MAX_KEYS {
            return Err(KeySetError::TooMany(count));
        }
        let keys = listed.into_iter().filter_map(|listed| match listed {
            Listed::Key(key) => key.usable(),
            Listed::Other(_) => None,
        });
        let keys: Vec<_> = keys.collect();
        if keys.is_empty() {
            return Err(KeySetError::NoneUsable(count));
        }
        Ok(Self { keys })
    }

    /// Checks that one of the keys signed `jwt`.
    ///
    /// # Errors
    /// `Key` when none is of its name and for its algorithm, `Signature` when those did not sign
    /// it, `Malformed` when its algorithm is none that is accepted.
    pub(super) fn verify(&self, jwt: &Jwt<'_>) -> Result<(), TokenRefused> {
        if !ALGORITHMS.contains(&jwt.header.algorithm.as_str()) {
            return Err(TokenRefused::Malformed);
        }
        let mut refused = TokenRefused::Key;
        for key in &self.keys {
            // Without a name in the token every key may be the one.
            if jwt.header.key_id.is_some() && jwt.header.key_id != key.id {
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

impl Jwk {
    /// Returns the key if it is one for signatures, of an algorithm that is accepted.
    fn usable(self) -> Option<Key> {
        let signs = self.use_.is_none_or(|end| end == "sig");
        let verifies = self
            .key_ops
            .is_none_or(|ends| ends.iter().any(|end| end == "verify"));
        let number = |text: Option<String>| URL_SAFE_NO_PAD.decode(text?).ok();
        let point = |size| {
            let (x, y) = (number(self.x)?, number(self.y)?);
            // The uncompressed form (SEC 1 §2.3.3).
            (x.len() == size && y.len() == size).then(|| [&[4], &*x, &*y].concat())
        };
        let material = match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => Material::Rsa {
                modulus: stripped(number(self.n)?),
                exponent: stripped(number(self.e)?),
            },
            ("EC", Some("P-256")) => Material::P256(point(32)?),
            ("EC", Some("P-384")) => Material::P384(point(48)?),
            _ => return None,
        };
        (signs && verifies).then_some(Key {
            id: self.kid,
            algorithm: self.alg,
            material,
        })
    }
}

impl Key {
    /// Returns whether this key signed `jwt`; `None` when it is not for such signatures.
    fn verify(&self, jwt: &Jwt<'_>) -> Option<bool> {
        let only = self.algorithm.as_ref();
        if only.is_some_and(|only| *only != jwt.header.algorithm) {
            return None;
        }
        let curve = |algorithm: &'static dyn VerificationAlgorithm, point: &[u8]| {
            UnparsedPublicKey::new(algorithm, point).verify(jwt.signed, &jwt.signature)
        };
        let verified = match (&self.material, jwt.header.algorithm.as_str()) {
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

const ALGORITHMS: [&str; 4] = ["ES256", "ES384", "PS256", "RS256"];

const MAX_KEYS: usize = 100;
