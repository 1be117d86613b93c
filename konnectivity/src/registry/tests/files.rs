//! The format of a tenant's file, and what is said of one that is wrong.

use std::path::Path;

use proptest::prelude::{ProptestConfig, any, prop, prop_assert, prop_assert_eq, proptest};
use proptest::strategy::Strategy as Generate;

use super::*;
use crate::token::KeySet;

fn read(site: &Site) -> Result<Arc<TenantSpec>, String> {
    let registry = site.open();
    let a = registry.current().get(&TenantId::new("a")).cloned();
    let mut broken = registry.broken();
    match (a, broken.pop()) {
        (Some(spec), None) => Ok(spec),
        (None, Some((_, reason))) => Err(reason),
        other => panic!("neither good nor bad: {other:?}"),
    }
}

#[test]
fn the_schema_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    settings::check_doc(
        &path.join("konnectivity-cluster.json"),
        &settings::schema::<TenantFile>(),
    );
}

#[test]
fn the_documented_example_says_what_it_says() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/konnectivity-registry.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let (_, example) = guide.split_once("```yaml\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let site = Site::new();
    let authority = Authority::new("a").unwrap();
    site.write("a-ca.crt", authority.pem());
    site.write("a.jwks", KEYS);
    site.write("a.kubeconfig", KUBECONFIG);
    site.write("a.yaml", example);

    let spec = read(&site).unwrap();

    assert_eq!(spec.server_names, ["a.kn.example.com"]);
    assert_eq!(spec.strategies, [Strategy::DestHost, Strategy::Default]);
    assert_eq!(spec.server_count, 1);
    assert_eq!(spec.limits, TenantLimits::default());
    for (port, uri) in [
        (Port::Agents, "spiffe://example.com/cluster/a"),
        (
            Port::Frontends,
            "spiffe://example.com/cluster/a/kube-apiserver",
        ),
    ] {
        assert_eq!(spec.uris(port), Some(&[uri.to_owned()].into()));
    }
    let tokens = spec.tokens.as_ref().unwrap();
    assert_eq!(tokens.keys, KeySet::parse(KEYS.as_bytes()).ok());
    assert_eq!(
        tokens.kubeconfig,
        Some(site.registry_dir().join("a.kubeconfig"))
    );
    assert_eq!(tokens.rules.namespace, "kube-system");
    assert_eq!(tokens.rules.service_account, "konnectivity-agent");
    let uds = UdsSpec {
        path: "/run/kn/a.sock".into(),
        mode: FrontendMode::Grpc,
    };
    assert_eq!(spec.uds, Some(uds));
}

#[test]
fn missing_keys_have_defaults() {
    let site = Site::new();
    site.add("a");
    let spec = read(&site).unwrap();
    assert_eq!(spec.strategies, [Strategy::Default]);
    assert_eq!(spec.server_count, 1);
    assert_eq!(spec.limits, TenantLimits::default());
    assert_eq!((&spec.tokens, &spec.uds), (&None, &None));
}

#[test]
fn a_fault_is_told_with_file_and_key() {
    let site = Site::new();
    site.add("a");
    let good = definition("a");
    let agent = "certificates: { ca: a.crt, identities: [\"spiffe://example.com/cluster/a\"] }";
    let api = "certificates: { ca: a.crt, identities: [\"spiffe://example.com/cluster/a/api\"] }";
    let agent_uris = "[\"spiffe://example.com/cluster/a\"]";
    let agent_uri = "spiffe://example.com/cluster/a";
    let api_uri = "spiffe://example.com/cluster/a/api";
    let cases = [
        ("agents:", "agent:", "unknown"),
        (A, "*.kn.example.com", "serverNames[0]"),
        ("[\"a.kn.example.com\"]", "[b.c, B.C]", "serverNames[1]"),
        ("ca: a.crt", "ca: missing.crt", "agents.certificates.ca"),
        ("ca: a.crt", "ca: a.yaml", "agents.certificates.ca"),
        ("ca: a.crt", "ca: .", "agents.certificates.ca"),
        (agent_uris, "[]", "agents.certificates.identities"),
        (api_uri, "api", "frontends.certificates.identities[0]"),
        (api, "uds: {path: ../a, mode: grpc}", "frontends.uds.path"),
        (api, "uds: {path: a, mode: tcp}", "frontends.uds.mode"),
        (api, "{}", "frontends: needs"),
        (
            agent,
            "tokens: {issuer: i, audience: a}",
            "agents.tokens: needs",
        ),
        (
            agent,
            "tokens: {issuer: \"\", audience: a, jwks: a.yaml}",
            "agents.tokens.issuer",
        ),
        (
            agent,
            "tokens: {issuer: i, audience: a, jwks: a.yaml}",
            "agents.tokens.jwks",
        ),
        (api_uri, agent_uri, "frontends.certificates.identities"),
        ("", "strategies: []\n", "strategies"),
        ("", "strategies: [default, default]\n", "strategies[1]"),
        ("", "serverCount: 0\n", "serverCount"),
        (
            "",
            "limits: {bufferedBytes: 1KiB}\n",
            "limits.bufferedBytes",
        ),
        ("", "limits: {agents: -1}\n", "limits.agents"),
    ];
    for (from, to, key) in cases {
        assert!(good.contains(from), "{from}");
        site.write("a.yaml", good.replacen(from, to, 1));
        let reason = read(&site).unwrap_err();
        assert!(reason.contains("a.yaml"), "{to}: {reason}");
        assert!(reason.contains(key), "{to}: {reason}");
    }
}

