//! What a route matches, checked and brought into the form in which it is compared.

use std::sync::Arc;

use super::Fault;
use crate::names::normal_form;
use crate::route::{Matches, WireGuardMatch};
use crate::spec::RouteMatch;

/// Brings what a route matches into the form in which it is compared; `None` after a fault.
pub(super) fn parse_matches(matches: &RouteMatch, fault: Fault<'_>) -> Option<Matches> {
    let nothing = match matches {
        RouteMatch::ConnectDestinations(values) => {
            values.is_empty() || values.iter().any(String::is_empty)
        }
        RouteMatch::Destinations { prefixes, .. } => prefixes.is_empty(),
        RouteMatch::ServerNames(names) => names.is_empty(),
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => public_keys.is_empty() && route_id.is_none(),
    };
    if nothing {
        fault(format_args!("there is nothing to match, or an empty value"));
        return None;
    }
    match matches {
        RouteMatch::ConnectDestinations(values) => {
            let values = values.iter().map(|value| value.as_str().into());
            Some(Matches::ConnectDestinations(values.collect()))
        }
        RouteMatch::Destinations { port: Some(0), .. } => {
            fault(format_args!("port 0 is no destination"));
            None
        }
        RouteMatch::Destinations { prefixes, port } => Some(Matches::Destinations {
            prefixes: prefixes.as_slice().into(),
            port: *port,
        }),
        RouteMatch::ServerNames(names) => {
            let mut faults = false;
            let patterns = names.iter().filter_map(|name| match normal_form(name) {
                Ok(pattern) => Some(Arc::from(&*pattern)),
                Err(why) => {
                    faults = true;
                    fault(format_args!("server name {name:?}: {why}"));
                    None
                }
            });
            let patterns = patterns.collect();
            (!faults).then_some(Matches::ServerNames(patterns))
        }
        RouteMatch::WireGuard {
            public_keys,
            route_id,
        } => {
            let max = RouteMatch::MAX_ROUTE_ID;
            if let Some(id) = *route_id
                && !(1..=max).contains(&id)
            {
                fault(format_args!(
                    "a WireGuard route id is a number from 1 to {max}, not {id}"
                ));
                return None;
            }
            Some(Matches::WireGuard(Box::new(WireGuardMatch {
                public_keys: public_keys.as_slice().into(),
                route_id: *route_id,
            })))
        }
    }
}
