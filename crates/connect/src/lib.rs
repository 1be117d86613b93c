//! The HTTP CONNECT frontend that API servers' egress selectors speak to.
#![forbid(unsafe_code)]
