//! Parameters and flags: what follows from them, and what is refused by which name.

use super::*;

const LEAST: &str = "namespace: shoot--foo--bar\n\
    networks: { pods: [100.96.0.0/11] }\n\
    endpoint: { address: api.example.com }\n";

fn load(text: &str) -> Result<Wanted, String> {
    Wanted::from_text(text, "p.yaml".as_ref()).map_err(|error| error.to_string())
}

fn flags(words: &str) -> Flags {
    let words = words.split_whitespace();
    Flags::try_parse_from(["vpn-provision"].into_iter().chain(words)).unwrap()
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
    for row in [
        "servers: 0 => servers: not between 1 and 4",
        "clients: 5 => clients: not between 1 and 4",
        "routeIds: [1, 2] => routeIds: 2 for 1 servers",
        "routeIds: [1048576] => routeIds[0]: 1048576 is not",
        "servers: 2\nrouteIds: [7, 7] => routeIds[1]: 7 is there twice",
        "routeIdRange: [0, 5] => routeIdRange: [0, 5]",
        "routeIdRange: [6, 5] => routeIdRange: [6, 5]",
        "server: { routeId: 17 } => server.routeId: is written by",
        "client: { keys: {} } => client.keys: is written by",
        "proxyNames: [\"a b\"] => proxyNames[0]: `a b` is neither",
        "certificateDays: 1 => certificateDays: not between",
        "claimsNamespace: Garden => claimsNamespace: `Garden`",
        "transferNetworks: [192.168.123.0/26] => transferNetworks: ",
        "sevrer: {} => sevrer",
    ] {
        let (more, problem) = row.split_once(" => ").unwrap();
        let error = load(&format!("{LEAST}{more}\n")).unwrap_err();
        assert!(error.contains(problem), "{more:?}: {error}");
    }
    let error = load("namespace: a\nnetworks: {}\nendpoint: {}\n").unwrap_err();
    assert!(error.contains("endpoint.address: "), "{error}");
    assert!(error.contains("networks: "), "{error}");
}

#[test]
fn flags_may_precede_or_follow_subcommand() {
    let first = flags("--out d --settle 0s rotate start");
    let last = flags("rotate start --out d --settle 0s");
    for flags in [first, last] {
        assert_eq!(flags.out.as_deref(), Some(Path::new("d")));
        assert!(flags.settle.0.is_zero());
        let rotate = Command::Rotate(Rotate::Start);
        assert_eq!(flags.command, Some(rotate));
    }
}

#[test]
fn each_part_has_one_destination() {
    let is_cluster = |target| matches!(target, Target::Cluster(_));
    for (words, expected) in [
        ("--out d --kubeconfig k", Some([false, false, true])),
        ("--kubeconfig k --shoot-kubeconfig s", Some([true; 3])),
        ("", None),
        ("--kubeconfig k", None),
        ("--shoot-kubeconfig s", None),
        ("--out d --shoot-out s", None),
        ("--kubeconfig k --shoot-kubeconfig s --shoot-out d", None),
    ] {
        let place = flags(words).destination().ok();
        // Whether the seed's and the shoot's part go to clusters, and whether route ids are claimed.
        let place = place.map(|to| {
            [
                is_cluster(to.seed),
                is_cluster(to.shoot),
                to.claims.is_some(),
            ]
        });
        assert_eq!(place, expected, "{words:?}");
    }
}
