//! Updates against a sink that remembers.

use route::{ClusterSpec, EndpointSpec, RouteMatch, RouteSpec};

use super::*;
use crate::client::update::{Response, decode_response};
use crate::decode::{OwnProtocol, Table};
use crate::encode::GatewayParams;
use crate::proto::discovery::{Any, DeltaDiscoveryResponse, DiscoveryResponse, NamedResource};
use crate::resource::Resource;
use crate::resource::ResourceType::{Cluster, ClusterLoadAssignment, Listener};

#[derive(Default)]
struct Memory {
    tables: Vec<Table>,
    refuses: bool,
}

impl Sink for Memory {
    fn apply(&mut self, table: Table) -> Result<(), String> {
        if self.refuses {
            return Err("not now".to_owned());
        }
        self.tables.push(table);
        Ok(())
    }

    fn confirmed(&mut self) {}
}

impl Memory {
    /// Server names and the number of endpoints behind each, of the table in effect.
    fn routes(&self) -> Vec<String> {
        let spec = &self.tables.last().unwrap().spec;
        let routes = spec.routes.iter().map(|route| {
            let RouteMatch::ServerNames(names) = &route.matches else {
                panic!("only server names are here");
            };
            let found = spec.clusters.iter().find(|one| one.name == route.cluster);
            format!("{} {}", names.join(","), found.unwrap().endpoints.len())
        });
        let mut routes: Vec<_> = routes.collect();
        routes.sort();
        routes
    }
}

/// A client of one listener, and where its tables go.
struct Client {
    held: HeldResources,
    sink: Memory,
}

impl Client {
    fn new() -> Self {
        let own = OwnListener {
            name: "tls".into(),
            port: 443,
            protocol: OwnProtocol::Tls,
        };
        Self {
            held: HeldResources::new(State::default(), vec![own]),
            sink: Memory::default(),
        }
    }

    fn take(&mut self, updates: &[Update]) -> Vec<Result<(), String>> {
        self.held.settle(updates, &mut self.sink)
    }
}

/// A cluster and its assignment.
fn cluster(name: &str) -> Vec<Resource> {
    let mut spec = ClusterSpec::new(name);
    spec.endpoints = vec![EndpointSpec::new("10.0.0.1:443".parse().unwrap())];
    crate::encode::cluster(&spec)
}

/// A listener's part of a group, that routes a server name.
fn part(group: &str, server_name: &str, cluster: &str) -> Vec<Resource> {
    let names = RouteMatch::ServerNames(vec![server_name.to_owned()]);
    let routes = [RouteSpec::new(names, cluster)];
    crate::encode::parts(group, &routes, &GatewayParams::default()).resources
}

/// A cluster, its assignment and the route to it.
fn shoot(name: &str) -> Vec<Resource> {
    [
        cluster(name),
        part(name, &format!("{name}.example.com"), name),
    ]
    .concat()
}

/// A response with those of the resources that are of a type.
async fn delta(kind: ResourceType, resources: &[Resource], removed: &[&str]) -> Update {
    let of_kind = resources.iter().filter(|one| one.kind == kind);
    let resources = of_kind.map(|one| NamedResource {
        version: "1".into(),
        resource: Some(any(one)),
        name: one.name.to_string(),
    });
    let response = DeltaDiscoveryResponse {
        type_url: kind.type_url().into(),
        resources: resources.collect(),
        removed_resources: removed.iter().map(ToString::to_string).collect(),
        ..DeltaDiscoveryResponse::default()
    };
    decode_response(Response::Delta(response)).await.unwrap()
}

async fn full(kind: ResourceType, resources: &[Resource]) -> Update {
    let of_kind = resources.iter().filter(|one| one.kind == kind);
    let response = DiscoveryResponse {
        type_url: kind.type_url().into(),
        resources: of_kind.map(any).collect(),
        version_info: "v".into(),
        ..DiscoveryResponse::default()
    };
    decode_response(Response::Full(response)).await.unwrap()
}

fn any(resource: &Resource) -> Any {
    Any {
        type_url: resource.kind.type_url().into(),
        value: resource.body.clone(),
    }
}

