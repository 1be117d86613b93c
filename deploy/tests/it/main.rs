//! The manifests: what they say, what a real API server makes of them, and what the programs do that
//! they start.
//!
//! ```text
//!   kustomizations ─┬─▶ what every one of them must keep to                     (manifests)
//!                   ├─▶ policies of the shoot, by their documented meaning      (policies)
//!                   ├─▶ what Gardener's controller writes for the Services      (gardener_policies)
//!                   ├─▶ kube-apiserver: applied, applied again, no difference   (cluster)
//!                   └─▶ every program in a pod of its own, and a connection on each path (path)
//! ```
//!
//! Needs root, or a user, network and mount namespace of its own, and other people's programs, which
//! `cargo xtask test` installs: Envoy, etcd, kube-apiserver, kubectl, nft.
#![expect(
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests tell what they could not do, and a failed set-up is a failed test"
)]

mod api;
mod cluster;
mod docs;
mod documented;
mod egress;
mod envoy;
mod gardener_policies;
mod manifests;
mod migration;
mod network;
mod objects;
mod path;
mod policies;
mod prerequisites;
mod registry;
mod rights;
mod roll;
mod seed_policies;
mod sidecars;
mod starts;
mod world;
mod zones;
