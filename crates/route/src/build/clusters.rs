//! One cluster: what may be wrong with its specification, and what it takes over from the one before.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use super::errors::BuildErrors;
use crate::cluster::{Cluster, settings_of};
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

/// Builds a cluster with the state of the one that had its name before. `last` are the settings of
/// the cluster built last: mostly all of a table are alike, and share them.
pub(super) fn build_cluster(
    spec: &ClusterSpec,
    old: Option<&Cluster>,
    last: &mut Option<Arc<ClusterSpec>>,
) -> Cluster {
    let old_endpoints = old.iter().flat_map(|old| old.endpoints());
    let old_endpoints: HashMap<&EndpointAddress, &Arc<Endpoint>> = old_endpoints
        .map(|endpoint| (endpoint.address(), endpoint))
        .collect();
    let endpoints =
        spec.endpoints.iter().map(
            |endpoint| match old_endpoints.get(&endpoint.address).copied() {
                Some(old) if old.is(endpoint) => Arc::clone(old),
                old => Arc::new(Endpoint::new(endpoint, old.map(AsRef::as_ref))),
            },
        );
    let endpoints = endpoints.collect();
    let settings = settings_of(spec);
    let settings = match last.as_ref().or_else(|| old.map(Cluster::settings)) {
        Some(known) if **known == settings => Arc::clone(known),
        Some(_) | None => Arc::new(settings),
    };
    *last = Some(Arc::clone(&settings));
    Cluster::new(spec, endpoints, settings, old)
}
