//! One cluster: what may be wrong with its specification, and what it takes over from the one before.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::errors::BuildErrors;
use crate::cluster::{Cluster, Settings, settings_of};
use crate::endpoint::Endpoint;
use crate::maglev::MAX_ENDPOINTS;
use crate::spec::{ClusterSpec, EndpointAddress, EndpointSpec};

/// Tells all that is wrong with a cluster by itself.
pub(super) fn check_cluster(spec: &ClusterSpec, errors: &mut BuildErrors) {
    let mut fault =
        |what: fmt::Arguments<'_>| errors.push(format_args!("cluster {:?}: {what}", spec.name));
    if spec.name.is_empty() {
        fault(format_args!("the name is empty"));
    }
    if spec.connect_timeout.is_zero() {
        fault(format_args!("the time to connect is zero"));
    }
    if let Some(outlier) = &spec.outlier {
        if outlier.consecutive_connect_failures == 0 {
            fault(format_args!(
                "the number of failures of outlier detection is zero"
            ));
        }
        if outlier.ejection.is_zero() {
            fault(format_args!(
                "the ejection time of outlier detection is zero"
            ));
        }
        let percent = outlier.max_ejected_percent;
        if percent > 100 {
            fault(format_args!(
                "at most 100 percent of the endpoints can be ejected, not {percent}"
            ));
        }
    }
    let given = spec.endpoints.len();
    if given > MAX_ENDPOINTS {
        fault(format_args!(
            "{given} endpoints are more than a cluster can have, which is {MAX_ENDPOINTS}"
        ));
    }
    let mut seen = HashSet::new();
    for EndpointSpec {
        address, weight, ..
    } in &spec.endpoints
    {
        let endpoint = || address.to_string();
        if given > 1 && !seen.insert(address) {
            fault(format_args!("endpoint {:?} is there twice", endpoint()));
        }
        if let Err(why) = address.check() {
            fault(format_args!("endpoint {:?}: {why}", endpoint()));
        }
        if *weight == 0 {
            fault(format_args!(
                "endpoint {:?} has weight 0; at least 1 is needed",
                endpoint()
            ));
        }
    }
}

/// Builds a cluster with the state of the one that had its name before.
pub(super) fn build_cluster(
    spec: &ClusterSpec,
    old: Option<&Cluster>,
    shared: &mut Shared,
) -> Cluster {
    let old_endpoints: HashMap<&EndpointAddress, &Arc<Endpoint>> = old
        .map(|old| {
            old.endpoints()
                .iter()
                .map(|endpoint| (endpoint.address(), endpoint))
                .collect()
        })
        .unwrap_or_default();
    let endpoints =
        spec.endpoints.iter().map(
            |endpoint| match old_endpoints.get(&endpoint.address).copied() {
                Some(old) if old.is(endpoint) => Arc::clone(old),
                old => {
                    let zone = endpoint.zone.as_deref().map(|zone| shared.zone(zone));
                    Arc::new(Endpoint::new(endpoint, zone, old.map(AsRef::as_ref)))
                }
            },
        );
    let endpoints = endpoints.collect();
    Cluster::new(spec, endpoints, shared.settings(spec, old), old)
}

/// What clusters have in common and share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    zones: HashSet<Arc<str>>,
    /// Those of the last cluster: mostly all of a table are alike.
    settings: Option<Arc<Settings>>,
}

impl Shared {
    fn zone(&mut self, zone: &str) -> Arc<str> {
        if let Some(known) = self.zones.get(zone) {
            return Arc::clone(known);
        }
        let zone: Arc<str> = zone.into();
        self.zones.insert(Arc::clone(&zone));
        zone
    }

    fn settings(&mut self, spec: &ClusterSpec, old: Option<&Cluster>) -> Arc<Settings> {
        let known = self
            .settings
            .as_ref()
            .or_else(|| old.map(Cluster::settings));
        let settings = settings_of(spec);
        let settings = match known {
            Some(known) if **known == settings => Arc::clone(known),
            Some(_) | None => Arc::new(settings),
        };
        self.settings = Some(Arc::clone(&settings));
        settings
    }
}
