//! Reads a JSON Web Token (RFC 7519) in its compact form, and compares what it says.
//!
//! ```text
//!     header "." claims "." signature ──read──▶ Jwt ──keys::KeySet──▶ signed by a known key
//!                                                └──▶ issuer, audience, subject, times
//! ```
//!
//! Reading believes nothing: claims are acted on once the signature was checked, by a
//! key or by an API server. Time is handed in.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::refused::TokenRefused;
use super::strict_json;

/// What a good token of a tenant's agents says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenRules {
    /// Who signs it (`iss`), `None` when that is left to the API server.
    pub issuer: Option<String>,
    /// Whom it is for (one of `aud`).
    pub audience: String,
    /// The namespace of the agents' service account.
    pub namespace: String,
    /// The name of the agents' service account.
    pub service_account: String,
}

impl TokenRules {
    /// Returns the agents' name, as API servers and tokens (`sub`) spell it.
    #[must_use]
    pub fn username(&self) -> String {
        let (namespace, account) = (&self.namespace, &self.service_account);
        format!("system:serviceaccount:{namespace}:{account}")
    }
}

/// A token that was read.
#[derive(Debug)]
pub(super) struct Jwt<'a> {
    pub(super) header: Header,
    pub(super) claims: Claims,
    /// What is signed.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Header {
    #[serde(rename = "alg")]
    pub(super) algorithm: String,
    /// The name of the key.
    #[serde(default, rename = "kid", deserialize_with = "present")]
    pub(super) key_id: Option<String>,
    /// Demands that must be understood, and none is.
    #[serde(default, rename = "crit", deserialize_with = "present")]
    critical: Option<IgnoredAny>,
}

/// What a token says.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    #[serde(default, rename = "iss", deserialize_with = "present")]
    pub(super) issuer: Option<String>,
    #[serde(default, rename = "aud", deserialize_with = "present")]
    audiences: Option<Audiences>,
    #[serde(default, rename = "sub", deserialize_with = "present")]
    pub(super) subject: Option<String>,
    #[serde(default, rename = "exp", deserialize_with = "seconds")]
    expires_second: Option<i64>,
    #[serde(default, rename = "nbf", deserialize_with = "seconds")]
    not_before_second: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

impl<'a> Jwt<'a> {
    /// Reads `text`.
    ///
    /// # Errors
    /// `Malformed`, also when an object has a key twice, or when the header demands something that
    /// is not understood (`crit`).
    pub(super) fn read(text: &'a str) -> Result<Self, TokenRefused> {
        Self::parse(text).ok_or(TokenRefused::Malformed)
    }

    fn parse(text: &'a str) -> Option<Self> {
        let (signed, signature) = text.rsplit_once('.')?;
        let (header, claims) = signed.split_once('.')?;
        let header: Header = object(&URL_SAFE_NO_PAD.decode(header).ok()?)?;
        Some(Self {
            claims: object(&URL_SAFE_NO_PAD.decode(claims).ok()?)?,
            signed: signed.as_bytes(),
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
            header: header.critical.is_none().then_some(header)?,
        })
    }
}

impl Claims {
    /// Returns whether it is for `audience`.
    pub(super) fn is_for(&self, audience: &str) -> bool {
        match &self.audiences {
            Some(Audiences::One(one)) => one == audience,
            Some(Audiences::Several(several)) => several.iter().any(|one| one == audience),
            None => false,
        }
    }

    /// Compares with what `rules` demand at `now`.
    ///
    /// # Errors
    /// What is not right; `Expired` also when it would never expire.
    pub(super) fn check(&self, rules: &TokenRules, now: SystemTime) -> Result<(), TokenRefused> {
        if rules.issuer.is_some() && self.issuer != rules.issuer {
            return Err(TokenRefused::Issuer);
        }
        if !self.is_for(&rules.audience) {
            return Err(TokenRefused::Audience);
        }
        if self.subject.as_ref() != Some(&rules.username()) {
            return Err(TokenRefused::Subject);
        }
        let now = unix_second(now);
        let expires = self.expires_second.ok_or(TokenRefused::Expired)?;
        if now >= expires.saturating_add(LEEWAY_SECONDS) {
            return Err(TokenRefused::Expired);
        }
        let begins = self.not_before_second.unwrap_or(i64::MIN);
        if now < begins.saturating_sub(LEEWAY_SECONDS) {
            return Err(TokenRefused::NotYetValid);
        }
        Ok(())
    }

    /// Returns how long after `now` it expires; `None` when it does not say.
    pub(super) fn left(&self, now: SystemTime) -> Option<Duration> {
        let left = self.expires_second?.saturating_sub(unix_second(now));
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }
}

fn unix_second(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    // A clock before 1970 finds no token valid, since all begin and end later.
    since.map_or(i64::MIN, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

/// Reads an object.
pub(super) fn object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    // An array could stand for the fields in their order.
    let object = strict_json::parse(json).filter(Value::is_object)?;
    serde_json::from_value(object).ok()
}

/// Reads what is there, so that `null` does not count as absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads a `NumericDate`, seconds since 1970, without its fraction.
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let number = f64::deserialize(deserializer)?;
    if number.abs() >= MAX_SECOND {
        return Err(D::Error::custom("no time"));
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the range was checked, and a fraction of a second is of no account"
    )]
    Ok(Some(number as i64))
}

/// How far the clocks of who signs and who checks may be apart.
const LEEWAY_SECONDS: i64 = 10;

/// Up to here floating-point numbers are exact (2^53).
const MAX_SECOND: f64 = 9_007_199_254_740_992.0;
