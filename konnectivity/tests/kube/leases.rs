//! Leases of servers at a real API server: made, renewed, counted, swept, deleted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use konnectivity::lease::{
    LeaseCount, LeaseCountParams, LeaseMetrics, ServerLease, ServerLeaseParams,
};
use serde_json::{Value, json};
use testkit::wait;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::stage::{LIMIT, Stage};

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

#[derive(Default)]
struct Counted {
    listed: AtomicUsize,
    deleted: AtomicUsize,
    culled: AtomicUsize,
}

impl LeaseMetrics for Counted {
    fn listed(&self, code: u16, reason: &str, _: Duration) {
        assert_eq!((code, reason), (200, ""));
        self.listed.fetch_add(1, Ordering::SeqCst);
    }

    fn deleted(&self, code: u16, _: &str, _: Duration) {
        assert_eq!(code, 200);
        self.deleted.fetch_add(1, Ordering::SeqCst);
    }

    fn culled(&self) {
        self.culled.fetch_add(1, Ordering::SeqCst);
    }
}

/// A server's lease that is being kept.
struct Kept {
    count: watch::Receiver<Option<u32>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    metrics: Arc<Counted>,
}

impl Kept {
    fn start(stage: &Stage, server: &str) -> Self {
        let params = ServerLeaseParams {
            kubeconfig: Some(stage.kubeconfig("konnectivity-server")),
            server_id: server.to_owned(),
            namespace: "kube-system".to_owned(),
            labels: "k8s-app=konnectivity-server".parse().unwrap(),
        };
        let metrics = Arc::new(Counted::default());
        let (lease, count) = ServerLease::new(params, Arc::clone(&metrics) as _);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(lease.run(async {
            let _ = stopped.await;
        }));
        Self {
            count,
            stop,
            task,
            metrics,
        }
    }

    /// Stops as a server does; returns once all is done.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        timeout(LIMIT, self.task).await.unwrap().unwrap();
    }
}

/// Waits until there are `wanted` servers.
async fn reaches(count: &mut watch::Receiver<Option<u32>>, wanted: u32) {
    let reached = timeout(LIMIT, async {
        let there = count.wait_for(|count| *count == Some(wanted)).await;
        there.map(drop).unwrap();
    });
    let reached = reached.await.is_ok();
    assert!(reached, "not {wanted} servers but {:?}", *count.borrow());
}

/// Makes a lease as a server would that was gone, `valid` or not.
fn foreign(stage: &Stage, name: &str, label: &str, valid: bool) {
    let lease = json!({
        "metadata": { "name": name, "labels": { "k8s-app": label } },
        "spec": {
            "holderIdentity": name, "leaseDurationSeconds": 1_000_000,
            "renewTime": if valid { "2099-01-01T00:00:00.000000Z" } else { "2020-01-01T00:00:00.000000Z" },
        },
    });
    stage.must("POST", PATH, Some(&lease));
}

/// Asks for a lease. Blocks the test's own thread; its tasks have others.
fn find(stage: &Stage, name: &str) -> Option<Value> {
    let (status, lease) = stage.request("GET", &format!("{PATH}/{name}"), None);
    assert!(matches!(status, 200 | 404), "{status} {lease}");
    (status == 200).then_some(lease)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_keeps_its_lease_and_sweeps_others() {
    let stage = Stage::new("kube-lease", "konnectivity-server", "server: leases");
    foreign(&stage, "valid", "konnectivity-server", true);
    foreign(&stage, "expired", "konnectivity-server", false);
    foreign(&stage, "unrelated", "something-else", false);
    let mut kept = Kept::start(&stage, "one");
    reaches(&mut kept.count, 2).await;

    let name = "konnectivity-proxy-server-one";
    let lease = find(&stage, name).unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "one");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 30);
    assert_eq!(
        lease["metadata"]["labels"]["k8s-app"],
        "konnectivity-server"
    );

    let metrics = Arc::clone(&kept.metrics);
    let swept = || metrics.culled.load(Ordering::SeqCst) == 1;
    wait::until("the expired lease being swept", LIMIT, swept).unwrap();
    assert_eq!(metrics.deleted.load(Ordering::SeqCst), 1);
    assert!(metrics.listed.load(Ordering::SeqCst) >= 1);
    assert!(find(&stage, "expired").is_none());
    assert!(find(&stage, "valid").is_some());
    assert!(find(&stage, "unrelated").is_some());

    let renewed = wait::until_some("the lease being renewed", LIMIT, || {
        find(&stage, name).filter(|now| now["spec"]["renewTime"] != lease["spec"]["renewTime"])
    });
    let renewed = renewed.unwrap();
    let acquired = |lease: &Value| lease["spec"]["acquireTime"].clone();
    assert_eq!(acquired(&renewed), acquired(&lease));

    kept.stop().await;
    assert!(find(&stage, name).is_none());
    assert!(find(&stage, "valid").is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_deleted_by_hand_is_made_again() {
    let stage = Stage::new("kube-lease-again", "konnectivity-server", "server: leases");
    let mut kept = Kept::start(&stage, "one");
    reaches(&mut kept.count, 1).await;
    let name = "konnectivity-proxy-server-one";
    stage.must("DELETE", &format!("{PATH}/{name}"), None);
    let again = || find(&stage, name).is_some();
    wait::until("the lease being made again", LIMIT, again).unwrap();
    kept.stop().await;
    assert!(find(&stage, name).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_counts_servers_as_they_come_and_go() {
    let stage = Stage::new("kube-count", "konnectivity-agent", "agent: leases");
    let params = LeaseCountParams {
        kubeconfig: Some(stage.kubeconfig("konnectivity-agent")),
        namespace: "kube-system".to_owned(),
        selector: "k8s-app=konnectivity-server".to_owned(),
    };
    let metrics = Arc::new(Counted::default());
    let (counting, mut count) = LeaseCount::new(params, Arc::clone(&metrics) as _);
    let task = tokio::spawn(counting.run());
    reaches(&mut count, 1).await;
    assert_eq!(metrics.listed.load(Ordering::SeqCst), 1, "none is one");

    foreign(&stage, "a", "konnectivity-server", true);
    foreign(&stage, "b", "konnectivity-server", true);
    foreign(&stage, "expired", "konnectivity-server", false);
    foreign(&stage, "unrelated", "something-else", true);
    reaches(&mut count, 2).await;
    foreign(&stage, "c", "konnectivity-server", true);
    reaches(&mut count, 3).await;
    stage.must("DELETE", &format!("{PATH}/a"), None);
    reaches(&mut count, 2).await;

    // One that is not renewed runs out without an event.
    let now = k8s_openapi::jiff::Timestamp::now();
    let lease = json!({
        "metadata": { "name": "brief", "labels": { "k8s-app": "konnectivity-server" } },
        "spec": {
            "holderIdentity": "brief", "leaseDurationSeconds": 5,
            "renewTime": format!("{now:.6}"),
        },
    });
    stage.must("POST", PATH, Some(&lease));
    reaches(&mut count, 3).await;
    reaches(&mut count, 2).await;
    task.abort();
}
