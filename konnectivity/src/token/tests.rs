//! Cases of tokens: what they say, who signed them, whose they are.

mod claims;
mod clusters;
mod reviews;
mod signatures;
