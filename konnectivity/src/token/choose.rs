//! Which tenant a token may be of: by the server name that was asked for, or by what it claims.
//!
//! What a token claims is believed only as far as this: it chooses who judges the token. A name
//! that was asked for is no more than a hint either, since the tenant it names judges the token
//! by its own keys, issuer and account.

use super::jwt::Jwt;
use super::refused::TokenRefused;

/// A tenant that takes tokens.
#[derive(Clone, Debug)]
pub(crate) struct Candidate<'a, T> {
    pub(crate) issuer: Option<&'a str>,
    pub(crate) audience: &'a str,
    /// What the agents' account is called.
    pub(crate) username: String,
    pub(crate) tenant: T,
}

/// Returns whose token `text` may be, of `candidates` which are all tenants there are.
///
/// # Errors
/// `Unwanted` when it is no tenant's, `Ambiguous` when it may be more than one's, `Malformed` when
/// there would be a choice but the token claims nothing.
pub(crate) fn choose<'a, T>(
    text: &str,
    candidates: impl Iterator<Item = Candidate<'a, T>>,
) -> Result<T, TokenRefused> {
    let mut candidates = candidates.peekable();
    let first = candidates.next().ok_or(TokenRefused::Unwanted)?;
    // The only one there is need not name an issuer, and a token then need not be a JWT.
    if first.issuer.is_none() && candidates.peek().is_none() {
        return Ok(first.tenant);
    }
    let claims = Jwt::read(text)?.claims;
    let mut meant: Vec<_> = std::iter::once(first)
        .chain(candidates)
        .filter(|one| one.issuer.is_some() && one.issuer == claims.issuer.as_deref())
        .filter(|one| claims.is_for(one.audience))
        .collect();
    if meant.len() > 1 {
        // Tenants of one issuer have accounts of their own.
        meant.retain(|one| claims.subject.as_ref() == Some(&one.username));
    }
    let tenant = meant.pop().ok_or(TokenRefused::Unwanted)?.tenant;
    if meant.is_empty() {
        Ok(tenant)
    } else {
        Err(TokenRefused::Ambiguous)
    }
}
