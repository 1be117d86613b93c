//! relay
#![forbid(unsafe_code)]
