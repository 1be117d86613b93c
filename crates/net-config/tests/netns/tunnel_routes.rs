//! Routes for sockets bound to the tunnel device, switches and the masquerade rule, as the kernel
//! shows them.

use std::{fs, net::IpAddr, time::Duration};

use ipnet::IpNet;
use net_config::{
    Forwarding, NetConfigError, NftablesError, ReversePath, Rules, SourceChecks, TunnelDevice,
    TunnelRoutes, ipv6_forwarding_enabled, setup_ipv6_forwarding,
};

use crate::support::*;

const TUNNEL: &str = "rhizome0";
const NOTHING: [&str; 0] = [];

#[test]
fn routes_and_rules_come_stay_and_go() {
    in_namespace(async {
        tunnel();
        let before = everything();
        let routes = routes(&["10.96.0.0/11", "fd00:1::/64"]);

        assert_eq!(routes.install().await.unwrap().len(), 4);

        assert_eq!(routes.install().await.unwrap(), NOTHING, "a second call");
        let rules = [ip(&["-4", "rule"]), ip(&["-6", "rule"])].concat();
        assert_eq!(
            rules
                .matches("100:\tfrom all oif rhizome0 lookup 51820")
                .count(),
            2
        );
        assert_eq!(
            ip(&["-4", "route", "show", "table", "51820"]).trim(),
            "10.96.0.0/11 dev rhizome0 proto 82 scope link src 192.168.123.1 linkdown"
        );
        routes.remove().await.unwrap();
        assert_eq!(everything(), before);
        assert_eq!(routes.remove().await.unwrap(), NOTHING);
    });
}

#[test]
fn install_removes_only_its_own_stale_entries() {
    in_namespace(async {
        tunnel();
        ip(&["rule", "add", "oif", TUNNEL, "lookup", "99", "pref", "4000"]);
        ip(&[
            "route",
            "add",
            "172.16.0.0/12",
            "dev",
            TUNNEL,
            "table",
            "51820",
        ]);
        let earlier = TunnelRoutes {
            priority: 200,
            ..routes(&["10.96.0.0/11", "10.1.0.0/16", "fd00:1::/64"])
        };
        earlier.install().await.unwrap();

        let changes = routes(&["10.96.0.0/11"]).install().await.unwrap();

        let removed = |change: &&String| {
            change.starts_with("remove the ")
                && (change.contains("route") || change.contains("rule"))
        };
        assert_eq!(changes.iter().filter(removed).count(), 4, "{changes:?}");
        assert_eq!(ip(&["-6", "rule"]).matches(TUNNEL).count(), 0);
        assert!(ip(&["rule"]).contains("4000:\tfrom all oif rhizome0 lookup 99"));
        let shown = ip(&["route", "show", "table", "51820"]);
        assert!(shown.contains("172.16.0.0/12") && !shown.contains("10.1.0.0/16"));
    });
}

#[test]
fn changed_table_leaves_nothing_in_old() {
    in_namespace(async {
        tunnel();
        routes(&["10.96.0.0/11", "fd00:1::/64"])
            .install()
            .await
            .unwrap();

        let moved = TunnelRoutes {
            table: 7,
            ..routes(&["10.96.0.0/11", "fd00:1::/64"])
        };
        moved.install().await.unwrap();

        assert!(!everything().contains("51820"), "{}", everything());
        assert!(ip(&["rule"]).contains("100:\tfrom all oif rhizome0 lookup 7"));
    });
}

#[test]
fn a_route_whose_source_changed_is_replaced() {
    in_namespace(async {
        tunnel();
        routes(&["10.96.0.0/11", "fd00:1::/64"])
            .install()
            .await
            .unwrap();
        ip(&["addr", "add", "192.168.123.2/24", "dev", TUNNEL]);

        let other = TunnelRoutes {
            sources: vec!["192.168.123.2".parse().unwrap(), "fd8f::1".parse().unwrap()],
            ..routes(&["10.96.0.0/11", "fd00:1::/64"])
        };

        assert_eq!(other.install().await.unwrap().len(), 1);
        let shown = ip(&["route", "show", "table", "51820"]);
        assert!(shown.contains("src 192.168.123.2 "), "{shown}");
        assert_eq!(shown.lines().count(), 1);
    });
}

