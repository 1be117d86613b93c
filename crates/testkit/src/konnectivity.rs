//! Fake peers of the egress proxy that behave on the wire as upstream's Go programs do.
//!
//! ```text
//!  FakeFrontend ──CONNECT or gRPC──▶ server under test ──gRPC──▶ FakeAgent ──TCP──▶ upstream
//!                                    FakeServer ──gRPC──▶ agent under test ──TCP──▶ upstream
//! ```
//!
//! Packets and frames are read and written by code of this module alone, so that a mistake in the
//! programs under test is not made here as well. [`Wire`] is one gRPC stream in the test's own
//! hands, packet by packet, for whatever no well-behaved peer does. The fakes know neither credit
//! nor half-close; of several windows and timers of the originals only what a peer can notice is
//! copied.

mod agent;
mod engine;
mod frame;
mod frontend;
mod packet;
mod server;
mod stream;
mod tap;
mod wire;

pub use agent::{
    AgentMetadata, AgentTarget, DialRule, FakeAgent, connect, connect_deaf, connect_often,
};
pub use frontend::{
    FakeFrontend, GrpcFrontend, HttpFrontend, Refusal, Tunnel, TunnelReader, TunnelWriter,
};
pub use packet::Packet;
pub use server::{AgentLink, FakeServer, ServerOptions};
pub use wire::{End, Wire};
