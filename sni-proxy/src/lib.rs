//! The gateway of a seed: TLS passthrough by server name, and node proxies' connections by PROXY
//! protocol or HTTP CONNECT, all to the API server of the right shoot; and WireGuard's datagrams to
//! the tunnel servers of the right one.
//!
//! ```text
//!     downstream ─▶ preamble ─▶ snapshot: route ─▶ cluster: endpoint ─▶ relay ─▶ upstream
//!     datagrams ─▶ flow, or route ─▶ cluster: endpoint ─▶ wrapped ─▶ upstream
//! ```
//!
//! The binary is a shell around this library, so that tests can run a gateway in process. Ends
//! TLS only where a route says so, and holds no credentials of Kubernetes.
#![forbid(unsafe_code)]

mod accept;
mod answer;
mod config;
mod connection;
mod gateway;
mod heap;
mod metrics;
mod preamble;
mod routes;
mod routing;
mod subscription;
mod terminate;
mod trace;
mod wireguard;
mod worker;

pub use config::{Command, Config, Environment, Flags, Protocol, ProxyProtocol, TraceFlags};
pub use gateway::{Gateway, StartError};
pub use metrics::describe_metrics;
pub use routes::{RoutesError, RoutesFile};
pub use trace::{AskError, Traced, run as run_trace};
