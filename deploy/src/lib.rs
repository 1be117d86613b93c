//! The manifests in this directory, read the way a cluster reads them, for tests.
//!
//! ```text
//!   kustomization ─ kubectl kustomize ─▶ Objects ─▶ Pod ─▶ Container ─▶ Sandbox ─▶ the program, as it
//!                                        (+ Secrets of the test)                   would run in its pod
//! ```
//!
//! What a test starts comes from here: arguments, environment, configuration, files, user, capabilities
//! and a root file system that cannot be written are the manifest's, so that what is wrong there fails.
//! Nothing here is part of a program, and nothing is applied to a cluster.
#![forbid(unsafe_code)]
#![expect(
    missing_docs,
    reason = "for tests alone: what a name says is not said again"
)]

mod container;
pub mod gardener;
mod objects;
mod pod;
mod programs;
mod sandbox;
mod script;
mod volumes;

pub use container::{Container, Port, Probe, Rights};
pub use objects::{Objects, kustomizations, root};
pub use pod::Pod;
pub use programs::program;
pub use sandbox::{Account, Sandbox, probe_command};
