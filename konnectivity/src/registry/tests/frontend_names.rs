//! Frontends by the server names that API servers ask for: the certificate decides, a name selects.
//!
//! kube-apiserver takes its server name from the proxy's URL, so that every API server of a seed asks
//! for the name of the Service. That is no `serverNames` of any tenant.

use super::*;

/// What `https://konnectivity-server:8090` in an egress selector makes an API server ask for.
const SERVICE: &str = "konnectivity-server";

fn meet_frontend(tenants: &Tenants, name: &str, client: &Arc<ClientConfig>) -> Met {
    meet(tenants, Port::Frontends, name, client)
}

#[test]
fn frontend_is_identified_under_any_name() {
    let site = Site::new();
    let (a, b) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();

    for (authority, id) in [(&a, "a"), (&b, "b")] {
        let client = site.client(Some(&frontend_of(authority, id)));
        for name in [SERVICE, "a.kn.example.com", "b.kn.example.com"] {
            let met = meet_frontend(&tenants, name, &client);
            assert_eq!(met, of(id), "{id} by {name}");
        }
    }
}

#[test]
fn name_admits_no_frontend_by_itself() {
    let site = Site::new();
    let (a, _) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();
    let agent = site.client(Some(&agent_of(&a, "a")));
    let forged = site.client(Some(&frontend_of(&a, "b")));
    let unnamed = a.client("unnamed", &["system:masters"], &[]).unwrap();
    let unnamed = site.client(Some(&unnamed));

    for name in [SERVICE, "a.kn.example.com", "b.kn.example.com"] {
        let meet = |client| meet_frontend(&tenants, name, client);
        assert_eq!(meet(&agent), Met::Refused("wrong_role"), "{name}");
        assert_eq!(meet(&forged), Met::Handshake, "{name}");
        assert_eq!(meet(&unnamed), Met::Handshake, "{name}");
        assert_eq!(meet(&site.client(None)), Met::Handshake, "{name}");
    }
}

#[test]
fn name_selects_among_fitting_tenants() {
    let site = Site::new();
    let shared = Authority::new("shared").unwrap();
    for id in ["a", "b", "c"] {
        site.add(id);
        site.write(&format!("{id}.crt"), shared.pem());
    }
    let tenants = site.open().current();
    let uris = ["a", "b"].map(|id| format!("{AGENT}{id}/api"));
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let both = shared.client("api", &[], &uris).unwrap();
    let client = site.client(Some(&both));

    let meet = |name| meet_frontend(&tenants, name, &client);
    assert_eq!(meet("a.kn.example.com"), of("a"));
    assert_eq!(meet("b.kn.example.com"), of("b"));
    // Tenant `c` does not fit, and the certificate alone fits two.
    for name in ["c.kn.example.com", SERVICE] {
        assert_eq!(meet(name), Met::Refused("ambiguous"), "{name}");
    }
}

#[test]
fn shared_uri_takes_the_named_tenant() {
    let site = Site::new();
    let mut first = None;
    for number in 0..40 {
        let id = format!("c{number}");
        let authority = site.add(&id);
        let text = definition(&id).replace(&format!("{AGENT}{id}/api"), "urn:api");
        site.write(&format!("{id}.yaml"), text);
        first.get_or_insert(authority);
    }
    let tenants = site.open().current();
    let frontend = first.unwrap().client("api", &[], &["urn:api"]).unwrap();
    let shown = chain(&frontend);

    let identify = |name| tenants.identify(Port::Frontends, Some(name), Some(&shown));
    let spec = tenants.get(&TenantId::new("c0")).unwrap().clone();
    assert_eq!(identify("c0.kn.example.com"), Ok(Peer::Certified(spec)));
    // More tenants know the URI than are tried without a name that fits.
    assert_eq!(identify(SERVICE), Err(IdentityRefused::Ambiguous));
}

#[test]
fn new_tenant_is_met_under_an_older_name() {
    let site = Site::new();
    let a = site.add("a");
    let registry = site.open();
    let of_a = site.client(Some(&frontend_of(&a, "a")));
    let name = "a.kn.example.com";
    assert_eq!(meet_frontend(&registry.current(), name, &of_a), of("a"));

    let b = site.add("b");
    registry.reload();

    let of_b = site.client(Some(&frontend_of(&b, "b")));
    assert_eq!(meet_frontend(&registry.current(), name, &of_b), of("b"));
}
