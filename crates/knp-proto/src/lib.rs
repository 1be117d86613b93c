//! The core of the konnectivity server and agent: bytes and `now` in, packets and events out.
//!
//! ```text
//!  agent stream ──▶ frame ──▶ packet ──▶ Link ──▶ inbox ──▶ read, consumed ──▶ socket
//!               ◀── frame ◀── packet ◀── (fair) ◀── outbox ◀── write, finish, close ◀── socket
//!                                         │
//!              Tenant: limits of dials and tunnels, budget of bytes; Backends: which stream to dial
//! ```
//!
//! One [`Link`] is one stream between a server and an agent, seen from either end, with all its
//! tunnels. Several links of one tenant share a [`Tenant`], which bounds what they may hold
//! together, and nothing else: ids of one stream mean nothing to another, so two agents with one
//! agent id cannot be mixed up. [`GrpcFrontend`] speaks to an API server in packets;
//! [`Backends`] chooses the stream for a dial; [`Extensions`] says what both ends understand.
//!
//! Packets are upstream's, with two types of our own (64 CREDIT, 65 FIN) that are used only when
//! both ends offered them. There are no sockets, clocks or random numbers in here.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    warn(clippy::indexing_slicing, clippy::cast_possible_truncation)
)]

mod admission;
mod backends;
mod budget;
mod config;
mod credit;
mod dispatch;
mod fair;
pub mod frame;
mod frontend;
mod id;
mod identifiers;
mod link;
mod metadata;
pub mod packet;
mod progress;
mod queue;
mod tunnel;

pub use admission::{DialRefused, Reserve, Tenant, TenantLimits};
pub use backends::{Backends, Strategy, StrategyError, dial_host};
pub use budget::Budget;
pub use config::{LinkConfig, Role, STREAM_WINDOW};
pub use credit::{CreditError, INITIAL_WINDOW};
pub use frontend::{FrontendAction, GrpcFrontend};
pub use id::{AgentId, ConnectId, DialId, StreamId, TenantId, TunnelId};
pub use identifiers::{Identifiers, IdentifiersError};
pub use link::{DialTarget, Event, Link, LinkError, LinkStats, Transmit};
pub use metadata::{EXTENSION_KEY, Extensions};
pub use packet::{Packet, PacketError, PacketKind};
pub use tunnel::{EndReason, Gone, Read, Violation, WriteError};
