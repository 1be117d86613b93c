//! Who gets in, and as whom.
//!
//! kube-apiserver takes its server name from the proxy's URL, so that every API server of a seed asks
//! for the name of the Service, which no tenant has. A frontend's certificate decides, a name selects.

use std::time::Duration;

use Port::{Agents, Frontends};

use super::*;
use crate::token::fixture::rules;

/// Where clients with this identity connect, by which server names (none where it is empty), and
/// what they are told to be.
type Row<'a> = (Port, &'a [&'a str], Option<&'a Identity>, &'a str);

fn check(site: &Site, tenants: &Tenants, rows: &[Row<'_>]) {
    for (row, (port, names, identity, expected)) in rows.iter().enumerate() {
        for name in *names {
            let (name, client) = match *name {
                "" => (A, site.nameless(*identity)),
                name => (name, site.client(*identity)),
            };
            let met = meet(tenants, *port, name, &client);
            assert_eq!(met, *expected, "row {row}, {port:?} by {name}");
        }
    }
}

/// Defines tenants that have one authority.
fn add_sharing(site: &Site, ids: &[&str]) -> Authority {
    let shared = Authority::new("shared").unwrap();
    for id in ids {
        site.add(id);
        site.write(&format!("{id}.crt"), shared.pem());
    }
    shared
}

#[test]
fn certificate_port_and_name_tell_the_tenant() {
    let site = Site::new();
    let (a, b) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();
    let (agent_a, api_a) = (agent_of(&a, "a"), frontend_of(&a, "a"));
    let (agent_b, api_b) = (agent_of(&b, "b"), frontend_of(&b, "b"));
    // An authority vouches for its own tenant only, and an unknown one for none.
    let (forged, forged_api) = (agent_of(&a, "b"), frontend_of(&a, "b"));
    let stranger = agent_of(&Authority::new("a").unwrap(), "a");
    let unnamed = a.client("unnamed", &["system:masters"], &[]).unwrap();

    let any = &[A, B, SERVICE, ""];
    let rows: &[Row<'_>] = &[
        (Agents, &[A, ""], Some(&agent_a), "tenant a"),
        (Agents, &[B, ""], Some(&agent_b), "tenant b"),
        (Agents, &[B], Some(&agent_a), "handshake"),
        (Agents, &[C], Some(&agent_a), "unknown_server_name"),
        (Agents, &[A, ""], Some(&api_a), "wrong_role"),
        (Agents, &[B, ""], Some(&forged), "handshake"),
        (Agents, &[A], Some(&forged), "other_cluster"),
        (Agents, &[A, ""], Some(&stranger), "handshake"),
        (Agents, &[A], Some(&unnamed), "unknown_identity"),
        (Agents, &[A, ""], None, "handshake"),
        (Frontends, any, Some(&api_a), "tenant a"),
        (Frontends, any, Some(&api_b), "tenant b"),
        (Frontends, any, Some(&agent_a), "wrong_role"),
        (Frontends, any, Some(&forged_api), "handshake"),
        (Frontends, any, Some(&unnamed), "handshake"),
        (Frontends, any, None, "handshake"),
    ];
    check(&site, &tenants, rows);

    let (forged, agent_a) = (chain(&forged), chain(&agent_a));
    let garbage = [CertificateDer::from(vec![0x30, 0x82, 1, 2, 3])];
    for (name, shown, expected) in [
        (Some(B), forged.as_slice(), "unverified"),
        (Some(A), &forged, "other_cluster"),
        (None, &forged, "unverified"),
        (Some("A.KN.example.com."), &agent_a, "tenant a"),
        (Some(A), &garbage, "malformed"),
        (None, &garbage, "malformed"),
        (Some(A), &[], "no_certificate"),
        (None, &[], "no_certificate"),
    ] {
        let identified = tenants.identify(Agents, name, Some(shown), UnixTime::now());
        assert_eq!(told(identified), expected, "{name:?}");
    }
}

#[test]
fn shared_certificate_needs_matching_name() {
    let site = Site::new();
    let shared = add_sharing(&site, &["a", "b", "c"]);
    let tenants = site.open().current();
    let with = |ids: [&str; 2]| {
        let [one, other] = ids.map(|id| format!("{AGENT}{id}"));
        shared.client("both", &[], &[&one, &other]).unwrap()
    };
    let (of_tenants, of_roles) = (with(["a", "b"]), with(["a", "a/api"]));
    let apis = with(["a/api", "b/api"]);
    let (agent_a, agent_b) = (agent_of(&shared, "a"), agent_of(&shared, "b"));

    let rows: &[Row<'_>] = &[
        (Agents, &[""], Some(&of_tenants), "ambiguous"),
        (Agents, &[A, ""], Some(&of_roles), "ambiguous"),
        (Agents, &[A], Some(&agent_a), "tenant a"),
        (Agents, &[A], Some(&agent_b), "other_cluster"),
        (Frontends, &[A], Some(&apis), "tenant a"),
        (Frontends, &[B], Some(&apis), "tenant b"),
        // Tenant `c` does not fit, and the certificate alone fits two.
        (Frontends, &[C, SERVICE], Some(&apis), "ambiguous"),
    ];
    check(&site, &tenants, rows);
}

#[test]
fn names_do_not_matter_where_no_tenant_has_any() {
    let site = Site::new();
    let a = site.add("a");
    let text = definition("a");
    let (_, rest) = text.split_once('\n').unwrap();
    site.write("a.yaml", rest);
    let agent = agent_of(&a, "a");
    let rows: &[Row<'_>] = &[(Agents, &[C], Some(&agent), "tenant a")];
    check(&site, &site.open().current(), rows);
}

#[test]
fn agents_with_tokens_need_no_certificate() {
    let site = Site::new();
    site.add("a");
    let b = site.add("b");
    site.write("keys.jwks", KEYS);
    let certificates = format!("certificates: {{ ca: a.crt, identities: [\"{AGENT}a\"] }}");
    let tokens = "tokens: { issuer: \"https://a\", audience: a, jwks: keys.jwks }";
    site.write("a.yaml", definition("a").replace(&certificates, tokens));
    let (agent_b, unknown) = (agent_of(&b, "b"), agent_of(&b, "c"));

    let rows: &[Row<'_>] = &[
        (Agents, &[A], None, "token of a"),
        (Agents, &[""], None, "token"),
        (Agents, &[B], None, "handshake"),
        (Frontends, &[A], None, "handshake"),
        // A certificate is still good where it is known, and counts where it is not asked for.
        (Agents, &[""], Some(&agent_b), "tenant b"),
        (Agents, &[""], Some(&unknown), "handshake"),
    ];
    check(&site, &site.open().current(), rows);
}

#[test]
fn two_authorities_are_good_while_they_rotate() {
    let site = Site::new();
    let old = site.add("a");
    let new = Authority::new("a").unwrap();
    site.write("a.crt", old.pem().to_owned() + new.pem());
    let rotated = new.pem().to_owned();
    let registry = site.open();
    let [old, new] = [&old, &new].map(|authority| {
        let agent = agent_of(authority, "a");
        [site.client(Some(&agent)), site.nameless(Some(&agent))]
    });
    let met = |client| meet(&registry.current(), Agents, A, client);

    assert!(
        old.iter()
            .chain(&new)
            .all(|client| met(client) == "tenant a")
    );
    site.write("a.crt", rotated);
    registry.reload();
    assert!(old.iter().all(|client| met(client) == "handshake"));
    assert!(new.iter().all(|client| met(client) == "tenant a"));
}

#[test]
fn a_session_resumes_under_the_same_rules_only() {
    let site = Site::new();
    let old = site.add("a");
    let other = site.add("b");
    let registry = site.open();
    let client = site.client(Some(&agent_of(&old, "a")));
    let shake = || shake(&registry.current(), Agents, A, &client);

    assert_eq!(shake().unwrap().kind, HandshakeKind::Full);
    let resumed = shake().unwrap();
    assert_eq!(resumed.kind, HandshakeKind::Resumed);
    assert_eq!(resumed.met(&registry.current(), Agents), "tenant a");

    // Another tenant's change leaves sessions alone.
    site.write("b.yaml", definition("b") + "serverCount: 2\n");
    registry.reload();
    assert_eq!(shake().unwrap().kind, HandshakeKind::Resumed);

    // The authority goes: what was begun before it is refused by who it is, the rest by the
    // handshake, session or not.
    let before = registry.current();
    site.write("a.crt", other.pem());
    registry.reload();
    let late = self::shake(&before, Agents, A, &client).unwrap();
    assert_eq!(late.kind, HandshakeKind::Resumed);
    assert_eq!(late.met(&registry.current(), Agents), "unverified");
    assert!(shake().is_none());
}

#[test]
fn session_stays_with_tenant_and_port() {
    let site = Site::new();
    let shared = add_sharing(&site, &["a", "b"]);
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&shared, "a")));
    shake(&tenants, Agents, A, &client).unwrap();

    // The client offers its session of `a`, on the other port.
    let moved = shake(&tenants, Frontends, A, &client).unwrap();

    assert_eq!(moved.kind, HandshakeKind::Full);
    assert_eq!(moved.met(&tenants, Frontends), "wrong_role");
}

