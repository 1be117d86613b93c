//! Routes of WireGuard servers, a resource each.

use ring::digest::{SHA256, digest};
use route::{RouteMatch, RouteSpec};

use crate::encode::matches::cidr_ranges;
use crate::encode::{duration, resource};
use crate::proto::WireGuardRoute;
use crate::resource::{Audience, Resource, ResourceType};

pub(super) fn encode(group: &str, routes: &[RouteSpec], resources: &mut Vec<Resource>) {
    for route in routes {
        let RouteMatch::WireGuard {
            public_keys,
            route_id,
        } = &route.matches
        else {
            continue;
        };
        // Either is in one route only.
        let own = match (route_id, public_keys.first()) {
            (Some(id), _) => id.to_string(),
            // Names get into logs, where whole keys do not belong.
            (None, Some(key)) => {
                let hash = digest(&SHA256, key);
                let start = hash.as_ref().iter().take(16);
                start.map(|byte| format!("{byte:02x}")).collect()
            }
            (None, None) => continue,
        };
        let name = format!("{group}/{own}");
        let message = WireGuardRoute {
            name: name.clone(),
            public_keys: public_keys.iter().map(|key| key.to_vec()).collect(),
            route_id: route_id.unwrap_or(0),
            cluster: route.cluster.clone(),
            allow_sources: cidr_ranges(&route.allow_sources),
            idle_timeout: route.idle_timeout.map(duration),
            max_connection_age: route.max_connection_age.map(duration),
        };
        let kind = ResourceType::WireGuardRoute;
        resources.push(resource(kind, &name, &message, Audience::Parts));
    }
}
