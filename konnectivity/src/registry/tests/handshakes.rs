//! Who gets in, and as whom.

use std::time::Duration;

use super::*;
use crate::token::fixture::rules;

const TOKENS: &str = "  tokens: { issuer: \"https://a\", audience: a, jwks: keys.jwks }\n";

/// The file of a tenant whose agents show tokens only.
fn by_token(id: &str) -> String {
    format!(
        "serverNames: [\"{id}.kn.example.com\"]\nagents:\n{TOKENS}\
         frontends:\n  certificates: {{ ca: {id}.crt, identities: [\"{AGENT}{id}/api\"] }}\n"
    )
}

#[test]
fn a_peer_is_its_own_tenant_s_on_its_own_port() {
    let site = Site::new();
    let (a, b) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();

    for (authority, id) in [(&a, "a"), (&b, "b")] {
        let name = format!("{id}.kn.example.com");
        let agent = agent_of(authority, id);
        let frontend = frontend_of(authority, id);
        for client in [site.client(Some(&agent)), site.nameless(Some(&agent))] {
            assert_eq!(meet(&tenants, Port::Agents, &name, &client), of(id));
        }
        for client in [site.client(Some(&frontend)), site.nameless(Some(&frontend))] {
            assert_eq!(meet(&tenants, Port::Frontends, &name, &client), of(id));
        }
    }
}

#[test]
fn a_name_in_capitals_is_the_same_name() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let shown = chain(&agent_of(&a, "a"));

    let peer = tenants.identify(Port::Agents, Some("A.KN.example.com."), Some(&shown));

    let spec = tenants.get(&TenantId::new("a")).unwrap();
    assert_eq!(peer, Ok(Peer::Certified(spec.clone())));
}

#[test]
fn an_authority_vouches_for_its_own_tenant_only() {
    let site = Site::new();
    let (a, _) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();
    let forged = agent_of(&a, "b");

    let meet = |name, client| meet(&tenants, Port::Agents, name, &client);
    assert_eq!(
        meet("b.kn.example.com", site.client(Some(&forged))),
        Met::Handshake
    );
    assert_eq!(
        meet("b.kn.example.com", site.nameless(Some(&forged))),
        Met::Handshake
    );
    assert_eq!(
        meet("a.kn.example.com", site.client(Some(&forged))),
        Met::Refused("other_cluster")
    );
    let shown = chain(&forged);
    for (name, reason) in [
        (Some("b.kn.example.com"), "unverified"),
        (Some("a.kn.example.com"), "other_cluster"),
        (None, "unverified"),
    ] {
        let refused = tenants.identify(Port::Agents, name, Some(&shown));
        assert_eq!(refused.unwrap_err().reason(), reason, "{name:?}");
    }
}

#[test]
fn unknown_authority_vouches_for_none() {
    let site = Site::new();
    site.add("a");
    let tenants = site.open().current();
    let stranger = Authority::new("a").unwrap();
    let client = site.client(Some(&agent_of(&stranger, "a")));
    let nameless = site.nameless(Some(&agent_of(&stranger, "a")));

    for client in [client, nameless] {
        let met = meet(&tenants, Port::Agents, "a.kn.example.com", &client);
        assert_eq!(met, Met::Handshake);
    }
}

#[test]
fn a_role_is_good_on_its_port_only() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let roles = [
        (Port::Frontends, agent_of(&a, "a")),
        (Port::Agents, frontend_of(&a, "a")),
    ];
    for (port, identity) in roles {
        for client in [site.client(Some(&identity)), site.nameless(Some(&identity))] {
            let met = meet(&tenants, port, "a.kn.example.com", &client);
            assert_eq!(met, Met::Refused("wrong_role"), "{port:?}");
        }
    }
}

