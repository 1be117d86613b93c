//! Why an agent's token is refused, in the words an agent is told.

use thiserror::Error;

/// Why an agent is not let in by its token.
///
/// The text is what the agent is told, with gRPC status `UNKNOWN`: upstream's where upstream has
/// one. It never holds the token, nor what would have been right.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenRefused {
    /// It is of an issuer and for an audience that more than one tenant names.
    #[error("{FAILED}more than one tenant could be meant")]
    Ambiguous,
    /// It is not for this server.
    #[error("{FAILED}the token is for another audience")]
    Audience,
    /// Too many reviews of the tenant's tokens are under way.
    #[error("{FAILED}too many tokens are being checked, try again")]
    Busy,
    /// It has expired.
    #[error("{FAILED}the token has expired")]
    Expired,
    /// It is not of the tenant's issuer.
    #[error("{FAILED}the token is of another issuer")]
    Issuer,
    /// No key of that name is among the issuer's.
    #[error("{FAILED}the token is signed with an unknown key")]
    Key,
    /// Too many tokens that are not good came from there.
    #[error("{FAILED}too many attempts, try again")]
    Limited,
    /// It is no token that could be checked: no JWT, one that says a thing twice, or one that is
    /// signed in a way that is not accepted.
    #[error("{FAILED}the token is malformed")]
    Malformed,
    /// There is none.
    #[error("authentication context was not found in metadata")]
    Missing,
    /// It begins to be good later.
    #[error("{FAILED}the token is not valid yet")]
    NotYetValid,
    /// What is there is no bearer token.
    #[error("received token does not have \"Bearer \" prefix")]
    Scheme,
    /// There are several.
    #[error("too many ({0}) tokens are received")]
    Several(usize),
    /// Its signature is not its issuer's.
    #[error("{FAILED}the token's signature is wrong")]
    Signature,
    /// It is another account's than the agents'.
    #[error("{FAILED}lookup failed: the token is of another account")]
    Subject,
    /// The API server does not know it.
    #[error("{FAILED}lookup failed: service account jwt not valid")]
    Unauthenticated,
    /// It could not be checked, for now.
    #[error("{FAILED}Failed to authenticate request")]
    Unavailable,
    /// No tenant, or not the one that was asked for, takes such tokens.
    #[error("{FAILED}no tenant accepts the token")]
    Unwanted,
}

impl TokenRefused {
    /// Returns the label of this in logs and metrics.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Ambiguous => "ambiguous",
            Self::Audience => "audience",
            Self::Busy => "busy",
            Self::Expired => "expired",
            Self::Issuer => "issuer",
            Self::Key => "key",
            Self::Limited => "limited",
            Self::Malformed => "malformed",
            Self::Missing => "missing",
            Self::NotYetValid => "not_yet_valid",
            Self::Scheme => "scheme",
            Self::Several(_) => "several",
            Self::Signature => "signature",
            Self::Subject => "subject",
            Self::Unauthenticated => "unauthenticated",
            Self::Unavailable => "unavailable",
            Self::Unwanted => "unwanted",
        }
    }

    /// Returns whether the same token would be refused for the same reason a moment later.
    pub(super) fn lasts(&self) -> bool {
        !matches!(self, Self::Busy | Self::Limited | Self::Unavailable)
    }
}

/// How upstream begins whatever is wrong with a token's contents.
const FAILED: &str = "Failed to validate authentication token, err:";
