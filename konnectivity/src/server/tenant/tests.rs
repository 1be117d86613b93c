//! Dials that wait for agents, are tried again, or are too many, with a clock that is paused.

use knp_proto::{Extensions, Link, LinkConfig};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::*;
use crate::link::EndOnDrop;
use crate::registry::tests::whole;

fn tenant(expects: bool) -> Arc<Tenant> {
    of_spec(whole().spec, expects)
}

fn of_spec(spec: TenantSpec, expects: bool) -> Arc<Tenant> {
    let spec = Arc::new(spec);
    let metrics = ServerMetrics::new(&telemetry::Registry::new(), false);
    Tenant::new(spec, &Budget::new(1 << 20), &metrics, expects)
}

fn join(tenant: &Arc<Tenant>, stream: u64) -> Joined {
    let (extensions, config) = (Extensions::default(), LinkConfig::default());
    let link = Link::server(tenant.limits(), StreamId(stream), extensions, config).unwrap();
    let link = LinkHandle::new(link, tenant.metrics().link().clone());
    let agent = AgentId::new("agent");
    tenant.join(agent, Identifiers::default(), link).unwrap()
}

fn target() -> DialTarget {
    DialTarget {
        protocol: "tcp".to_owned(),
        address: "10.0.0.1:443".to_owned(),
    }
}

/// Returns how long a dial without an agent waits.
async fn waits(tenant: &Tenant) -> Duration {
    let began = Instant::now();
    let dialed = tenant.dial(target(), Duration::from_secs(60)).await;
    assert_eq!(dialed.err(), Some(TunnelError::NoAgent));
    began.elapsed()
}

#[tokio::test(start_paused = true)]
async fn leaving_agent_shortens_no_first_wait() {
    let tenant = tenant(true);
    drop(join(&tenant, 1));
    assert!(waits(&tenant).await >= FIRST_AGENT - Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn dials_wait_for_agents_that_left() {
    let tenant = tenant(false);
    assert_eq!(waits(&tenant).await, Duration::ZERO);
    drop(join(&tenant, 1));
    assert!(waits(&tenant).await >= RETURN - Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn dials_wait_for_silent_agents_to_answer() {
    let tenant = tenant(false);
    let _joined = [join(&tenant, 1), join(&tenant, 2)];
    tenant.set_alive(StreamId(1), false);
    tenant.set_alive(StreamId(2), false);
    assert!(waits(&tenant).await >= RETURN - Duration::from_secs(1));

    let mut dials = JoinSet::new();
    let own = Arc::clone(&tenant);
    dials.spawn(async move { own.dial(target(), Duration::from_secs(60)).await });
    assert_eq!(sent(&tenant).await, 0);
    tenant.set_alive(StreamId(1), true);
    assert_eq!(sent(&tenant).await, 1);
}

#[tokio::test(start_paused = true)]
async fn dials_pay_rate_once_when_they_arrive() {
    let mut spec = whole().spec;
    spec.limits.dials_per_second = 5;
    let tenant = of_spec(spec, true);
    let mut dials = JoinSet::new();
    for _ in 0..4 {
        for _ in 0..5 {
            let tenant = Arc::clone(&tenant);
            dials.spawn(async move { tenant.dial(target(), Duration::from_secs(60)).await });
        }
        sleep(Duration::from_secs(1)).await;
    }

    // All that waited are sent at once, and all that were sent once more.
    let first = join(&tenant, 1);
    assert_eq!(sent(&tenant).await, 20);
    let lost = tenant.connected().into_iter().map(|own| own.link);
    lost.for_each(|link| drop(EndOnDrop(link)));
    drop(first);
    let _second = join(&tenant, 2);
    assert_eq!(sent(&tenant).await, 20);

    let pass = || async { tenant.dial(target(), Duration::ZERO).await.err() };
    let rate = Some(TunnelError::Refused(DialRefused::Rate));
    let mut refused = false;
    for _ in 0..6 {
        refused |= pass().await == rate;
    }
    assert!(refused, "no rate any more");
    assert!(dials.try_join_next().is_none());
}

/// Returns how many dials the agents have to answer, once all that can be are sent.
async fn sent(tenant: &Tenant) -> usize {
    // Paused time goes on only when all tasks wait.
    sleep(Duration::from_millis(1)).await;
    let links = tenant.connected().into_iter();
    links.map(|own| own.link.tunnels()).sum()
}

#[tokio::test(start_paused = true)]
async fn dial_that_ends_links_ends_few() {
    let tenant = tenant(false);
    let _joined: Vec<_> = (1..=9).map(|stream| join(&tenant, stream)).collect();
    let mut dial = std::pin::pin!(tenant.dial(target(), Duration::from_secs(60)));
    let mut ended = 0;
    let dialed = loop {
        tokio::select! {
            biased;
            dialed = &mut dial => break dialed,
            () = tokio::task::yield_now() => {}
        }
        let links = tenant.connected();
        let asked = links.into_iter().filter(|own| own.link.tunnels() > 0);
        for own in asked {
            drop(EndOnDrop(own.link));
            ended += 1;
        }
    };
    assert_eq!(dialed.err(), Some(TunnelError::Lost));
    assert_eq!(ended, MAX_ASKED);
}
