//! preamble
#![forbid(unsafe_code)]