#[test]
fn nothing_that_tells_tenants_apart_is_shared() {
    let socket = "frontends:\n  uds: { path: /run/a.sock, mode: grpc }\n";
    let tokens = "agents:\n  tokens: { issuer: i, audience: a, jwks: keys }\n";
    let agent = "agents:\n  certificates: { ca: ca.crt, identities: [\"urn:a\"] }\n";
    let frontend = "frontends:\n  certificates: { ca: ca.crt, identities: [\"urn:a\"] }\n";
    let cases = [
        (
            tokens,
            socket,
            "tokens: { issuer: x, audience: a, jwks: keys }",
            "uds: { path: //run/./a.sock, mode: http-connect }",
            "frontends.uds.path",
        ),
        (
            tokens,
            socket,
            "tokens: { issuer: i, audience: a, jwks: keys }",
            "uds: { path: /b, mode: grpc }",
            "agents.tokens",
        ),
        (
            agent,
            socket,
            "certificates: { ca: again.crt, identities: [\"urn:b\", \"urn:a\"] }",
            "uds: { path: /b, mode: grpc }",
            "agents.certificates.identities",
        ),
        (
            tokens,
            frontend,
            "certificates: { ca: ca.crt, identities: [\"urn:a\"] }",
            "uds: { path: /b, mode: grpc }",
            "agents.certificates.identities",
        ),
    ];
    for (agents, frontends, other_agents, other_frontends, key) in cases {
        let site = Site::new();
        let ca = Authority::new("ca").unwrap();
        let other = Authority::new("ca").unwrap();
        site.write("ca.crt", ca.pem());
        site.write("again.crt", other.pem().to_owned() + ca.pem());
        site.write("keys", KEYS);
        site.write("a.yaml", format!("{agents}{frontends}"));
        site.write(
            "b.yaml",
            format!("agents:\n  {other_agents}\nfrontends:\n  {other_frontends}\n"),
        );
        let registry = site.open();
        assert_eq!(ids(&registry), [""; 0], "{key}");
        let [_, (id, reason)] = registry.broken().try_into().unwrap();
        assert_eq!(id.as_str(), "b");
        assert!(reason.contains(&format!("b.yaml: {key}: ")), "{reason}");
    }
}

#[test]
fn identity_is_per_authority() {
    let site = Site::new();
    let (a, b) = (site.add("a"), site.add("b"));
    site.write("b.yaml", definition("b").replace("cluster/b", "cluster/a"));
    let tenants = site.open().current();
    for (authority, id) in [(&a, "a"), (&b, "b")] {
        let client = site.nameless(Some(&agent_of(authority, "a")));
        let met = meet(&tenants, Port::Agents, A, &client);
        assert_eq!(met, format!("tenant {id}"));
    }
}

/// A file from small pools, so that files clash often, sometimes cut short or with a byte changed.
fn any_file() -> impl Generate<Value = Vec<u8>> {
    let parts = (0..3_u8, 0..3_u8, 0..3_u8, any::<bool>(), 0..4_u8);
    let damage = proptest::option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (parts, damage).prop_map(|((name, ca, uri, uds, token), damage)| {
        let frontends = if uds {
            format!("uds: {{ path: /run/{uri}.sock, mode: grpc }}")
        } else {
            format!("certificates: {{ ca: {ca}.crt, identities: [\"urn:{name}\"] }}")
        };
        let mut text = format!(
            "serverNames: [\"{name}.example.com\"]\nagents:\n  \
             certificates: {{ ca: {ca}.crt, identities: [\"urn:{uri}\"] }}\n  \
             tokens: {{ issuer: \"{token}\", audience: a, jwks: keys }}\n\
             frontends:\n  {frontends}\n"
        )
        .into_bytes();
        if let Some((index, byte)) = damage {
            let at = index.index(text.len());
            if byte < 64 {
                text.truncate(at);
            } else {
                text[at] = byte;
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_files_are_served_or_offender_named(
        rounds in proptest::collection::vec(proptest::collection::vec(any_file(), 0..5), 1..4)
    ) {
        let site = Site::new();
        for ca in 0..2 {
            site.write(&format!("{ca}.crt"), Authority::new("ca").unwrap().pem());
        }
        site.write("keys", KEYS);
        let registry = site.open();
        for files in rounds {
            for index in 0..5 {
                let path = site.registry_dir().join(format!("c{index}.yaml"));
                let _ = std::fs::remove_file(path);
            }
            for (index, text) in files.iter().enumerate() {
                site.write(&format!("c{index}.yaml"), text);
            }
            registry.reload();
            let tenants = registry.current();
            for index in 0..files.len() {
                let id = TenantId::new(&format!("c{index}"));
                let broken = registry.broken();
                let named = broken.iter().find(|(other, _)| *other == id);
                prop_assert!(named.is_some() || tenants.get(&id).is_some());
                if let Some((_, reason)) = named {
                    let name = format!("c{index}.yaml:");
                    prop_assert!(reason.contains(&name), "{}", reason);
                }
            }
            let mut sockets = std::collections::BTreeSet::new();
            for spec in tenants.all() {
                prop_assert!(files.len() > spec.id.as_str()[1..].parse::<usize>().unwrap());
                for name in &spec.server_names {
                    let owner = tenants.by_server_name(name).unwrap();
                    prop_assert_eq!(&owner.id, &spec.id);
                }
                if let Some(uds) = &spec.uds {
                    prop_assert!(sockets.insert(uds.path.clone()));
                }
            }
        }
    }
}
