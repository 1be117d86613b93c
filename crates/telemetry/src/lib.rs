//! What every process tells the people who run it: logs, metrics, one access-log line per
//! connection, and the probe and admin endpoints.
//!
//! ```text
//!     events ──▶ logs ────────────────────────────▶ stderr
//!     connections ──▶ access_log ──▶ one thread ──▶ stdout
//!     counters, collectors ──▶ metrics::Registry ──┐
//!     Process (the binary) ────────────────────────┴─▶ admin ──▶ probe port, admin address
//! ```
//!
//! Nothing here knows what a route, a tunnel or a policy is: binaries hand over names and numbers.
//! Nothing here reads the environment or a configuration file either. What small things all servers
//! need beside that (a lock, accept back-off, permits shared by source) is here as well.
#![forbid(unsafe_code)]

pub mod access_log;
pub mod admin;
mod backoff;
mod clock;
mod error_chain;
mod fair;
mod families;
pub mod http;
mod labels;
mod lines;
mod lock;
pub mod logs;
pub mod metrics;
mod page;
pub mod process;
mod throttle;

pub use access_log::{AccessFormat, AccessLog, AccessRecord};
pub use admin::{ClusterStatus, EndpointStatus, Endpoints, Fact, ListenerStatus, Process, Status};
pub use backoff::AcceptBackoff;
pub use clock::http_date;
pub use error_chain::chain;
pub use fair::{FairPermit, FairPermits};
pub use http::Bound;
pub use lock::lock;
pub use logs::{LogControl, LogError, LogFormat, UnknownLogFormat};
pub use metrics::Registry;
pub use settings::EndpointAddr;
pub use throttle::Throttle;
