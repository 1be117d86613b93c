//! Messages as they travel: the subset of Envoy's v3 API that is spoken here, and one of our own.
//!
//! Field numbers are those of the API; names follow it. What a message may hold besides is in
//! `known`, so that what is not understood is noticed instead of dropped.

mod cluster;
mod core;
pub(crate) mod discovery;
mod http;
pub(crate) mod known;
mod listener;
mod tls;

pub(crate) use cluster::*;
pub(crate) use core::*;
pub(crate) use http::*;
pub(crate) use listener::*;
pub(crate) use tls::*;
