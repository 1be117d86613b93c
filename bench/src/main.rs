//! `rhizome-bench`: to be written.
#![forbid(unsafe_code)]

fn main() {}
