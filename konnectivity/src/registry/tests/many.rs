//! As many tenants as one server may have to serve.

use super::*;

#[test]
fn thousands_of_tenants_are_told_apart() {
    const TENANTS: usize = 2000;
    let site = Site::new();
    // A few authorities, each with many tenants: making 2,000 keys would be most of the test.
    let authorities: Vec<_> = (0..20)
        .map(|number| {
            let authority = Authority::new("ca").unwrap();
            site.write(&format!("{number}.crt"), authority.pem());
            authority
        })
        .collect();
    for number in 0..TENANTS {
        let id = format!("shoot-{number}");
        let ca = format!("{}.crt", number % authorities.len());
        let text = definition(&id).replace(&format!("{id}.crt"), &ca);
        site.write(&format!("{id}.yaml"), text);
    }
    let registry = site.open();
    let tenants = registry.current();
    assert_eq!(tenants.all().count(), TENANTS);
    assert_eq!(registry.broken(), []);

    for number in [0, 1, 19, 1000, 1999] {
        let id = format!("shoot-{number}");
        let agent = agent_of(&authorities[number % 20], &id);
        let client = site.nameless(Some(&agent));
        let met = meet(&tenants, Port::Agents, A, &client);
        assert_eq!(met, format!("tenant {id}"));
        let forged = agent_of(&authorities[(number + 1) % 20], &id);
        let client = site.nameless(Some(&forged));
        let met = meet(&tenants, Port::Agents, A, &client);
        assert_eq!(met, "handshake");
    }

    for spec in tenants.all() {
        for port in Port::ALL {
            let config = tenants.tls(port, spec.server_names.first().map(String::as_str));
            assert_eq!(config.alpn_protocols.len(), 1);
        }
    }

    // One change among them is one difference.
    site.remove("shoot-7.yaml");
    registry.reload();
    let left = registry.current();
    assert_eq!(left.all().count() + 1, TENANTS);
    assert!(left.get(&TenantId::new("shoot-7")).is_none());
}
