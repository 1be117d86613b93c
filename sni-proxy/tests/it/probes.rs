//! Probes of the program, as a kubelet makes them, whatever other readers of its ports do.

use testkit::http::{SlowReaders, kubelet_probe};

use crate::support::{Child, routes_of};

const LISTENER: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

/// More readers than the server has places.
const READERS: usize = 80;

#[test]
fn probes_are_answered_beside_slow_readers() {
    // Some hundred KiB of metrics.
    let names: Vec<String> = (0..1000).map(|index| format!("c{index}")).collect();
    let endpoint = "127.0.0.1:9".parse().unwrap();
    let clusters: Vec<_> = names.iter().map(|name| (name.as_str(), endpoint)).collect();
    let gateway = Child::start(LISTENER, &routes_of(&clusters));
    for addr in [gateway.probes, gateway.admin] {
        let _readers = SlowReaders::open(addr, "/metrics", READERS).unwrap();
        for path in ["/healthz", "/readyz"].repeat(5) {
            let status = kubelet_probe(addr, path).map_err(|error| format!("{error:#}"));
            assert_eq!(status, Ok(200), "{path}");
        }
    }
}
