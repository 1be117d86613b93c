//! What becomes of names before a DNS server is asked.

use super::*;
use crate::config::{Config, Environment};

fn names(domain: &str) -> Names {
    let text = format!(
        r#"
networks: {{ pods: ["100.96.0.0/11"] }}
keys: {{ private: [key], peers: peers.yaml }}
proxy: {{ ca: ca, cert: cert, key: key, clusterDomain: "{domain}" }}
"#
    );
    let config = Config::from_text(&text, "test.yaml".as_ref(), &Environment::default()).unwrap();
    let shoot = Shoot::around_host(&config.networks.all(), &["100.96.0.10:53".parse().unwrap()]);
    let names = Names::new(&config.proxy, &shoot).unwrap();
    names.unwrap()
}

fn full(names: &Names, host: &str) -> Option<String> {
    names.full_name(host).ok().map(|name| name.to_ascii())
}

#[tokio::test]
async fn only_service_names_get_cluster_domain() {
    let names = names("cluster.local");
    for (host, whole) in [
        ("a.ns.svc", "a.ns.svc.cluster.local."),
        ("a.ns.SVC", "a.ns.SVC.cluster.local."),
        ("a.ns.svc.", "a.ns.svc."),
        ("a.ns.svc.cluster.local", "a.ns.svc.cluster.local."),
        ("node-1.example.com", "node-1.example.com."),
        ("node-1", "node-1."),
    ] {
        assert_eq!(full(&names, host).as_deref(), Some(whole), "{host}");
    }
}

#[tokio::test]
async fn without_a_domain_names_are_taken_as_they_are() {
    assert_eq!(full(&names(""), "a.ns.svc").as_deref(), Some("a.ns.svc."));
}

#[tokio::test]
async fn invalid_name_is_not_resolved() {
    let names = names("cluster.local");
    for host in ["", ".", "a..b", "fe80::1%eth0", "a*b", &"a.".repeat(200)] {
        assert_eq!(full(&names, host), None, "{host}");
    }
}
