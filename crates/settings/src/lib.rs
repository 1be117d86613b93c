//! settings
#![forbid(unsafe_code)]
