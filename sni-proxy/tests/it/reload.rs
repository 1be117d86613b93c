//! Routes that change under a running gateway: taken over in time, or refused whole.

use std::os::unix::fs::symlink;
use std::time::Duration;

use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait::{self, Stopwatch};

use crate::support::{Client, End, Gateway, LIMIT, routes_of};

const LISTENER: &str = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;

/// A changed file is in effect within this.
const IN_FORCE: Duration = Duration::from_secs(2);

fn echo() -> Upstream {
    Upstream::start(Behavior::Echo).unwrap()
}

/// Waits until `name` is routed, for as long as a change may take.
fn wait_routed(gateway: &Gateway, name: &str, clock: Stopwatch) {
    let server_name = format!("{name}.test");
    loop {
        let mut client = Client::hello(gateway.addr("tls"), &server_name);
        let mut buf = [0; 1];
        if client.stream().peek(&mut buf).is_ok_and(|read| read == 1) {
            return;
        }
        assert_eq!(client.end(), End::Closed);
        assert!(
            clock.elapsed() < IN_FORCE,
            "{name} after {:?}",
            clock.elapsed()
        );
        wait::pause(Duration::from_millis(10));
    }
}

#[test]
fn any_kind_of_change_is_applied() {
    let upstream = echo();
    let gateway = Gateway::start(LISTENER, &routes_of(&[("a", upstream.addr())]));
    let mut old = Client::established(gateway.addr("tls"), "a.test");

    gateway
        .dir
        .write("routes.yaml", routes_of(&[("b", upstream.addr())]))
        .unwrap();
    wait_routed(&gateway, "b", Stopwatch::start());
    gateway
        .dir
        .replace("routes.yaml", routes_of(&[("c", upstream.addr())]))
        .unwrap();
    wait_routed(&gateway, "c", Stopwatch::start());
    assert_eq!(
        Client::hello(gateway.addr("tls"), "b.test").end(),
        End::Closed
    );

    old.expect_echo(b"a connection keeps the route it took");
    gateway.wait_generation(3);
    let refused = gateway.value("rhizome_snapshot_refused_total", &[]);
    assert_eq!(refused, 0.0, "a file that is being written is not read");
}

#[test]
fn the_swap_of_a_mounted_config_map_is_noticed() {
    // As the kubelet does it: routes.yaml -> ..data/routes.yaml, ..data -> ..2026_1, and then a
    // new ..data renamed over the old one.
    let upstream = echo();
    let dir = TempDir::new("configmap").unwrap();
    dir.write("..one/routes.yaml", routes_of(&[("a", upstream.addr())]))
        .unwrap();
    symlink("..one", dir.join("..data")).unwrap();
    symlink("..data/routes.yaml", dir.join("routes.yaml")).unwrap();
    let gateway = Gateway::start_with(dir, None, LISTENER);
    let mut old = Client::established(gateway.addr("tls"), "a.test");
    let mut before = "..one".to_owned();
    for name in ["b", "c", "d"] {
        let directory = format!("..{name}");
        let routes = routes_of(&[(name, upstream.addr())]);
        gateway
            .dir
            .write(format!("{directory}/routes.yaml"), routes)
            .unwrap();
        symlink(&directory, gateway.dir.join("..data_tmp")).unwrap();
        std::fs::rename(gateway.dir.join("..data_tmp"), gateway.dir.join("..data")).unwrap();
        std::fs::remove_dir_all(gateway.dir.join(&before)).unwrap();
        wait_routed(&gateway, name, Stopwatch::start());
        before = directory;
    }
    old.expect_echo(b"still here");
    assert_eq!(gateway.value("rhizome_snapshot_refused_total", &[]), 0.0);
}