/// A client with one cluster and one route.
async fn settled() -> Client {
    let mut client = Client::new();
    let resources = shoot("a");
    let updates = [
        delta(Cluster, &resources, &[]).await,
        delta(ClusterLoadAssignment, &resources, &[]).await,
        delta(Listener, &resources, &[]).await,
    ];
    assert_eq!(client.take(&updates), [Ok(()), Ok(()), Ok(())]);
    assert_eq!(client.sink.tables.len(), 1, "together they are one table");
    client
}

#[tokio::test]
async fn nothing_applies_before_state_is_complete() {
    let mut client = Client::new();
    let resources = shoot("a");
    let update = delta(Listener, &resources, &[]).await;
    assert_eq!(client.take(&[update]), [Ok(())]);
    assert!(
        !client.held.waits_for_missing(),
        "clusters were not heard of"
    );
    let update = delta(Cluster, &resources, &[]).await;
    assert_eq!(client.take(&[update]), [Ok(())]);
    assert!(
        client.sink.tables.is_empty()
            && client.held.waits_for_missing()
            && !client.held.is_current()
    );
    assert_eq!(
        client.held.wanted(ClusterLoadAssignment),
        ["a".into()].into()
    );
    assert!(
        !client.held.stored().lock().good,
        "and nothing is kept on disk"
    );

    let update = delta(ClusterLoadAssignment, &resources, &[]).await;
    assert_eq!(client.take(&[update]), [Ok(())]);
    assert_eq!(client.sink.routes(), ["a.example.com 1"]);
    assert!(client.held.is_current() && client.held.stored().lock().good);
}

/// As [`delta`], and the server says that more follows.
async fn part_of(kind: ResourceType, resources: &[Resource]) -> Update {
    let mut update = delta(kind, resources, &[]).await;
    update.more_follows = true;
    update
}

#[tokio::test]
async fn partial_update_is_acked_but_not_applied() {
    let mut client = Client::new();
    let resources = shoot("a");
    let first = [
        part_of(Cluster, &resources).await,
        part_of(ClusterLoadAssignment, &resources).await,
        part_of(Listener, &resources).await,
    ];
    assert_eq!(client.take(&first), [Ok(()), Ok(()), Ok(())]);
    assert!(
        client.sink.tables.is_empty()
            && !client.held.is_current()
            && !client.held.waits_for_missing()
    );
    assert!(!client.held.stored().lock().good);
    let last = delta(Listener, &part("b", "b.example.com", "a"), &[]).await;
    assert_eq!(client.take(&[last]), [Ok(())]);
    assert_eq!(
        (client.sink.tables.len(), client.sink.routes().len()),
        (1, 2)
    );
    assert!(client.held.is_current() && client.held.stored().lock().good);

    // The rest is refused, and what was taken is in effect all the same.
    let more = part_of(Listener, &part("c", "c.example.com", "a")).await;
    client.take(&[more]);
    let mut bad = part("d", "d.example.com", "a").remove(0);
    bad.body = Bytes::from_static(b"\x0a\x05tls|d\xff");
    let bad = delta(Listener, &[bad], &[]).await;
    client.take(&[bad])[0].as_ref().unwrap_err();
    assert_eq!(client.sink.routes().len(), 3);

    // The rest does not come.
    let more = part_of(Listener, &part("d", "d.example.com", "a")).await;
    client.take(&[more]);
    assert_eq!(client.sink.routes().len(), 3);
    client.held.apply_without_more(&mut client.sink).unwrap();
    assert_eq!(client.sink.routes().len(), 4);
    assert!(client.held.is_current());
}

#[tokio::test]
async fn response_with_duplicate_resource_is_refused() {
    let mut twice = cluster("a");
    twice.extend(cluster("a"));
    let update = delta(Cluster, &twice, &[]).await;
    assert!(update.fault.unwrap().contains("\"a\""));
    let update = delta(Cluster, &cluster("a"), &["a"]).await;
    update.fault.unwrap();
}

