//! What a route matches, checked and brought into the form in which it is compared.

use std::sync::Arc;

use super::errors::RouteFault;
use crate::names::normal_form;
use crate::route::{Matches, WireGuardMatch};
use crate::spec::RouteMatch;

/// Brings what a route matches into the form in which it is compared; `None` after a fault.
pub(super) fn parse_matches(
    matches: &RouteMatch,
    fault: &mut dyn FnMut(RouteFault),
) -> Option<Matches> {
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            if values.is_empty() || values.iter().any(String::is_empty) {
                fault(RouteFault::NoMatch);
                return None;
            }
            let values = values.iter().map(|value| value.as_str().into());
            Some(Matches::ConnectDestinations(values.collect()))
        }
        RouteMatch::Destinations { prefixes, port } => {
            if prefixes.is_empty() {
                fault(RouteFault::NoMatch);
                return None;
            }
            if *port == Some(0) {
                fault(RouteFault::Port);
                return None;
            }
            Some(Matches::Destinations {
                prefixes: prefixes.as_slice().into(),
                port: *port,
            })
        }
        RouteMatch::ServerNames(names) => {
            if names.is_empty() {
                fault(RouteFault::NoMatch);
            }
            let mut faults = false;
            let patterns = names.iter().filter_map(|name| match normal_form(name) {
                Ok(pattern) => Some(Arc::from(&*pattern)),
                Err(why) => {
                    faults = true;
                    fault(RouteFault::ServerName {
                        name: name.clone(),
                        why,
                    });
                    None
                }
            });
            let patterns = patterns.collect();
            (!faults && !names.is_empty()).then_some(Matches::ServerNames(patterns))
        }
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => {
            if public_keys.is_empty() && route_id.is_none() {
                fault(RouteFault::NoMatch);
                return None;
            }
            if let Some(id) = *route_id
                && !(1..=RouteMatch::MAX_ROUTE_ID).contains(&id)
            {
                fault(RouteFault::RouteId { id });
                return None;
            }
            Some(Matches::WireGuard(Box::new(WireGuardMatch {
                public_keys: public_keys.as_slice().into(),
                route_id: *route_id,
            })))
        }
    }
}
