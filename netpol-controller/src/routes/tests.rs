//! Tests of the translation, on objects as Gardener writes them, by what they lead to.

mod annotated;
mod clusters;
mod connect;
mod fixture;
mod gateway_api;
mod incremental;
mod istio;
mod listeners;
mod restrict;
mod terminate;
mod unsupported;