#[test]
fn install_reports_a_foreign_rule_that_wins() {
    in_namespace(async {
        tunnel();
        ip(&[
            "rule",
            "add",
            "to",
            "10.96.0.0/16",
            "lookup",
            "99",
            "pref",
            "50",
        ]);
        ip(&["route", "add", "10.0.0.0/8", "dev", TUNNEL, "table", "99"]);

        let refused = routes(&["10.96.0.0/11"]).install().await;

        assert!(
            matches!(refused, Err(NetConfigError::NotInPlace { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn the_check_of_sources_is_off_where_it_can_be() {
    in_namespace(async {
        tunnel();
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0").unwrap();
        fs::write("/proc/sys/net/ipv4/conf/rhizome0/rp_filter", "1").unwrap();

        let (left, changes) = checks().relax().await.unwrap();

        assert_eq!((left, changes.is_empty()), (ReversePath::Off, false));
        assert_eq!(switch("rhizome0/accept_local"), "1");
        assert_eq!(switch("rhizome0/rp_filter"), "0");
        assert_eq!(switch("rhizome0/log_martians"), "0");
        assert_eq!(checks().relax().await.unwrap(), (ReversePath::Off, vec![]));
    });
}

#[test]
fn strict_rp_filter_becomes_loose_on_ours() {
    in_namespace(async {
        tunnel();
        fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();

        let refused = checks().relax().await.unwrap_err();

        assert_eq!(refused.reason(), "reverse_path");
        assert!(
            refused
                .to_string()
                .contains("net.ipv4.conf.all.rp_filter is 1"),
            "{refused}"
        );
        uplink();
        let (left, _) = checks().relax().await.unwrap();
        assert_eq!(left, ReversePath::Loose);
        assert_eq!(switch("rhizome0/rp_filter"), "2");
    });
}

#[test]
fn only_the_tunnel_and_its_uplinks_forward() {
    in_namespace(async {
        tunnel();
        fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        let forwarding = forwarding(&["10.96.0.0/11"]);
        let refused = forwarding.enable().await.unwrap_err();
        assert_eq!(refused.reason(), "no_route", "{refused}");
        uplink();
        ip(&[
            "link", "add", "node0", "type", "veth", "peer", "name", "far1",
        ]);
        ip(&["addr", "add", "10.97.0.1/24", "dev", "node0"]);
        ip(&["link", "set", "node0", "up"]);
        ip(&[
            "link", "add", "other0", "type", "veth", "peer", "name", "far2",
        ]);

        let forwarded = forwarding.enable().await.unwrap();

        assert_eq!(forwarded.uplinks, ["eth0", "node0"]);
        assert_eq!(forwarded.changes.len(), 3);
        for device in [TUNNEL, "eth0", "node0"] {
            assert_eq!(switch(&format!("{device}/forwarding")), "1");
        }
        assert_eq!(switch("other0/forwarding"), "0");
        assert_eq!(forwarding.enable().await.unwrap().changes, NOTHING);
    });
}

#[test]
fn init_container_sets_ipv6_forwarding() {
    in_namespace(async {
        tunnel();
        uplink();
        let all = "/proc/sys/net/ipv6/conf/all";
        fs::write(format!("{all}/forwarding"), "0").unwrap();
        fs::write(format!("{all}/disable_ipv6"), "1").unwrap();
        assert!(!ipv6_forwarding_enabled().await.unwrap());
        let refused = forwarding(&["10.96.0.0/11", "fd00:1::/64"]).enable().await;
        assert_eq!(refused.unwrap_err().reason(), "ipv6_forwarding");
        assert_eq!(switch("eth0/forwarding"), "1", "IPv4 is in place");

        let written = setup_ipv6_forwarding(true).unwrap();

        assert!(
            written
                .iter()
                .any(|path| path.ends_with("all/disable_ipv6"))
        );
        assert!(ipv6_forwarding_enabled().await.unwrap());
        assert_eq!(setup_ipv6_forwarding(true).unwrap(), Vec::<String>::new());
        forwarding(&["10.96.0.0/11", "fd00:1::/64"])
            .enable()
            .await
            .unwrap();
    });
}

#[test]
fn masquerade_table_comes_and_goes() {
    in_namespace(async {
        nft(&["add", "table", "inet", "foreign"]);
        let rule = Rules::masquerade("rhizome", TUNNEL).unwrap();
        assert!(!rule.installed().await.unwrap());

        rule.install().await.unwrap();

        let shown = nft(&["list", "table", "inet", "rhizome"]);
        for expected in [
            "type nat hook postrouting priority srcnat; policy accept;",
            "iifname \"rhizome0\" oifname != \"rhizome0\" masquerade fully-random",
        ] {
            assert!(shown.contains(expected), "{expected} is not in\n{shown}");
        }
        nft(&["add", "rule", "inet", "rhizome", "postrouting", "counter"]);
        assert!(
            !rule.installed().await.unwrap(),
            "a foreign rule is noticed"
        );
        rule.install().await.unwrap();
        assert_eq!(nft(&["list", "table", "inet", "rhizome"]), shown);
        rule.remove().await.unwrap();
        rule.remove().await.unwrap();
        assert_eq!(nft(&["list", "tables"]).trim(), "table inet foreign");
    });
}

#[test]
fn without_the_capability_every_part_says_so() {
    in_namespace(async {
        tunnel();
        uplink();
        drop_net_admin();

        let refused = [
            routes(&["10.96.0.0/11"]).install().await.unwrap_err(),
            checks().relax().await.unwrap_err(),
            forwarding(&["10.96.0.0/11"]).enable().await.unwrap_err(),
        ];

        for error in refused {
            assert_eq!(error.reason(), "permission", "{error}");
        }
        let refused = Rules::masquerade("rhizome", TUNNEL)
            .unwrap()
            .install()
            .await;
        assert!(
            matches!(refused, Err(NftablesError::Permission { .. })),
            "{refused:?}"
        );
    });
}

#[test]
fn the_capability_alone_is_enough_for_every_part() {
    in_namespace(async {
        tunnel();
        uplink();
        keep_net_admin_alone();

        device().configure().await.unwrap();
        routes(&["10.96.0.0/11", "fd00:1::/64"])
            .install()
            .await
            .unwrap();
        checks().relax().await.unwrap();
        forwarding(&["10.96.0.0/11"]).enable().await.unwrap();
        Rules::masquerade("rhizome", TUNNEL)
            .unwrap()
            .install()
            .await
            .unwrap();
    });
}

/// A tunnel device with an address of each family, and no other way anywhere.
fn tunnel() {
    ip(&["tuntap", "add", TUNNEL, "mode", "tun"]);
    ip(&["link", "set", TUNNEL, "up"]);
    ip(&[
        "addr",
        "add",
        "192.168.123.1/24",
        "dev",
        TUNNEL,
        "noprefixroute",
    ]);
    ip(&[
        "addr",
        "add",
        "fd8f::1/96",
        "dev",
        TUNNEL,
        "nodad",
        "noprefixroute",
    ]);
    // The kernel makes an IPv6 address local in a work queue.
    testkit::wait::until("a local route", Duration::from_secs(10), || {
        ip(&["-6", "route", "show", "table", "local"]).contains("fd8f::1")
    })
    .unwrap();
}

/// A device with the default route.
fn uplink() {
    ip(&[
        "link", "add", "eth0", "type", "veth", "peer", "name", "far0",
    ]);
    ip(&["addr", "add", "10.0.0.5/24", "dev", "eth0"]);
    ip(&["link", "set", "far0", "up"]);
    ip(&["link", "set", "eth0", "up"]);
    ip(&["route", "add", "default", "via", "10.0.0.1"]);
}

fn device() -> TunnelDevice {
    TunnelDevice {
        device: TUNNEL.to_owned(),
        mtu: 1420,
        queue_packets: 1000,
        addresses: prefixes(&["192.168.123.1/24", "fd8f::1/96"]),
        prefix_routes: false,
    }
}

fn routes(networks: &[&str]) -> TunnelRoutes {
    let sources = ["192.168.123.1", "fd8f::1"];
    TunnelRoutes {
        device: TUNNEL.to_owned(),
        table: TunnelRoutes::DEFAULT_TABLE,
        priority: TunnelRoutes::DEFAULT_PRIORITY,
        sources: sources.map(|text| text.parse::<IpAddr>().unwrap()).to_vec(),
        networks: prefixes(networks),
    }
}

fn checks() -> SourceChecks {
    SourceChecks {
        device: TUNNEL.to_owned(),
        networks: prefixes(&["10.96.0.0/11", "fd00:1::/64"]),
    }
}

fn forwarding(networks: &[&str]) -> Forwarding {
    Forwarding {
        device: TUNNEL.to_owned(),
        networks: prefixes(networks),
    }
}

fn prefixes(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn switch(name: &str) -> String {
    let path = format!("/proc/sys/net/ipv4/conf/{name}");
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Rules, and routes of all tables.
fn everything() -> String {
    ["-4", "-6"]
        .map(|family| {
            [
                ip(&[family, "rule"]),
                ip(&[family, "route", "show", "table", "all"]),
            ]
            .concat()
        })
        .concat()
}