#[test]
fn refused_routing_file_keeps_last_snapshot() {
    let upstream = echo();
    let good = routes_of(&[("a", upstream.addr())]);
    let gateway = Gateway::start(LISTENER, &good);
    let mut old = Client::established(gateway.addr("tls"), "a.test");
    let unknown_cluster = good.replace("cluster: a", "cluster: z");
    let twice = format!("{good}- {{ serverNames: [\"A.test.\"], cluster: a }}\n");
    let no_source = format!("{good}- {{ serverNames: [b.test], cluster: a, allowSources: [] }}\n");
    let congestion = good.replace("{ name: a, ", "{ name: a, tcp: { congestion: nonesuch }, ");
    let broken: [&str; 8] = [
        "",
        "# nothing\n",
        "clusters: [",
        "clusters: []\nwrong: 1\n",
        &unknown_cluster,
        &twice,
        &no_source,
        &congestion,
    ];
    let mut refused = 0;
    for text in broken {
        gateway.dir.replace("routes.yaml", text).unwrap();
        refused += 1;
        gateway.wait_value("rhizome_snapshot_refused_total", &[], f64::from(refused));
        Client::established(gateway.addr("tls"), "a.test");
    }
    std::fs::remove_file(gateway.dir.join("routes.yaml")).unwrap();
    gateway.wait_value(
        "rhizome_snapshot_refused_total",
        &[],
        f64::from(refused + 1),
    );
    Client::established(gateway.addr("tls"), "a.test");
    assert_eq!(gateway.value("rhizome_snapshot_generation", &[]), 1.0);
    assert_eq!(gateway.readiness(), 200);

    gateway
        .dir
        .write("routes.yaml", routes_of(&[("b", upstream.addr())]))
        .unwrap();
    wait_routed(&gateway, "b", Stopwatch::start());
    gateway.wait_generation(2);
    old.expect_echo(b"never noticed");
}

#[test]
fn unchanged_file_confirms_snapshot() {
    let upstream = echo();
    let yaml = routes_of(&[("a", upstream.addr())]);
    let json = format!(
        r#"{{"clusters":[{{"name":"b","endpoints":[{{"address":"{}"}}]}}],
            "routes":[{{"serverNames":["b.test"],"cluster":"b"}}]}}"#,
        upstream.addr()
    );
    let gateway = Gateway::start(LISTENER, &yaml);
    let age = || gateway.value("rhizome_snapshot_age_seconds", &[]);
    let mut refused = 0.0;
    for (generation, text, name) in [(1, &yaml, "a"), (2, &json, "b"), (3, &yaml, "a")] {
        gateway.dir.replace("routes.yaml", text).unwrap();
        gateway.wait_generation(generation);
        wait::until("the snapshot to age", LIMIT, || age() > 1.0).unwrap();
        gateway.dir.replace("routes.yaml", text).unwrap();
        wait::until("the file to be read again", LIMIT, || age() < 1.0).unwrap();
        // What is wrong in between is refused each time, and the last good text is good again.
        let wrong = text.replace(".test", "..test");
        for _ in 0..2 {
            gateway.dir.replace("routes.yaml", &wrong).unwrap();
            refused += 1.0;
            gateway.wait_value("rhizome_snapshot_refused_total", &[], refused);
        }
        wait::until("the snapshot to age", LIMIT, || age() > 1.0).unwrap();
        gateway.dir.replace("routes.yaml", text).unwrap();
        wait::until("the file to be read again", LIMIT, || age() < 1.0).unwrap();
        Client::established(gateway.addr("tls"), &format!("{name}.test"));
        assert_eq!(
            gateway.value("rhizome_snapshot_generation", &[]),
            f64::from(generation)
        );
    }
}

#[test]
fn a_stream_does_not_notice_fifty_reloads() {
    let watched = echo();
    let other = echo();
    let gateway = Gateway::start(LISTENER, &routes_of(&[("a", watched.addr())]));
    let mut stream = Client::established(gateway.addr("tls"), "a.test");
    for round in 1..=50 {
        // The stream's cluster goes and comes, and its endpoint changes.
        let routes = match round % 3 {
            0 => routes_of(&[("a", watched.addr())]),
            1 => routes_of(&[("b", other.addr())]),
            _ => routes_of(&[("a", other.addr()), ("b", watched.addr())]),
        };
        gateway.dir.replace("routes.yaml", routes).unwrap();
        let in_force = wait::until("the next snapshot", LIMIT, || {
            stream.expect_echo(b"event");
            gateway.value("rhizome_snapshot_generation", &[]) == f64::from(round + 1)
        });
        in_force.unwrap();
    }
    stream.finish();
    stream.end();
    gateway.wait_closed("tls", "closed", 1);
    assert_eq!(gateway.value("rhizome_snapshot_refused_total", &[]), 0.0);
}