#[test]
fn certificate_of_two_tenants_or_roles_is_refused() {
    let site = Site::new();
    let shared = Authority::new("shared").unwrap();
    for id in ["a", "b"] {
        site.add(id);
        site.write(&format!("{id}.crt"), shared.pem());
    }
    let tenants = site.open().current();
    let both = |uris: &[&str]| shared.client("both", &[], uris).unwrap();
    let of_tenants = both(&[&format!("{AGENT}a"), &format!("{AGENT}b")]);
    let of_roles = both(&[&format!("{AGENT}a"), &format!("{AGENT}a/api")]);

    let meet = |client| meet(&tenants, Port::Agents, "a.kn.example.com", &client);
    for identity in [&of_tenants, &of_roles] {
        let met = meet(site.nameless(Some(identity)));
        assert_eq!(met, Met::Refused("ambiguous"));
    }
    assert_eq!(
        meet(site.client(Some(&of_roles))),
        Met::Refused("ambiguous")
    );
    assert_eq!(meet(site.client(Some(&agent_of(&shared, "a")))), of("a"));
    assert_eq!(
        meet(site.client(Some(&agent_of(&shared, "b")))),
        Met::Refused("other_cluster")
    );
}

#[test]
fn a_name_must_be_known_and_agree() {
    let site = Site::new();
    let (a, _) = (site.add("a"), site.add("b"));
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&a, "a")));

    let meet = |name| meet(&tenants, Port::Agents, name, &client);
    assert_eq!(meet("b.kn.example.com"), Met::Handshake);
    assert_eq!(
        meet("c.kn.example.com"),
        Met::Refused("unknown_server_name")
    );
}

#[test]
fn names_do_not_matter_where_no_tenant_has_any() {
    let site = Site::new();
    let a = site.add("a");
    let text = definition("a");
    let (_, rest) = text.split_once('\n').unwrap();
    site.write("a.yaml", rest);
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&a, "a")));

    let met = meet(&tenants, Port::Agents, "c.kn.example.com", &client);

    assert_eq!(met, of("a"));
}

#[test]
fn missing_certificate_is_refused() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let unnamed = a.client("unnamed", &["system:masters"], &[]).unwrap();

    for port in Port::ALL {
        for client in [site.client(None), site.nameless(None)] {
            let met = meet(&tenants, port, "a.kn.example.com", &client);
            assert_eq!(met, Met::Handshake);
        }
        let client = site.client(Some(&unnamed));
        let met = meet(&tenants, port, "a.kn.example.com", &client);
        let refused = match port {
            Port::Agents => Met::Refused("unknown_identity"),
            Port::Frontends => Met::Handshake,
        };
        assert_eq!(met, refused);
    }
}

#[test]
fn agents_with_tokens_need_no_certificate() {
    let site = Site::new();
    site.add("a");
    let b = site.add("b");
    site.write("keys.jwks", KEYS);
    site.write("a.yaml", by_token("a"));
    let tenants = site.open().current();

    let meet = |port, name, client| meet(&tenants, port, name, &client);
    let (one, other) = ("a.kn.example.com", "b.kn.example.com");
    assert_eq!(
        meet(Port::Agents, one, site.client(None)),
        Met::Token(Some("a".to_owned()))
    );
    assert_eq!(
        meet(Port::Agents, one, site.nameless(None)),
        Met::Token(None)
    );
    assert_eq!(meet(Port::Agents, other, site.client(None)), Met::Handshake);
    assert_eq!(
        meet(Port::Frontends, one, site.client(None)),
        Met::Handshake
    );
    // A certificate is still good where it is known, and still counts where it is not asked for.
    let of_b = agent_of(&b, "b");
    assert_eq!(
        meet(Port::Agents, other, site.nameless(Some(&of_b))),
        of("b")
    );
    assert_eq!(
        meet(Port::Agents, one, site.nameless(Some(&agent_of(&b, "c")))),
        Met::Handshake
    );
}

#[test]
fn two_authorities_are_good_while_they_rotate() {
    let site = Site::new();
    let old = site.add("a");
    let new = Authority::new("a").unwrap();
    let mut bundle = old.pem().to_owned();
    write!(bundle, "{}", new.pem()).unwrap();
    site.write("a.crt", bundle);
    let registry = site.open();
    let clients = [&old, &new].map(|authority| {
        let agent = agent_of(authority, "a");
        [site.client(Some(&agent)), site.nameless(Some(&agent))]
    });

    for client in clients.iter().flatten() {
        let met = meet(
            &registry.current(),
            Port::Agents,
            "a.kn.example.com",
            client,
        );
        assert_eq!(met, of("a"));
    }
    site.write("a.crt", new.pem());
    registry.reload();
    for (clients, expected) in clients.iter().zip([Met::Handshake, of("a")]) {
        for client in clients {
            let met = meet(
                &registry.current(),
                Port::Agents,
                "a.kn.example.com",
                client,
            );
            assert_eq!(met, expected);
        }
    }
}

