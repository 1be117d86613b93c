//! The proxy on every node of a shoot: pods connect to the API server's cluster-internal address,
//! which it holds, and it carries their connections to the seed's gateway.
//!
//! ```text
//!     pod ─▶ 10.1.2.3:443 ─▶ PROXY header, or CONNECT ─▶ gateway:8443 ─▶ API server
//! ```
//!
//! Does not look into connections, terminate TLS or choose between API servers.
#![forbid(unsafe_code)]

mod accept;
mod config;
mod connection;
mod dns;
mod keep;
mod metrics;
mod node;
mod proxy;
mod worker;

pub use config::{Command, Config, Flags, NoUpstream};
pub use dns::DnsError;
pub use keep::keep;
pub use metrics::describe_metrics;
pub use node::{CleanUpError, clean_up};
pub use proxy::{EndError, Proxy, StartError, set_up, take_back};
