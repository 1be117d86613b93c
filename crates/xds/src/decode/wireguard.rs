//! Decodes routes of WireGuard servers.

use std::collections::HashSet;

use route::{IpPrefix, RouteMatch};

use crate::decode::fault::{Fault, Within};
use crate::decode::listener::{Limits, Target};
use crate::decode::parts;
use crate::proto::WireGuardRoute;

/// A route of WireGuard servers as it was sent.
#[derive(Debug)]
pub(super) struct WireGuardConfig {
    pub(super) public_keys: Vec<[u8; 32]>,
    pub(super) route_id: Option<u32>,
    /// Clients that may use it; empty = all.
    pub(super) allow_sources: Vec<IpPrefix>,
    pub(super) target: Target,
}

impl WireGuardConfig {
    pub(super) fn read(message: &WireGuardRoute) -> Result<Self, Fault> {
        let mut public_keys: Vec<[u8; 32]> = Vec::with_capacity(message.public_keys.len());
        let mut seen = HashSet::with_capacity(message.public_keys.len());
        for (index, key) in message.public_keys.iter().enumerate() {
            let step = format_args!("public_keys[{index}]");
            match key.as_slice().try_into() {
                Ok(key) if !seen.insert(key) => {
                    return Err(Fault::at(step, "it is there twice"));
                }
                Ok(key) => public_keys.push(key),
                Err(_) => return Err(Fault::at(step, "it is not of 32 bytes")),
            }
        }
        let route_id = Some(message.route_id).filter(|id| *id > 0);
        if route_id.is_some_and(|id| id > RouteMatch::MAX_ROUTE_ID) {
            let why = format!("it is more than {}", RouteMatch::MAX_ROUTE_ID);
            return Err(Fault::at("route_id", why));
        }
        if public_keys.is_empty() && route_id.is_none() {
            return Err(Fault::new("it has neither a key nor a route id"));
        }
        Ok(Self {
            public_keys,
            route_id,
            allow_sources: parts::prefixes("allow_sources", &message.allow_sources)?,
            target: Target {
                cluster: parts::name(&message.cluster).within("cluster")?,
                limits: Limits {
                    idle_timeout: parts::some_duration("idle_timeout", message.idle_timeout)?,
                    max_connection_age: parts::some_duration(
                        "max_connection_age",
                        message.max_connection_age,
                    )?,
                    retries: None,
                },
            },
        })
    }
}
