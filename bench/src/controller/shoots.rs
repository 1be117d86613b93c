//! Shoots as a gateway's routes have them: a namespace for twenty, of each a Service and Endpoints.
//!
//! ```text
//! api.s{own}.p{index}.internal.example.com ─▶ kube-apiserver-{own} in shoot--routed--{index}
//!                                               └▶ 10.x.{own}.{last}, which is where it runs now
//! ```
//!
//! No address is in use, unless a network has all of [`NETWORK`] as its own; then a port of it
//! says whose load the shoot gets, see [`port`].

use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::{Value, json};

use super::Lab;

pub(super) const EACH: usize = 20;

pub(super) const NETWORK: &str = "10.64.0.0/10";

/// Creates so many namespaces with all that is in them, unless they are there.
pub(super) fn fill(lab: &mut Lab<'_>, spaces: usize) -> Result<()> {
    if lab.routed > 0 {
        return Ok(());
    }
    let gateways = lab.gateways();
    let all = || (0..spaces).flat_map(|index| (0..EACH).map(move |own| (index, own)));
    let namespaces: Vec<_> = (0..spaces).map(space).collect();
    let services: Vec<_> = all().map(|(index, own)| routed(index, own)).collect();
    let endpoints = all().map(|(index, own)| backends(index, own, FIRST, gateways));
    let endpoints: Vec<_> = endpoints.collect();
    lab.cluster.fill(&namespaces)?;
    lab.cluster.fill(&services)?;
    lab.cluster.fill(&endpoints)?;
    lab.routed = spaces * EACH;
    Ok(())
}

/// The last byte of every address at first.
pub(super) const FIRST: u8 = 1;

/// Returns the port at which the load of the gateway `own % gateways` answers.
pub(super) fn port(own: usize, gateways: usize) -> u16 {
    const BASE: u16 = 443;
    BASE + u16::try_from(own % gateways.max(1)).unwrap_or_default()
}

pub(super) fn address(index: usize, own: usize, last: u8) -> Ipv4Addr {
    let byte = |number: usize| u8::try_from(number % 64).unwrap_or_default();
    Ipv4Addr::new(10, 64 + byte(index), byte(own), last)
}

pub(super) fn name(index: usize, own: usize) -> String {
    format!("api.s{own}.p{index}.internal.example.com")
}

/// Returns the server names of all shoots whose load is that of the gateway `nth` of so many.
pub(super) fn names(spaces: usize, nth: usize, gateways: usize) -> Vec<String> {
    let own = |own: &usize| own % gateways.max(1) == nth;
    let all = (0..spaces).flat_map(|index| (0..EACH).filter(own).map(move |own| name(index, own)));
    all.collect()
}

/// Returns a namespace, and where it is created, as for all others here.
pub(super) fn space(index: usize) -> (String, Value) {
    let object = json!({ "metadata": { "name": namespace(index) } });
    ("/api/v1/namespaces".to_owned(), object)
}

pub(super) fn routed(index: usize, own: usize) -> (String, Value) {
    let object = json!({
        "metadata": { "name": service(own), "annotations": { NAMES: name(index, own) } },
        "spec": {
            "clusterIP": "None",
            "selector": { "app": "kubernetes" },
            "ports": [{ "name": "https", "port": 443, "targetPort": 443 }],
        },
    });
    (collection(index, "services"), object)
}

pub(super) fn backends(index: usize, own: usize, last: u8, gateways: usize) -> (String, Value) {
    let object = json!({
        "metadata": { "name": service(own) },
        "subsets": [{
            "addresses": [{ "ip": address(index, own, last) }],
            "ports": [{ "name": "https", "port": port(own, gateways) }],
        }],
    });
    (collection(index, "endpoints"), object)
}

/// Returns what moves a shoot's API server to another address, and the path of what it patches.
pub(super) fn moved(index: usize, own: usize, last: u8, gateways: usize) -> (String, Value) {
    let (path, object) = backends(index, own, last, gateways);
    (format!("{path}/{}", service(own)), object)
}

/// Returns what gives a shoot another name beside its own, and the path of what it patches.
pub(super) fn named(index: usize, own: usize, another: &str) -> (String, Value) {
    let names = format!("{},{another}", name(index, own));
    let object = json!({ "metadata": { "annotations": { NAMES: names } } });
    let path = collection(index, "services");
    (format!("{path}/{}", service(own)), object)
}

fn namespace(index: usize) -> String {
    format!("shoot--routed--{index:03}")
}

fn service(own: usize) -> String {
    format!("kube-apiserver-{own}")
}

fn collection(index: usize, kind: &str) -> String {
    format!("/api/v1/namespaces/{}/{kind}", namespace(index))
}

const NAMES: &str = "rhizome.gardener.cloud/server-names";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shoot_has_one_gateway() {
        let (one, other) = (names(2, 0, 2), names(2, 1, 2));
        assert_eq!((one.len(), other.len()), (EACH, EACH));
        assert!(one.contains(&name(1, 4)) && other.contains(&name(1, 5)));
        assert_eq!((port(4, 2), port(5, 2)), (443, 444));
        assert_eq!(names(2, 0, 1).len(), 2 * EACH);
    }

    #[test]
    fn addresses_are_in_their_network() {
        assert_eq!(address(0, 0, 1), Ipv4Addr::new(10, 64, 0, 1));
        assert_eq!(address(499, 19, 3), Ipv4Addr::new(10, 64 + 51, 19, 3));
    }
}
