//! NetworkPolicies from Services, and routes to every gateway, from one model of the cluster.
#![forbid(unsafe_code)]

pub mod plan;
pub mod world;