#[test]
fn a_session_resumes_under_the_same_rules_only() {
    let site = Site::new();
    let old = site.add("a");
    let other = site.add("b");
    let registry = site.open();
    let name = "a.kn.example.com";
    let client = site.client(Some(&agent_of(&old, "a")));
    let shake = || shake(&registry.current(), Port::Agents, name, &client);

    assert_eq!(shake().unwrap().kind, HandshakeKind::Full);
    let resumed = shake().unwrap();
    assert_eq!(resumed.kind, HandshakeKind::Resumed);
    assert_eq!(resumed.met(&registry.current(), Port::Agents), of("a"));

    // Another tenant's change leaves sessions alone.
    site.write("b.yaml", definition("b") + "serverCount: 2\n");
    registry.reload();
    assert_eq!(shake().unwrap().kind, HandshakeKind::Resumed);

    // The authority goes: what was begun before it is refused by who it is, the rest by the
    // handshake, session or not.
    let before = registry.current();
    site.write("a.crt", other.pem());
    registry.reload();
    let late = self::shake(&before, Port::Agents, name, &client).unwrap();
    assert_eq!(late.kind, HandshakeKind::Resumed);
    assert_eq!(
        late.met(&registry.current(), Port::Agents),
        Met::Refused("unverified")
    );
    assert!(shake().is_none());
}

#[test]
fn a_session_does_not_move_to_another_tenant_or_port() {
    let site = Site::new();
    let shared = Authority::new("shared").unwrap();
    for id in ["a", "b"] {
        site.add(id);
        site.write(&format!("{id}.crt"), shared.pem());
    }
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&shared, "a")));
    let name = "a.kn.example.com";
    shake(&tenants, Port::Agents, name, &client).unwrap();

    // The client offers its session of `a`, on the other port.
    let moved = shake(&tenants, Port::Frontends, name, &client).unwrap();

    assert_eq!(moved.kind, HandshakeKind::Full);
    assert_eq!(
        moved.met(&tenants, Port::Frontends),
        Met::Refused("wrong_role")
    );
}

#[test]
fn expired_certificate_is_refused_in_a_session() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let client = site.client(Some(&agent_of(&a, "a")));
    let shaken = shake(&tenants, Port::Agents, "a.kn.example.com", &client).unwrap();
    // Certificates of tests are good until the year 4096.
    let late = UnixTime::since_unix_epoch(Duration::from_secs(3000 * 366 * 86400));
    let early = UnixTime::since_unix_epoch(Duration::ZERO);

    for now in [late, early] {
        let refused =
            tenants.identify_at(Port::Agents, Some("a.kn.example.com"), shaken.certs(), now);
        assert_eq!(refused, Err(IdentityRefused::Unverified));
    }
}

#[test]
fn garbage_in_place_of_a_certificate_is_refused() {
    let site = Site::new();
    site.add("a");
    let tenants = site.open().current();
    let garbage = [CertificateDer::from(vec![0x30, 0x82, 1, 2, 3])];

    for name in [None, Some("a.kn.example.com")] {
        let refused = tenants.identify(Port::Agents, name, Some(&garbage));
        assert_eq!(refused, Err(IdentityRefused::Malformed));
        let refused = tenants.identify(Port::Agents, name, Some(&[]));
        assert_eq!(refused, Err(IdentityRefused::NoCertificate));
    }
}

#[test]
fn one_identity_in_many_tenants_needs_a_server_name() {
    let site = Site::new();
    let mut first = None;
    for number in 0..40 {
        let id = format!("c{number}");
        let authority = site.add(&id);
        site.write(
            &format!("{id}.yaml"),
            definition(&id).replace(&format!("{AGENT}{id}\""), "urn:agent\""),
        );
        first.get_or_insert(authority);
    }
    let tenants = site.open().current();
    let agent = first.unwrap().client("agent", &[], &["urn:agent"]).unwrap();
    let shown = chain(&agent);

    let identify = |name| tenants.identify(Port::Agents, name, Some(&shown));
    assert_eq!(identify(None), Err(IdentityRefused::Ambiguous));
    let spec = tenants.get(&TenantId::new("c0")).unwrap().clone();
    assert_eq!(
        identify(Some("c0.kn.example.com")),
        Ok(Peer::Certified(spec))
    );
}