#[tokio::test]
async fn missing_assignments_are_filled_in_one_pass() {
    let mut client = Client::new();
    let clusters: Vec<_> = (0..20_000)
        .flat_map(|number| cluster(&number.to_string()))
        .collect();
    let updates = [
        delta(Cluster, &clusters, &[]).await,
        delta(Listener, &[], &[]).await,
    ];
    client.take(&updates);
    assert_eq!(client.held.missing().len(), 20_000);
    client.held.apply_without_missing(&mut client.sink).unwrap();
    assert!(client.held.is_current());
}

#[tokio::test]
async fn contradictions_are_refused_while_incomplete() {
    let mut client = settled().await;
    client.take(&[delta(Cluster, &cluster("b"), &[]).await]);
    assert!(client.held.waits_for_missing());
    let bad = delta(Listener, &part("b", "a.example.com", "b"), &[]).await;
    client.take(&[bad])[0].as_ref().unwrap_err();
}

#[tokio::test]
async fn an_empty_gateway_is_complete() {
    let mut client = Client::new();
    let updates = [
        delta(Cluster, &[], &[]).await,
        delta(Listener, &[], &[]).await,
    ];
    client.take(&updates);
    assert_eq!(client.sink.tables.len(), 1);
    client.take(&updates);
    assert_eq!(client.sink.tables.len(), 1, "nothing new");
}

#[tokio::test]
async fn first_of_contradicting_updates_is_applied() {
    let mut client = settled().await;
    let good = delta(Listener, &part("b", "b.example.com", "a"), &[]).await;
    let mut other = cluster("c");
    other.extend(part("c", "a.example.com", "c"));
    let clusters = [
        delta(Cluster, &other, &[]).await,
        delta(ClusterLoadAssignment, &other, &[]).await,
    ];
    client.take(&clusters);
    let bad = delta(Listener, &other, &[]).await;
    let verdicts = client.take(&[bad, good]);
    let why = verdicts[0].as_ref().unwrap_err();
    assert!(why.contains("a.example.com"), "{why}");
    assert_eq!(verdicts[1], Ok(()));
    let routes = ["a.example.com 1", "b.example.com 1"];
    assert_eq!(client.sink.routes(), routes);
    let raw = client.held.stored().lock();
    assert!(!raw.types[Listener as usize].contains_key("tls|c"));
}

#[tokio::test]
async fn contradictions_are_refused_before_complete() {
    let mut client = Client::new();
    let mut resources = shoot("a");
    resources.extend(part("b", "a.example.com", "b"));
    let updates = [
        delta(Cluster, &resources, &[]).await,
        delta(Listener, &resources, &[]).await,
    ];
    let verdicts = client.take(&updates);
    assert_eq!(verdicts[0], Ok(()));
    verdicts[1].as_ref().unwrap_err();
}

#[tokio::test]
async fn refused_table_leaves_no_trace() {
    let mut client = settled().await;
    client.sink.refuses = true;
    let update = delta(Listener, &part("b", "b.example.com", "a"), &["tls|a"]).await;
    let refused = [Err("not now".to_owned())];
    assert_eq!(client.take(std::slice::from_ref(&update)), refused);
    client.sink.refuses = false;
    client.take(&[delta(Cluster, &cluster("b"), &[]).await]);
    client.take(&[delta(ClusterLoadAssignment, &cluster("b"), &[]).await]);
    assert_eq!(client.sink.routes(), ["a.example.com 1"]);
    assert_eq!(client.take(&[update]), [Ok(())]);
    assert_eq!(client.sink.routes(), ["b.example.com 1"]);
}

#[tokio::test]
async fn an_assignment_that_does_not_exist_is_empty() {
    let mut client = settled().await;
    let update = delta(ClusterLoadAssignment, &[], &["a"]).await;
    assert_eq!(client.take(&[update]), [Ok(())]);
    assert_eq!(client.sink.routes(), ["a.example.com 0"]);
    let update = delta(ClusterLoadAssignment, &cluster("a"), &[]).await;
    client.take(&[update]);
    assert_eq!(client.sink.routes(), ["a.example.com 1"]);
}

