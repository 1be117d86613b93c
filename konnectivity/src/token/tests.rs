//! Cases of tokens: what they say, who signed them.

mod claims;
pub(crate) mod reviews;
mod signatures;
