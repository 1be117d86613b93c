//! serve
#![forbid(unsafe_code)]