#[tokio::test]
async fn missing_resource_times_out_as_empty() {
    let mut client = settled().await;
    let tables = client.sink.tables.len();
    let resources = shoot("b");
    let updates = [
        delta(Cluster, &resources, &[]).await,
        delta(Listener, &resources, &[]).await,
    ];
    client.take(&updates);
    assert_eq!(client.sink.tables.len(), tables);
    assert!(client.held.waits_for_missing());
    client.held.apply_without_missing(&mut client.sink).unwrap();
    assert!(!client.held.waits_for_missing() && client.held.is_current());
    let routes = ["a.example.com 1", "b.example.com 0"];
    assert_eq!(client.sink.routes(), routes);
}

#[tokio::test]
async fn an_assignment_goes_with_its_cluster() {
    let mut client = settled().await;
    let updates = [
        delta(Listener, &[], &["tls|a"]).await,
        delta(Cluster, &[], &["a"]).await,
    ];
    assert_eq!(client.take(&updates), [Ok(()), Ok(())]);
    assert!(client.held.wanted(ClusterLoadAssignment).is_empty());
    let raw = client.held.stored().lock();
    assert!(raw.types.iter().all(BTreeMap::is_empty));
}

#[tokio::test]
async fn list_replaces_state_and_part_adds_to_it() {
    let mut client = Client::new();
    let resources = [shoot("a"), shoot("b")].concat();
    let updates = [
        full(Cluster, &resources).await,
        full(ClusterLoadAssignment, &resources).await,
        full(Listener, &resources).await,
    ];
    client.take(&updates);
    let both = ["a.example.com 1", "b.example.com 1"];
    assert_eq!(client.sink.routes(), both);
    client.take(&[full(ClusterLoadAssignment, &cluster("a")).await]);
    assert_eq!(client.sink.routes(), both);
    let one = part("b", "b.example.com", "b");
    client.take(&[full(Listener, &one).await]);
    assert_eq!(client.sink.routes(), both[1..]);
    client.take(&[full(Listener, &[]).await]);
    assert_eq!(client.sink.routes(), [""; 0]);
}

#[tokio::test]
async fn fault_names_resource_and_spares_others() {
    let mut client = settled().await;
    let mut bad = part("b", "b.example.com", "a").remove(0);
    bad.body = Bytes::from_static(b"\x0a\x05tls|b\xff");
    let updates = [
        delta(Listener, &[bad], &[]).await,
        delta(Listener, &part("c", "c.example.com", "a"), &[]).await,
    ];
    let verdicts = client.take(&updates);
    assert!(verdicts[0].as_ref().unwrap_err().contains("tls|b"));
    assert_eq!(verdicts[1], Ok(()));
    assert_eq!(client.sink.routes().len(), 2);
}

#[tokio::test]
async fn resource_type_must_match_its_response() {
    let mut wrong = cluster("a");
    wrong[0].kind = Listener;
    let response = DeltaDiscoveryResponse {
        type_url: Cluster.type_url().into(),
        resources: vec![NamedResource {
            version: "1".into(),
            resource: Some(any(&wrong[0])),
            name: "a".into(),
        }],
        ..DeltaDiscoveryResponse::default()
    };
    let update = decode_response(Response::Delta(response)).await.unwrap();
    assert!(update.fault.unwrap().contains("Listener"));
    let unknown = DeltaDiscoveryResponse {
        type_url: "type.googleapis.com/something.Else".into(),
        ..DeltaDiscoveryResponse::default()
    };
    assert!(decode_response(Response::Delta(unknown)).await.is_none());
}

#[tokio::test]
async fn cached_state_applies_after_first_answer() {
    let entries = settled().await.held.stored().lock().entries();
    let mut client = Client::new();
    client.held.prime(entries).unwrap();
    assert!(!client.held.is_current());
    assert_eq!(
        client.held.wanted(ClusterLoadAssignment),
        ["a".into()].into()
    );
    let updates = [
        delta(Cluster, &[], &[]).await,
        delta(Listener, &[], &[]).await,
    ];
    client.take(&updates);
    assert_eq!(client.sink.routes(), ["a.example.com 1"]);
    assert!(client.held.is_current());
}
