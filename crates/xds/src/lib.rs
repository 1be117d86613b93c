//! Routes over xDS, the discovery protocol of Envoy: what travels, who serves it, who takes it.
//!
//! ```text
//!   ClusterSpec, RouteSpec ──encode──▶ resources ──server──▶ gRPC (ADS) ──client──▶ resources ──decode──▶ TableSpec
//! ```
//!
//! `encode` and `decode` are pure: values in, bytes out and back. `server` and `client` keep
//! streams. What a route means is `route`'s, where it comes from is the callers'.
#![forbid(unsafe_code)]

mod cache;
mod client;
mod decode;
mod encode;
mod grpc;
mod match_key;
mod proto;
mod resource;
#[cfg(test)]
mod scenario;
mod server;
mod terminate;

pub use cache::CacheError;
pub use client::{
    Cached, ClientLimits, ClientMetrics, ClientParams, ServerAddress, ServerAddressError, Sink,
    load_cache, run,
};
pub use decode::{
    DecodeError, Decoded, MAX_ENDPOINTS, MAX_NAME_BYTES, MAX_RESOURCE_BYTES, MAX_RESOURCES,
    OwnListener, OwnProtocol, State, Table, TableError, decode, resource_name,
};
pub use encode::{Encoded, GatewayParams, authorities, base, cluster, key_pair, parts, whole};
pub use grpc::ALPN_H2;
pub use resource::{Audience, Resource, ResourceType};
pub use server::{
    ClientStatus, GatewayAccess, GatewayHandle, Server, ServerLimits, ServerParams, TypeStatus,
};
pub use terminate::Terminate;
