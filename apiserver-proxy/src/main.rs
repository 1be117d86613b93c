//! apiserver-proxy
#![forbid(unsafe_code)]
fn main() {}
