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
use serde_json::{Map, Value};

use super::refused::TokenRefused;
use super::strict_json;

/// What a good token of a tenant's agents says.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub(super) algorithm: String,
    /// The name of the key.
    pub(super) key_id: Option<String>,
    pub(super) claims: Claims,
    /// What is signed.
    pub(super) signed: &'a [u8],
    pub(super) signature: Vec<u8>,
}

/// What a token says. Seconds count from 1970 (`NumericDate`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) issuer: Option<String>,
    pub(super) audiences: Vec<String>,
    pub(super) subject: Option<String>,
    pub(super) expires_second: Option<i64>,
    pub(super) not_before_second: Option<i64>,
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
        let header = object(header)?;
        if header.contains_key("crit") {
            return None;
        }
        let algorithm = string(&header, "alg")?;
        Some(Self {
            algorithm: algorithm?,
            key_id: string(&header, "kid")?,
            claims: Claims::parse(&object(claims)?)?,
            signed: signed.as_bytes(),
            signature: URL_SAFE_NO_PAD.decode(signature).ok()?,
        })
    }
}

impl Claims {
    fn parse(claims: &Map<String, Value>) -> Option<Self> {
        let audiences = match claims.get("aud") {
            None => Vec::new(),
            Some(Value::String(one)) => vec![one.clone()],
            Some(Value::Array(several)) => several
                .iter()
                .map(|one| one.as_str().map(str::to_owned))
                .collect::<Option<_>>()?,
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) => {
                return None;
            }
        };
        Some(Self {
            issuer: string(claims, "iss")?,
            audiences,
            subject: string(claims, "sub")?,
            expires_second: seconds(claims, "exp")?,
            not_before_second: seconds(claims, "nbf")?,
        })
    }

    /// Returns whether it is for `audience`.
    pub(super) fn is_for(&self, audience: &str) -> bool {
        self.audiences.iter().any(|one| one == audience)
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

fn object(text: &str) -> Option<Map<String, Value>> {
    match strict_json::parse(&URL_SAFE_NO_PAD.decode(text).ok()?)? {
        Value::Object(object) => Some(object),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            None
        }
    }
}

/// Returns a text, or that there is none; `None` when there is something else.
#[expect(
    clippy::option_option,
    reason = "absent is fine, of another type is not"
)]
fn string(object: &Map<String, Value>, key: &str) -> Option<Option<String>> {
    match object.get(key) {
        None => Some(None),
        Some(value) => value.as_str().map(|text| Some(text.to_owned())),
    }
}

#[expect(
    clippy::option_option,
    reason = "absent is fine, of another type is not"
)]
fn seconds(object: &Map<String, Value>, key: &str) -> Option<Option<i64>> {
    match object.get(key) {
        None => Some(None),
        Some(value) => {
            let whole = value.as_i64();
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a fraction of a second is of no account, and the range is checked"
            )]
            let rounded = || {
                let number = value.as_f64()?;
                (number.abs() < MAX_SECOND).then_some(number as i64)
            };
            whole.or_else(rounded).map(Some)
        }
    }
}

/// How far the clocks of who signs and who checks may be apart.
const LEEWAY_SECONDS: i64 = 10;

/// Up to here floating-point numbers are exact (2^53).
const MAX_SECOND: f64 = 9_007_199_254_740_992.0;
