//! Issuers of tokens for tests: keys made for the occasion, what they sign, and what is made of it.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
};
use serde_json::{Value, json};

use super::{Accepted, Judge, Token, TokenRefused, TokenRules};

/// When the tests take place, in seconds since 1970.
pub(crate) const NOW: u64 = 1_800_000_000;

/// Whose tokens the tests want.
pub(crate) const AGENT: &str = "system:serviceaccount:kube-system:agent";

/// An issuer that signs.
pub(crate) struct Issuer {
    pair: EcdsaKeyPair,
    algorithm: &'static str,
    curve: &'static str,
    id: String,
}

impl Issuer {
    /// Makes one that signs with ES256 and calls its key `id`.
    pub(crate) fn es256(id: &str) -> Self {
        Self::new("ES256", "P-256", id)
    }

    /// Makes one that signs with ES384.
    pub(crate) fn es384(id: &str) -> Self {
        Self::new("ES384", "P-384", id)
    }

    fn new(algorithm: &'static str, curve: &'static str, id: &str) -> Self {
        let signing = match algorithm {
            "ES384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
            _ => &ECDSA_P256_SHA256_FIXED_SIGNING,
        };
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        Self {
            pair: EcdsaKeyPair::from_pkcs8(signing, document.as_ref(), &random).unwrap(),
            algorithm,
            curve,
            id: id.to_owned(),
        }
    }

    /// Returns the public key (JWK).
    pub(crate) fn key(&self) -> Value {
        let point = &self.pair.public_key().as_ref()[1..];
        let (x, y) = point.split_at(point.len() / 2);
        json!({
            "kty": "EC", "crv": self.curve, "use": "sig", "alg": self.algorithm, "kid": self.id,
            "x": encode(x), "y": encode(y),
        })
    }

    /// Returns the set of its only key (JWKS).
    pub(crate) fn jwks(&self) -> String {
        json!({ "keys": [self.key()] }).to_string()
    }

    /// Returns a token that says `claims`.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let header = json!({ "alg": self.algorithm, "kid": self.id });
        self.sign(&header.to_string(), &claims.to_string())
    }

    /// Returns a token of these texts, whatever they are.
    pub(crate) fn sign(&self, header: &str, claims: &str) -> String {
        let signed = [encode(header), encode(claims)].join(".");
        let random = SystemRandom::new();
        let signature = self.pair.sign(&random, signed.as_bytes()).unwrap();
        format!("{signed}.{}", encode(signature))
    }
}

/// Returns what tokens must say in the tests.
pub(crate) fn rules(issuer: Option<&str>) -> TokenRules {
    TokenRules {
        issuer: issuer.map(str::to_owned),
        audience: "kn".to_owned(),
        namespace: "kube-system".to_owned(),
        service_account: "agent".to_owned(),
    }
}

/// Returns what `judge` says of a token at `second`.
pub(crate) async fn judged_at(
    second: u64,
    text: &str,
    judge: &Judge,
) -> Result<Accepted, TokenRefused> {
    let value = format!("Bearer {text}").parse().unwrap();
    let token = Token::from_authorization(&[&value]).unwrap();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    judge.judge(&token, now).await
}

/// Returns what a good token says, for `audience`.
pub(crate) fn claims(issuer: &str, audience: &str) -> Value {
    json!({
        "iss": issuer, "aud": [audience], "sub": AGENT,
        "iat": NOW - 60, "nbf": NOW - 60, "exp": NOW + 3600,
    })
}

/// Encodes as JOSE does.
pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