#[test]
fn expired_certificate_is_refused_in_a_session() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&a, "a")));
    let shaken = shake(&tenants, Agents, A, &client).unwrap();
    // Certificates of tests are good until the year 4096.
    let late = UnixTime::since_unix_epoch(Duration::from_secs(3000 * 366 * 86400));
    let early = UnixTime::since_unix_epoch(Duration::ZERO);

    for now in [late, early] {
        let refused = tenants.identify(Agents, Some(A), shaken.certs(), now);
        assert_eq!(refused, Err(IdentityRefused::Unverified));
    }
}

#[test]
fn shared_identity_needs_server_name() {
    let site = Site::new();
    let mut first = None;
    for number in 0..40 {
        let id = format!("c{number}");
        let authority = site.add(&id);
        let text = definition(&id).replace(&format!("{AGENT}{id}"), "urn:agent");
        site.write(&format!("{id}.yaml"), text);
        first.get_or_insert(authority);
    }
    let tenants = site.open().current();
    let first = first.unwrap();
    let (agent, api) = ["urn:agent", "urn:agent/api"]
        .map(|uri| chain(&first.client("any", &[], &[uri]).unwrap()))
        .into();

    // More tenants know the URI than are tried without a name that fits.
    for (port, name, shown, expected) in [
        (Agents, None, &agent, "ambiguous"),
        (Agents, Some("c0.kn.example.com"), &agent, "tenant c0"),
        (Frontends, Some(SERVICE), &api, "ambiguous"),
        (Frontends, Some("c0.kn.example.com"), &api, "tenant c0"),
    ] {
        let identified = tenants.identify(port, name, Some(shown), UnixTime::now());
        assert_eq!(told(identified), expected, "{port:?} by {name:?}");
    }
}

