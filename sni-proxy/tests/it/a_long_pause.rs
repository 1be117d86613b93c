//! A client that stops reading for two minutes and then goes on.

use std::time::Duration;

use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

use crate::support::{Client, Gateway, LIMIT, routes_of};

/// More than all buffers on the way together hold.
const BYTES: usize = 64 << 20;
/// Longer than any keepalive of the default configuration takes to judge (55 s and some).
const PAUSE: Duration = Duration::from_secs(120);

#[test]
fn reader_paused_two_minutes_gets_everything() {
    let source = Upstream::start(Behavior::EndsWriteFirst {
        greeting: vec![b'g'; BYTES],
    })
    .unwrap();
    let config = r#"
listeners:
- { name: tls, address: "127.0.0.1:0", protocol: tls }
"#;
    let gateway = Gateway::start(config, &routes_of(&[("a", source.addr())]));
    let mut client = Client::hello(gateway.addr("tls"), "a.test");
    client.receive(1 << 20);
    let labels = [("listener", "tls"), ("direction", "tx")];
    let relayed = || gateway.value("rhizome_relay_bytes_total", &labels);
    let mut last = 0.0;
    let stalled = wait::until("the window to be closed", LIMIT, || {
        let now = relayed();
        wait::pause(Duration::from_millis(200));
        let stalled = now > 0.0 && now == last;
        last = now;
        stalled
    });
    stalled.unwrap();
    let before = relayed();
    assert!(before < BYTES as f64, "the pause must hold something back");
    wait::pause(PAUSE);
    assert_eq!(relayed(), before, "the client read nothing");
    assert_eq!(gateway.connections().len(), 1);
    assert_eq!(client.rest().len(), BYTES - (1 << 20));
    client.finish();
    gateway.wait_idle();
}