#[test]
fn a_single_tenant_takes_every_certificate_of_its_authorities() {
    let site = Site::new();
    let (agents, frontends) = (Authority::new("x").unwrap(), Authority::new("y").unwrap());
    let params = SingleParams {
        agents_ca: Some(agents.write(&site.dir.join("x.crt")).unwrap()),
        frontends_ca: Some(frontends.write(&site.dir.join("y.crt")).unwrap()),
        ..whole()
    };
    let tenants = site.single(params).current();
    let agent = agents.client("any", &[], &[]).unwrap();
    let frontend = frontends.client("any", &[], &["urn:x"]).unwrap();

    for name in ["a.kn.example.com", "b.kn.example.com"] {
        let meet = |port, client| meet(&tenants, port, name, &client);
        let agent = |port| meet(port, site.client(Some(&agent)));
        let frontend = |port| meet(port, site.nameless(Some(&frontend)));
        assert_eq!(agent(Port::Agents), of("default"));
        assert_eq!(agent(Port::Frontends), Met::Handshake);
        assert_eq!(frontend(Port::Frontends), of("default"));
        assert_eq!(frontend(Port::Agents), Met::Handshake);
        assert_eq!(meet(Port::Agents, site.client(None)), Met::Handshake);
    }
}

#[test]
fn a_single_tenant_without_authorities_takes_every_agent_and_no_frontend() {
    let site = Site::new();
    let tenants = site.single(whole()).current();
    let stranger = Authority::new("stranger").unwrap();
    let stranger = agent_of(&stranger, "a");

    for client in [site.client(None), site.client(Some(&stranger))] {
        let meet = |port| meet(&tenants, port, "a.kn.example.com", &client);
        assert_eq!(meet(Port::Agents), of("default"));
        assert_eq!(meet(Port::Frontends), Met::Handshake);
    }
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
    let tenants = site.single(params).current();

    let client = site.nameless(None);
    let met = meet(&tenants, Port::Agents, "a.kn.example.com", &client);

    assert_eq!(met, Met::Token(Some("default".to_owned())));
}

#[test]
fn each_port_speaks_its_own_protocol() {
    let site = Site::new();
    let a = site.add("a");
    let tenants = site.open().current();
    let offered = ["x", "http/1.1", "h2"].map(|name| name.as_bytes().to_vec());
    for (port, identity, expected) in [
        (Port::Agents, agent_of(&a, "a"), "h2"),
        (Port::Frontends, frontend_of(&a, "a"), "http/1.1"),
    ] {
        let mut config = site.client_config(Some(&identity));
        config.alpn_protocols = offered.to_vec();
        let client = Arc::new(config);
        let shaken = shake(&tenants, port, "a.kn.example.com", &client).unwrap();
        assert_eq!(shaken.server.alpn_protocol(), Some(expected.as_bytes()));
    }
}

#[test]
fn versions_and_suites_follow_the_flags() {
    let mut site = Site::new();
    let a = site.add("a");
    let agent = agent_of(&a, "a");
    let only12 = |site: &Site| {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(site.server_ca.as_bytes()).unwrap())
            .unwrap();
        let config = ClientConfig::builder_with_provider(provider().clone())
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(
                chain(&agent),
                PrivateKeyDer::from_pem_slice(agent.key_pem.as_bytes()).unwrap(),
            )
            .unwrap();
        Arc::new(config)
    };
    let wanted = rustls::CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256;
    site.tls.cipher_suites = vec![wanted];
    let tenants = site.open().current();
    let shaken = shake(&tenants, Port::Agents, "a.kn.example.com", &only12(&site)).unwrap();
    let suite = shaken.server.negotiated_cipher_suite().unwrap();
    assert_eq!(suite.suite(), wanted);

    site.tls.only_tls13 = true;
    let tenants = site.open().current();
    assert!(shake(&tenants, Port::Agents, "a.kn.example.com", &only12(&site)).is_none());
    let client = site.client(Some(&agent));
    assert_eq!(
        meet(&tenants, Port::Agents, "a.kn.example.com", &client),
        of("a")
    );
}
