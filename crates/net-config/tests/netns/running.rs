//! The running keeper while another process undoes its changes.

use std::{fs, sync::Arc, time::Duration};

use net_config::{Change, NetConfigError, Observer};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout},
};

use crate::support::*;

/// What the node proxy promises for an address that another process removes.
const REPAIR_LIMIT: Duration = Duration::from_secs(1);

#[test]
fn a_removed_address_is_back_within_a_second() {
    in_namespace(async {
        let mut running = Running::start(&[V4, V6]).await;

        for address in [format!("{V4}/32"), format!("{V6}/128")] {
            ip(&["addr", "del", &address, "dev", DEVICE]);
            running
                .repaired(&format!("{address} removed"), "add_address")
                .await;
        }

        assert_eq!(
            addresses_of(DEVICE),
            [format!("{V4}/32"), format!("{V6}/128")]
        );
        running.stop().await;
    });
}

#[test]
fn a_deleted_device_is_recreated_within_a_second() {
    in_namespace(async {
        let mut running = Running::start(&[V4, V6]).await;

        ip(&["link", "del", DEVICE]);
        running.repaired("device deleted", "create_device").await;
        running.repaired("… its IPv4 address", "add_address").await;
        running.repaired("… its IPv6 address", "add_address").await;

        assert_eq!(
            addresses_of(DEVICE),
            [format!("{V4}/32"), format!("{V6}/128")]
        );
        running.stop().await;
    });
}

#[test]
fn a_device_set_down_is_up_again_within_a_second() {
    in_namespace(async {
        let mut running = Running::start(&[V4, V6]).await;

        ip(&["link", "set", DEVICE, "down"]);
        running.repaired("device set down", "set_up").await;
        // Going down takes the IPv6 addresses off.
        running.repaired("… its IPv6 address", "add_address").await;

        assert_eq!(
            addresses_of(DEVICE),
            [format!("{V4}/32"), format!("{V6}/128")]
        );
        running.stop().await;
    });
}

#[test]
fn renamed_device_is_replaced() {
    in_namespace(async {
        let mut running = Running::start(&[V4]).await;

        ip(&["link", "set", DEVICE, "name", "renamed"]);
        running.repaired("device renamed", "create_device").await;
        running.repaired("… its address", "add_address").await;
        running.repaired("… off the other", "remove_address").await;

        assert_eq!(addresses_of(DEVICE), [format!("{V4}/32")]);
        assert!(addresses_of("renamed").is_empty());
        running.stop().await;
    });
}

#[test]
fn address_elsewhere_is_removed() {
    in_namespace(async {
        let mut running = Running::start(&[V4]).await;

        ip(&["addr", "add", &format!("{V4}/32"), "dev", "lo"]);
        running.repaired("address on lo", "remove_address").await;

        assert!(
            addresses_of("lo")
                .iter()
                .all(|address| !address.starts_with(V4))
        );
        running.stop().await;
    });
}

#[test]
fn events_that_overrun_the_socket_are_made_good() {
    in_namespace(async {
        let mut running = Running::start(&[V4]).await;
        // The keeper shares this thread, so it reads nothing until the whole burst is there:
        // more bytes than a socket's default receive buffer holds.
        let burst: String = (0..2000)
            .map(|n| format!("addr add 10.200.{}.{}/32 dev lo\n", n / 250, n % 250 + 1))
            .collect();
        ip_batch(&format!("{burst}addr del {V4}/32 dev {DEVICE}\n"));

        running
            .repaired("address removed behind 2000 events", "add_address")
            .await;

        assert_eq!(addresses_of(DEVICE), [format!("{V4}/32")]);
        running.stop().await;
    });
}

#[test]
fn keeper_limits_rate_of_repeated_repairs() {
    in_namespace(async {
        let mut running = Running::start(&[V4]).await;
        let start = Instant::now();
        let mut repairs = 0;

        while start.elapsed() < Duration::from_secs(3) {
            ip(&["addr", "del", &format!("{V4}/32"), "dev", DEVICE]);
            running.repaired_quietly("add_address").await;
            repairs += 1;
        }

        println!("{repairs} repairs in 3 s of fighting");
        // 5 ms doubling to 500 ms: seven quick ones within 635 ms, then two a second.
        assert!((3..=14).contains(&repairs), "{repairs}");
        running.stop().await;
    });
}

#[test]
fn keeper_retries_until_ipv6_is_enabled() {
    in_namespace(async {
        // The name is taken by nothing we could use, as long as IPv6 is off.
        fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let mut running = Running::spawn(&[V6]);
        assert_eq!(running.next().await, Event::Applied("create_device"));
        assert_eq!(running.next().await, Event::Failed("ipv6_disabled"));

        fs::write(
            format!("/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6"),
            "0",
        )
        .unwrap();
        while running.next().await != Event::Applied("add_address") {}

        assert_eq!(addresses_of(DEVICE), [format!("{V6}/128")]);
        running.stop().await;
    });
}

/// A keeper at work, and what it tells its observer.
struct Running {
    events: mpsc::UnboundedReceiver<Event>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Applied(&'static str),
    Failed(&'static str),
    Looked(bool),
}

struct Reporter(mpsc::UnboundedSender<Event>);

impl Observer for Reporter {
    fn applied(&self, change: &Change) {
        let _ = self.0.send(Event::Applied(change.label()));
    }

    fn failed(&self, error: &NetConfigError) {
        let _ = self.0.send(Event::Failed(error.reason()));
    }

    fn looked(&self, settled: bool) {
        let _ = self.0.send(Event::Looked(settled));
    }
}

impl Running {
    fn spawn(addresses: &[&str]) -> Self {
        let (reports, events) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut keeper = keeper(addresses).with_observer(Arc::new(Reporter(reports)));
        let task = tokio::spawn(async move {
            keeper
                .run(async { stopped.await.unwrap_or_default() })
                .await;
        });
        Self { events, stop, task }
    }

    /// Starts with everything in place, and `lo` up.
    async fn start(addresses: &[&str]) -> Self {
        ip(&["link", "set", "lo", "up"]);
        keeper(addresses).ensure().await.unwrap();
        let mut running = Self::spawn(addresses);
        assert_eq!(running.next().await, Event::Looked(true));
        running
    }

    async fn next(&mut self) -> Event {
        self.events.recv().await.expect("the keeper runs")
    }

    async fn repaired_quietly(&mut self, label: &'static str) {
        while self.next().await != Event::Applied(label) {}
    }

    /// Waits for the repair `label` and prints how long it took from now.
    async fn repaired(&mut self, what: &str, label: &'static str) {
        let start = Instant::now();
        timeout(REPAIR_LIMIT, self.repaired_quietly(label))
            .await
            .expect("repaired in time");
        println!("{what}: repaired after {:?}", start.elapsed());
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}
