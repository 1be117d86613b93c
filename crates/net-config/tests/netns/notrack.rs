//! NOTRACK rules, judged by the kernel's own table of connections.

use std::{fs, net::SocketAddr};

use net_config::{NetConfigError, NftablesError, Rules, conntrack_active};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::*;

#[test]
fn second_installation_changes_no_rule() {
    in_namespace(async {
        let rules = no_track("rhizome", sockets(&["10.1.2.3:443", "[fd00:10::3]:443"]));
        assert!(!rules.installed().await.unwrap());

        rules.install().await.unwrap();
        let once = nft(&["list", "table", "inet", "rhizome"]);
        rules.install().await.unwrap();

        assert!(rules.installed().await.unwrap());
        assert_eq!(nft(&["list", "table", "inet", "rhizome"]), once);
        for expected in [
            "type filter hook prerouting priority raw; policy accept;",
            "type filter hook output priority raw; policy accept;",
            "ip daddr 10.1.2.3 tcp dport 443 notrack",
            "ip saddr 10.1.2.3 tcp sport 443 notrack",
            "ip6 daddr fd00:10::3 tcp dport 443 notrack",
            "ip6 saddr fd00:10::3 tcp sport 443 notrack",
        ] {
            assert!(once.contains(expected), "{expected} is not in\n{once}");
        }
        assert_eq!(once.matches("notrack").count(), 8);
    });
}

#[test]
fn table_is_replaced_and_others_stay() {
    in_namespace(async {
        nft(&["add", "table", "inet", "foreign"]);
        let before = no_track("rhizome", sockets(&["10.1.2.3:443"]));
        let after = no_track("rhizome", sockets(&["10.1.2.4:443"]));
        before.install().await.unwrap();
        nft(&["add", "rule", "inet", "rhizome", "output", "counter"]);
        assert!(
            !before.installed().await.unwrap(),
            "a foreign rule is noticed"
        );

        after.install().await.unwrap();

        assert!(after.installed().await.unwrap());
        assert!(!before.installed().await.unwrap());
        after.remove().await.unwrap();
        assert_eq!(nft(&["list", "tables"]).trim(), "table inet foreign");
        after.remove().await.unwrap();
    });
}

#[test]
fn without_destinations_there_is_no_table() {
    in_namespace(async {
        no_track("rhizome", sockets(&["10.1.2.3:443"]))
            .install()
            .await
            .unwrap();

        let none = no_track("rhizome", Vec::new());
        none.install().await.unwrap();

        assert!(none.installed().await.unwrap());
        assert_eq!(nft(&["list", "tables"]), "");
    });
}

#[test]
fn tracking_is_detected() {
    in_namespace(async {
        ip(&["link", "set", "lo", "up"]);
        assert!(
            !conntrack_active().unwrap(),
            "no rule has requested tracking here"
        );

        track_connections();

        assert!(conntrack_active().unwrap());
    });
}

#[test]
fn only_address_is_untracked() {
    in_namespace(async {
        ip(&["link", "set", "lo", "up"]);
        keeper(&[V4, V6, "10.1.2.4"]).ensure().await.unwrap();
        track_connections();
        let rules = no_track("rhizome", sockets(&["10.1.2.3:443", "[fd00:10::3]:443"]));
        rules.install().await.unwrap();

        for spared in [V4, V6] {
            converse(spared, 443).await;
        }
        assert_eq!(tracked_tcp(), Vec::<String>::new());

        // The same port elsewhere, and another port of the same address.
        converse("10.1.2.4", 443).await;
        converse(V4, 8443).await;
        assert_eq!(tracked_tcp().len(), 2, "{:?}", tracked_tcp());

        rules.remove().await.unwrap();
        converse(V4, 443).await;
        assert_eq!(tracked_tcp().len(), 3, "{:?}", tracked_tcp());
    });
}

#[test]
fn without_the_capability_it_says_so() {
    in_namespace(async {
        // A namespace owned by another user would need the parent's view of a fresh user namespace,
        // which this thread cannot obtain, so the capability itself is dropped.
        drop_net_admin();

        let refused = no_track("rhizome", sockets(&["10.1.2.3:443"]))
            .install()
            .await;
        assert!(
            matches!(refused, Err(NftablesError::Permission { .. })),
            "{refused:?}"
        );
        let refused = keeper(&[V4]).ensure().await;
        assert!(
            matches!(refused, Err(NetConfigError::Permission { .. })),
            "{refused:?}"
        );
    });
}

fn no_track(table: &str, destinations: Vec<SocketAddr>) -> Rules {
    Rules::no_track(table, destinations).unwrap()
}

/// A rule on connection state makes the kernel track what passes.
fn track_connections() {
    nft(&["add", "table", "inet", "firewall"]);
    nft(&[
        "add",
        "chain",
        "inet",
        "firewall",
        "in",
        "{ type filter hook input priority 0; }",
    ]);
    nft(&[
        "add", "rule", "inet", "firewall", "in", "ct", "state", "new", "counter",
    ]);
}

/// The kernel's entries for TCP in this thread's namespace.
fn tracked_tcp() -> Vec<String> {
    fs::read_to_string("/proc/thread-self/net/nf_conntrack")
        .unwrap()
        .lines()
        .filter(|line| line.contains(" tcp "))
        .map(str::to_owned)
        .collect()
}

/// A whole TCP connection over the loopback device, with bytes both ways.
async fn converse(address: &str, port: u16) {
    let listener = TcpListener::bind((address, port)).await.unwrap();
    let mut client = TcpStream::connect((address, port)).await.unwrap();
    let (mut served, _) = listener.accept().await.unwrap();
    client.write_all(b"ping").await.unwrap();
    let mut heard = [0; 4];
    served.read_exact(&mut heard).await.unwrap();
    served.write_all(b"pong").await.unwrap();
    client.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"pong");
}
