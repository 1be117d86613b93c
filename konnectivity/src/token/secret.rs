//! An agent's token, while it is being checked.

use std::fmt;

use http::HeaderValue;
use zeroize::Zeroizing;

use super::refused::TokenRefused;

/// A bearer token: at most 16 KiB of visible ASCII. Never printed, overwritten when dropped.
#[derive(Clone)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Reads the token from all values of the metadata `authorization`.
    ///
    /// # Errors
    /// `Missing`, `Several`, `Scheme`, or `Malformed` when it is too long or no token at all.
    pub fn from_authorization(values: &[&HeaderValue]) -> Result<Self, TokenRefused> {
        let value = match values {
            [] => return Err(TokenRefused::Missing),
            [value] => value.as_bytes(),
            several => return Err(TokenRefused::Several(several.len())),
        };
        let token = value.strip_prefix(PREFIX).ok_or(TokenRefused::Scheme)?;
        // Upstream's agent sends its file as it is, white space around the token included.
        let token = str::from_utf8(token).unwrap_or_default().trim_ascii();
        let graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.is_empty() || token.len() > MAX_BYTES || !graphic {
            return Err(TokenRefused::Malformed);
        }
        Ok(Self(token.to_owned().into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

const PREFIX: &[u8] = b"Bearer ";

/// Kubernetes' are of about 1 KiB.
const MAX_BYTES: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<String, TokenRefused> {
        let values: Vec<HeaderValue> = values.iter().map(|value| value.parse().unwrap()).collect();
        let values: Vec<&HeaderValue> = values.iter().collect();
        Token::from_authorization(&values).map(|token| token.as_str().to_owned())
    }

    #[test]
    fn exactly_one_bearer_token_is_taken() {
        let long = format!("Bearer {}", "a".repeat(MAX_BYTES + 1));
        for (values, expected) in [
            (&["Bearer a.b.c"][..], Ok("a.b.c".to_owned())),
            (&["Bearer a.b.c \t"], Ok("a.b.c".to_owned())),
            (&[], Err(TokenRefused::Missing)),
            (&["Bearer a", "Bearer a"], Err(TokenRefused::Several(2))),
            (&[""], Err(TokenRefused::Scheme)),
            (&["a.b.c"], Err(TokenRefused::Scheme)),
            (&["bearer a"], Err(TokenRefused::Scheme)),
            (&["Basic a"], Err(TokenRefused::Scheme)),
            (&["Bearer"], Err(TokenRefused::Scheme)),
            (&["Bearer "], Err(TokenRefused::Malformed)),
            (&["Bearer a b"], Err(TokenRefused::Malformed)),
            (&["Bearer a,Bearer b c"], Err(TokenRefused::Malformed)),
            (&[&long], Err(TokenRefused::Malformed)),
        ] {
            assert_eq!(read(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_token_is_not_printed() {
        let value = HeaderValue::from_static("Bearer secret");
        let token = Token::from_authorization(&[&value]).unwrap();
        assert!(!format!("{token:?}").contains("secret"));
    }

    #[test]
    fn refusals_say_what_upstream_says() {
        let unauthenticated = "Failed to validate authentication token, err:lookup failed: \
                               service account jwt not valid";
        let missing = "authentication context was not found in metadata";
        for (refused, text) in [
            (TokenRefused::Missing, missing),
            (TokenRefused::Several(2), "too many (2) tokens are received"),
            (TokenRefused::Unauthenticated, unauthenticated),
        ] {
            assert_eq!(refused.to_string(), text);
        }
    }
}
