//! testkit
#![forbid(unsafe_code)]
