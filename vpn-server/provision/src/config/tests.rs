//! Parameters and flags: what follows from them, and what is refused by which name.

use super::*;

const LEAST: &str = "namespace: shoot--foo--bar\n\
    networks: { pods: [100.96.0.0/11] }\n\
    endpoint: { address: api.example.com }\n";

fn load(text: &str) -> Result<Wanted, String> {
    Wanted::from_text(text, "p.yaml".as_ref()).map_err(|error| error.to_string())
}

fn refused(more: &str) -> String {
    load(&format!("{LEAST}{more}")).unwrap_err()
}

fn flags(words: &[&str]) -> Flags {
    Flags::try_parse_from(["vpn-provision"].iter().chain(words)).unwrap()
}

#[test]
fn three_keys_describe_a_shoot() {
    let wanted = load(LEAST).unwrap();
    let shown = |all: &[Vec<TunnelAddress>]| -> Vec<String> {
        all.iter().flatten().map(ToString::to_string).collect()
    };
    assert_eq!(shown(&wanted.servers), ["192.168.123.1/24"]);
    assert_eq!(shown(&wanted.clients), ["192.168.123.64/24"]);
    assert!(wanted.file.preshared_keys && wanted.route_ids.is_empty());
    assert_eq!(wanted.file.claims_namespace, "garden");
    assert_eq!(wanted.file.shoot_namespace, "kube-system");
}

#[test]
fn addresses_match_both_ends() {
    let more = "servers: 2\nclients: 2\ntransferNetworks: [\"fd00:1::/96\", 10.9.0.0/24]\n";
    let wanted = load(&format!("{LEAST}{more}")).unwrap();
    assert_eq!(wanted.servers[1][0].to_string(), "fd00:1::2/96");
    assert_eq!(wanted.servers[1][1].to_string(), "10.9.0.2/24");
    assert_eq!(wanted.clients[1][0].to_string(), "fd00:1::b:1/96");
    assert_eq!(wanted.clients[1][1].to_string(), "10.9.0.65/24");
}

#[test]
fn invalid_parameters_are_reported_by_key() {
    for (more, key) in [
        ("servers: 0\n", "servers: not between 1 and 4"),
        ("clients: 5\n", "clients: not between 1 and 4"),
        ("routeIds: [1, 2]\n", "routeIds: 2 for 1 servers"),
        ("routeIds: [1048576]\n", "routeIds[0]: 1048576 is not"),
        (
            "servers: 2\nrouteIds: [7, 7]\n",
            "routeIds[1]: 7 is there twice",
        ),
        ("routeIdRange: [0, 5]\n", "routeIdRange: [0, 5]"),
        ("routeIdRange: [6, 5]\n", "routeIdRange: [6, 5]"),
        ("server: { routeId: 17 }\n", "server.routeId: is written by"),
        ("client: { keys: {} }\n", "client.keys: is written by"),
        ("proxyNames: [\"a b\"]\n", "proxyNames[0]: `a b` is neither"),
        ("certificateDays: 1\n", "certificateDays: not between"),
        ("claimsNamespace: Garden\n", "claimsNamespace: `Garden`"),
        (
            "transferNetworks: [192.168.123.0/26]\n",
            "transferNetworks: ",
        ),
        ("sevrer: {}\n", "sevrer"),
    ] {
        let error = refused(more);
        assert!(error.contains(key), "{more:?}: {error}");
    }
    let error = load("namespace: a\nnetworks: {}\nendpoint: {}\n").unwrap_err();
    assert!(error.contains("endpoint.address: "), "{error}");
    assert!(error.contains("networks: "), "{error}");
}

#[test]
fn flags_may_precede_or_follow_subcommand() {
    let first = flags(&["--out", "d", "--settle", "0s", "rotate", "start"]);
    let last = flags(&["rotate", "start", "--out", "d", "--settle", "0s"]);
    for flags in [first, last] {
        assert_eq!(flags.out.as_deref(), Some(Path::new("d")));
        assert!(flags.settle.0.is_zero());
        let rotate = Command::Rotate(Rotate::Start);
        assert_eq!(flags.command, Some(rotate));
    }
}

#[test]
fn each_part_has_one_destination() {
    let place = |words: &[&str]| flags(words).destination();
    assert!(matches!(
        place(&["--out", "d", "--kubeconfig", "k"]),
        Ok(Destination {
            seed: Target::Directory(_),
            shoot: Target::Directory(_),
            claims: Some(_),
        })
    ));
    assert!(matches!(
        place(&["--kubeconfig", "k", "--shoot-kubeconfig", "s"]),
        Ok(Destination {
            seed: Target::Cluster(_),
            shoot: Target::Cluster(_),
            claims: Some(_),
        })
    ));
    for words in [
        [].as_slice(),
        &["--kubeconfig", "k"],
        &["--shoot-kubeconfig", "s"],
        &["--out", "d", "--shoot-out", "s"],
        &[
            "--kubeconfig",
            "k",
            "--shoot-kubeconfig",
            "s",
            "--shoot-out",
            "d",
        ],
    ] {
        assert!(place(words).is_err(), "{words:?}");
    }
}
