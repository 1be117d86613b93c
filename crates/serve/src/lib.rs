//! What every program shares: its shell (flags, log, signals, exit code) and the life of a process
//! around its connections: listen, admit, dial, resolve, count, drain.
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
//! preamble means and which route a connection takes is the binary's business, not this crate's.
#![forbid(unsafe_code)]

mod accept;
mod admin;
mod admission;
mod connections;
mod dial;
mod drain;
mod endpoints;
mod handover;
mod inherited;
mod listener;
mod listening;
mod lookup;
mod metrics;
mod process;
pub mod program;
mod race;
mod reason;
mod record;
mod resolve;
mod reuse_port;
mod service;
mod shared_address;
mod started;
mod tcp;
mod worker;

pub use accept::{Accepting, accept_all};
pub use admin::{Admin, AdminPaths, ListenerInfo, Readiness};
pub use admission::{Admission, Permit, SourcePermit, connection_limit, source_key};
pub use connections::Connections;
pub use dial::{DialError, Dialer};
pub use drain::{Drain, DrainParams, Phase};
pub use endpoints::{BoundEndpoints, EndpointError, ServedEndpoints, pass_to_last, succeeded};
pub use handover::{
    AskedFlows, DatagramListeners, DirectoryError, FlowRecord, Handover, HandoverConditions,
    HandoverMetrics, HandoverParams, HandoverReadiness, Movable, MovableFlows, MovableRelay,
    MovingFlows, RelayRecord, Resume, Resumed, TakenSocket, check_handover, parse_message,
};
pub use inherited::{InheritedSocket, inherited_sockets};
pub use listener::{
    BindError, BoundListeners, ListenerParams, ToShare, WorkerSocket, bind_all, bind_rest,
};
pub use lookup::{Answer, Family, LookupClient, LookupError};
pub use metrics::{CurrentSnapshot, ListenerMetrics, ListenerTotals, Metrics};
pub use process::ProcessInfo;
pub use program::{Failure, Signal, Signals, Threads};
pub use race::{RaceError, alternate_families, race};
pub use reason::Reason;
pub use record::{ConnInfo, ConnRecord, Detail, ListenerContext, endpoint_at};
pub use resolve::{NameSet, Resolver};
pub use service::{Service, WorkerFailed};
pub use shared_address::{OwnDatagrams, OwnSockets, ReadSocket, is_served};
pub use started::{NotStarted, started};
pub use tcp::{apply_tcp_options, try_tcp_options, unmapped};
pub use worker::{Asker, WorkerHandle, Workers};
