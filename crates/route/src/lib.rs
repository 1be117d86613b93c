//! route
#![forbid(unsafe_code)]
