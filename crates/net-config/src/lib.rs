//! net-config
#![forbid(unsafe_code)]
