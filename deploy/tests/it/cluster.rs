//! The manifests in a real API server: applied, applied again, and no difference left.

use deploy::Objects;
use serde_json::Value;

use crate::api::Api;
use crate::documented;

/// The kustomizations that go into the seed and the shoot, in the order of docs/deploy.md.
pub(crate) const COMPONENTS: [&str; 12] = [
    "seed/controller",
    "seed/gateway/base",
    "seed/konnectivity-server",
    "control-plane/vpn-server",
    "control-plane/konnectivity-server",
    "control-plane/konnectivity-sidecar",
    "shoot/network-policies",
    "shoot/apiserver-proxy",
    "shoot/apiserver-proxy-keeper",
    "shoot/vpn-client/base",
    "shoot/konnectivity-agent",
    "shoot/konnectivity-agent-sidecar",
];

/// What is applied over one of them.
const OVERLAYS: [&str; 5] = [
    "seed/tls-termination",
    "seed/gateway/overlays/client-addresses",
    "seed/gateway/overlays/udp-service",
    "seed/gateway/overlays/node-cache",
    "shoot/vpn-client/overlays/ipv6",
];

/// Applies everything, the overlays last and then the bases again.
pub(crate) fn apply(api: &Api<'_>) {
    let mut checked = Vec::new();
    let mut known = |directory: &str| -> Vec<Value> {
        let objects = Objects::build(directory).unwrap();
        let all = objects.into_iter().filter_map(|object| {
            let known = documented::check(object, |version, kind| api.serves(version, kind));
            checked.extend(
                known
                    .checked
                    .into_iter()
                    .map(|what| format!("{directory}: {what}")),
            );
            known.object
        });
        all.collect()
    };
    let everything: Vec<Value> = COMPONENTS.iter().flat_map(|own| known(own)).collect();
    // Twice: what the server defaults or changes of its own is no difference.
    for _ in 0..2 {
        api.apply(&everything);
    }
    assert_eq!(api.difference(&everything), "");
    for overlay in OVERLAYS {
        let objects = known(overlay);
        api.apply(&objects);
        assert_eq!(api.difference(&objects), "", "{overlay}");
    }
    // A check that cannot find anything finds nothing.
    assert!(api.difference(&everything).contains("privileged"));
    api.apply(&everything);
    for what in &checked {
        eprintln!("not known to this API server, checked against its documentation: {what}");
    }
}
