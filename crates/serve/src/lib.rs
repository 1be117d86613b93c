//! The life of a process around its connections: listen, admit, dial, resolve, count, drain.
//!
//! ```text
//!     worker thread (one per CPU, a single-threaded runtime each)
//!       listener ─▶ accept loop ─▶ admission ─▶ one task per connection ─▶ dial ─▶ relay
//!                        ▲                            │ ConnRecord: counters, access log
//!     control thread     │ phase                      ▼
//!       signals ─▶ Drain ┘      resolver ─▶ names with their TTL      /connections
//! ```
//!
//! A connection never leaves the worker that accepted it, so nothing on its path is locked. What a
//! preamble means and which route it takes is the binary's business, not this crate's.
#![forbid(unsafe_code)]

mod accept;
mod admin;
mod admission;
mod closing;
mod connections;
mod descriptors;
mod dial;
mod drain;
mod handover;
mod heap;
mod inherited;
mod listener;
mod listening;
mod metrics;
pub mod program;
mod reason;
mod record;
mod resolve;
mod service;
mod siblings;
mod tcp;
mod worker;

pub use accept::{Accepting, accept_all};
pub use admin::{Admin, AdminParams, ListenerInfo, Readiness};
pub use admission::{Admission, Permit, SourcePermit, source_key};
pub use closing::{Closing, Member};
pub use connections::{ConnectionSummary, Connections};
pub use descriptors::connection_limit;
pub use dial::{DialError, Dialer};
pub use drain::{Drain, DrainParams, Phase};
pub use handover::{OwnSockets, is_served, pass_over};
pub use inherited::{InheritedSocket, inherited_sockets};
pub use listener::{BindError, BoundListeners, ListenerParams, WorkerSocket, bind_all};
pub use metrics::{CurrentSnapshot, ListenerMetrics, ListenerTotals, Metrics};
pub use program::{Failure, Signal, Signals, Threads};
pub use reason::Reason;
pub use record::{ConnInfo, ConnRecord, ListenerContext};
pub use resolve::{Family, NameSet, Resolver};
pub use service::{BoundEndpoints, EndpointError, Service, WorkerFailed, pass_to_last, succeeded};
pub use tcp::{apply_tcp_options, try_tcp_options, unmapped};
pub use worker::{Asker, WorkerHandle, Workers};