#[test]
fn new_tenant_is_met_under_an_older_name() {
    let site = Site::new();
    let a = site.add("a");
    let registry = site.open();
    let of_a = site.client(Some(&frontend_of(&a, "a")));
    assert_eq!(meet(&registry.current(), Frontends, A, &of_a), "tenant a");

    let b = site.add("b");
    registry.reload();

    let of_b = site.client(Some(&frontend_of(&b, "b")));
    assert_eq!(meet(&registry.current(), Frontends, A, &of_b), "tenant b");
}

#[test]
fn single_tenant_accepts_its_authorities() {
    let site = Site::new();
    let (agents, frontends) = (Authority::new("x").unwrap(), Authority::new("y").unwrap());
    let params = SingleParams {
        agents_ca: Some(agents.write(&site.dir.join("x.crt")).unwrap()),
        frontends_ca: Some(frontends.write(&site.dir.join("y.crt")).unwrap()),
        ..whole()
    };
    let agent = agents.client("any", &[], &[]).unwrap();
    let frontend = frontends.client("any", &[], &["urn:x"]).unwrap();

    let rows: &[Row<'_>] = &[
        (Agents, &[A, B], Some(&agent), "tenant default"),
        (Frontends, &[A, B], Some(&agent), "handshake"),
        (Frontends, &[""], Some(&frontend), "tenant default"),
        (Agents, &[""], Some(&frontend), "handshake"),
        (Agents, &[A, B], None, "handshake"),
    ];
    check(&site, &site.single(params).current(), rows);
}

#[test]
fn single_tenant_without_authorities() {
    let site = Site::new();
    let stranger = agent_of(&Authority::new("stranger").unwrap(), "a");
    let rows: &[Row<'_>] = &[
        (Agents, &[A], None, "tenant default"),
        (Agents, &[A], Some(&stranger), "tenant default"),
        (Frontends, &[A], None, "handshake"),
        (Frontends, &[A], Some(&stranger), "handshake"),
    ];
    check(&site, &site.single(whole()).current(), rows);
}

#[test]
fn a_single_tenant_with_tokens_asks_for_one() {
    let site = Site::new();
    let mut params = whole();
    params.spec.tokens = Some(TokenSpec {
        rules: rules(None),
        keys: None,
        kubeconfig: None,
        kubeconfig_digest: None,
    });
    let rows: &[Row<'_>] = &[(Agents, &[""], None, "token of default")];
    check(&site, &site.single(params).current(), rows);
}

#[test]
fn each_port_speaks_its_own_protocol() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    for (port, identity, expected) in [
        (Agents, agent_of(&a, "a"), "h2"),
        (Frontends, frontend_of(&a, "a"), "http/1.1"),
    ] {
        let offered = &["x", "http/1.1", "h2"];
        let client = mutual_client_config(&site.server_ca, Some(&identity), offered).unwrap();
        let shaken = shake(&tenants, port, A, &client).unwrap();
        assert_eq!(shaken.server.alpn_protocol(), Some(expected.as_bytes()));
    }
}

#[test]
fn versions_and_suites_follow_the_flags() {
    let mut site = Site::new();
    let a = site.add("a");
    let agent = agent_of(&a, "a");
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(site.server_ca.as_bytes()).unwrap())
        .unwrap();
    let key = PrivateKeyDer::from_pem_slice(agent.key_pem.as_bytes()).unwrap();
    let only12 = ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain(&agent), key)
        .unwrap();
    let only12 = Arc::new(only12);
    let wanted = rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    site.tls.cipher_suites = vec![wanted];
    let shaken = shake(&site.open().current(), Agents, A, &only12).unwrap();
    let suite = shaken.server.negotiated_cipher_suite().unwrap();
    assert_eq!(suite.suite(), wanted);

    site.tls.only_tls13 = true;
    let tenants = site.open().current();
    assert!(shake(&tenants, Agents, A, &only12).is_none());
    let client = site.client(Some(&agent));
    assert_eq!(meet(&tenants, Agents, A, &client), "tenant a");
}
