//! Refusals, and peers that do not behave.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use xds::{Audience, Resource, ResourceType};

use crate::raw::{DeltaRequest, Node, Raw, features};
use crate::support::{
    Client, PATIENCE, Pki, Serving, client_params, endpoints, server_params, shoot, shoots,
};

/// One resource that is not understood, among many: the others get through, and it is known which
/// one it was and why.
#[tokio::test]
async fn a_bad_resource_keeps_no_other_from_the_client() {
    let serving = Serving::start(server_params(None)).await;
    let mut resources = shoots(40);
    let bad = Resource {
        kind: ResourceType::Listener,
        name: "tls|bad".into(),
        body: Bytes::from_static(b"\x0a\x07tls|bad\xfa\x7f\x01x"),
        audience: Audience::Parts,
    };
    resources.push(bad);
    serving.set(resources);
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(40).await;
    let nacks = r#"rhizome_xds_nacks_total{gateway="default",type="listener"}"#;
    serving.until(nacks, 1).await;
    crate::support::until("the reason to be seen", || {
        let clients = serving.server.clients();
        let nack = clients[0].types["listener"].nack.clone();
        nack.is_some_and(|text| text.contains("tls|bad"))
    })
    .await;
    assert!(client.count(r#"rhizome_xds_responses_total{type="listener",result="nack"}"#) >= 1);

    serving.set(shoot(40));
    client.until_routes(41).await;
    let refusing = r#"rhizome_xds_clients_refusing{gateway="default",type="listener"}"#;
    assert_eq!(serving.count(refusing), 1, "others were accepted since");
    let sent = serving.count(nacks);
    serving.gateway.update(
        vec![],
        vec![(ResourceType::Listener, Audience::Parts, "tls|bad".into())],
    );
    client.until_confirmed().await;
    assert_eq!(serving.count(nacks), sent, "it was not sent again");
    crate::support::until("no refusal of what is gone", || {
        serving.count(refusing) == 0
    })
    .await;
}

/// What the sink refuses is refused to the server, and what was in effect stays.
#[tokio::test]
async fn refused_table_is_nacked() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(2));
    serving.gateway.complete();
    let client = Client::start_picky(client_params(serving.addr, None), |table| {
        if table.spec.routes.len() > 2 {
            return Err("more than two routes".to_owned());
        }
        Ok(())
    });
    client.until_routes(2).await;
    serving.set(shoot(2));
    let nacks = r#"rhizome_xds_nacks_total{gateway="default",type="listener"}"#;
    serving.until(nacks, 1).await;
    let status = &serving.server.clients()[0];
    let nack = status.types["listener"].nack.as_deref();
    assert_eq!(nack, Some("more than two routes"));
    let refusing = r#"rhizome_xds_clients_refusing{gateway="default",type="listener"}"#;
    assert_eq!(serving.count(refusing), 1);
    // And endpoints still get through.
    serving.set(endpoints(0, 3));
    let name = crate::support::cluster_name(0);
    client
        .until("three endpoints", |seen| {
            let table = &seen.table.as_ref().unwrap().spec;
            assert_eq!(table.routes.len(), 2);
            let found = table.clusters.iter().find(|one| one.name == name);
            found.is_some_and(|one| one.endpoints.len() == 3)
        })
        .await;
}

#[tokio::test]
async fn garbage_is_closed_and_affects_no_client() {
    let pki = Pki::new();
    for tls in [true, false] {
        let mut params = server_params(tls.then(|| pki.server_tls()));
        params.limits.handshake = Duration::from_millis(200);
        let serving = Serving::start(params).await;
        serving.set(shoots(1));
        serving.gateway.complete();
        for garbage in [
            &b""[..],
            b"GET / HTTP/1.1\r\n\r\n",
            &[0x16, 3, 1, 255, 255],
            &[0; 4096],
        ] {
            let mut stream = TcpStream::connect(serving.addr).await.unwrap();
            stream.write_all(garbage).await.unwrap();
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            assert!(closed.is_ok(), "{garbage:?} is not closed");
        }
        // HTTP/2 begins, and nothing is asked.
        if !tls {
            let raw = Raw::connect(serving.addr).await;
            tokio::time::timeout(PATIENCE, raw.closed()).await.unwrap();
        }
        let client_tls = tls.then(|| pki.client_tls());
        let client = Client::start(client_params(serving.addr, client_tls));
        client.until_routes(1).await;
    }
}

#[tokio::test]
async fn a_stream_of_nonsense_ends_with_a_reason() {
    let mut params = server_params(None);
    params.limits.handshake = Duration::from_millis(300);
    params.limits.request_bytes = 10_000;
    let serving = Serving::start(params).await;
    serving.gateway.complete();
    let node = |cluster: &str| Node {
        id: "raw".into(),
        cluster: cluster.into(),
        client_features: vec![],
    };
    let refused = async |first: Option<&[u8]>| {
        let mut raw = Raw::connect(serving.addr).await;
        let mut stream = raw.delta().await;
        if let Some(bytes) = first {
            stream.send_bytes(bytes);
        }
        tokio::time::timeout(PATIENCE, stream.status())
            .await
            .unwrap()
    };
    assert_eq!(refused(None).await, "4", "DEADLINE_EXCEEDED: no request");
    let no_node = DeltaRequest::of(ResourceType::Cluster).frame();
    assert_eq!(
        refused(Some(&no_node)).await,
        "3",
        "INVALID_ARGUMENT: no node"
    );
    assert_eq!(
        refused(Some(b"\0\0\0\0\x02\xff\xff")).await,
        "3",
        "no message"
    );
    let mut huge = DeltaRequest::of(ResourceType::Cluster);
    huge.node = Some(node("default"));
    huge.subscribe = vec!["x".repeat(20_000)];
    assert_eq!(refused(Some(&huge.frame())).await, "3", "too long");
    let mut unknown = DeltaRequest::of(ResourceType::Cluster);
    unknown.node = Some(node("nowhere"));
    assert_eq!(refused(Some(&unknown.frame())).await, "5", "NOT_FOUND");
    let mut raw = Raw::connect(serving.addr).await;
    let mut stream = raw.open("/some.Service/Method").await;
    assert_eq!(stream.status().await, "12", "UNIMPLEMENTED");
}

/// Who reads nothing costs a few buffers and no time of others.
#[tokio::test]
async fn a_client_that_does_not_read_is_not_waited_for() {
    const SHOOTS: usize = 1000;
    let mut params = server_params(None);
    params.limits.response_bytes = 64 * 1024;
    let serving = Serving::start(params).await;
    serving.set(shoots(SHOOTS));
    serving.gateway.complete();
    let mut raw = Raw::connect(serving.addr).await;
    let stream = raw.delta().await;
    let mut request = DeltaRequest::of(ResourceType::Cluster);
    request.node = Some(features(&["rhizome.listener-parts"]));
    stream.send(&request);
    let mut request = DeltaRequest::of(ResourceType::ClusterLoadAssignment);
    request.subscribe = vec!["*".into()];
    stream.send(&request);
    let pushes = r#"rhizome_xds_pushes_total{gateway="default",type="assignment"}"#;
    serving.until(pushes, 1).await;

    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(SHOOTS).await;
    let first = serving.count(pushes);
    for round in 1..=20 {
        let changed = (0..SHOOTS).flat_map(|number| endpoints(number, 1 + round % 2));
        serving.set(changed.collect());
        serving.set(shoot(SHOOTS + usize::from(round)));
        client.until_routes(SHOOTS + usize::from(round)).await;
    }
    let all = serving.server.clients();
    let slow = &all.iter().find(|one| one.node == "raw").unwrap().types;
    let slow = &slow["assignment"];
    assert_eq!(slow.acked, None);
    let number = slow.nonce.split('+').next().unwrap();
    let one_batch = number.parse::<u64>().unwrap();
    let all = serving.count(pushes);
    assert!(
        all >= first + 20 && one_batch <= 2 * first,
        "{one_batch}, {first}, {all}"
    );
}

/// Clusters and no assignment for one of them: what is reported the others is in effect all the
/// same, at once where the server says that there is none, after a while where it cannot.
#[tokio::test]
async fn missing_assignment_is_treated_as_empty() {
    for delta in [true, false] {
        let mut params = server_params(None);
        params.delta = delta;
        let serving = Serving::start(params).await;
        let mut resources = shoots(3);
        let lost = crate::support::cluster_name(1);
        resources
            .retain(|one| one.kind != ResourceType::ClusterLoadAssignment || *one.name != *lost);
        serving.set(resources);
        serving.gateway.complete();
        let mut params = client_params(serving.addr, None);
        params.limits.missing = Duration::from_millis(if delta { 3_600_000 } else { 300 });
        let client = Client::start(params);
        client.until_routes(3).await;
        assert_eq!(client.endpoints(&lost), Some(vec![]));
        serving.set(endpoints(1, 2));
        client
            .until("two endpoints", |seen| {
                let clusters = &seen.table.as_ref().unwrap().spec.clusters;
                let found = clusters.iter().find(|one| one.name == lost);
                found.is_some_and(|one| one.endpoints.len() == 2)
            })
            .await;
    }
}

#[tokio::test]
async fn a_response_that_is_too_long_ends_the_stream() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(100));
    serving.gateway.complete();
    let mut params = client_params(serving.addr, None);
    params.limits.message_bytes = 1000;
    let client = Client::start(params);
    let refused = r#"rhizome_xds_connects_total{result="refused"}"#;
    crate::support::until("two attempts", || client.count(refused) >= 2).await;
    assert_eq!(client.tables(), 0);
}

#[tokio::test]
async fn client_retries_until_server_returns() {
    let serving = Serving::start(server_params(None)).await;
    let addr = serving.addr;
    serving.stop().await;
    let client = Client::start(client_params(addr, None));
    let failed = r#"rhizome_xds_connects_total{result="connect"}"#;
    crate::support::until("three attempts", || client.count(failed) >= 3).await;
    let serving = Serving::start_at(server_params(None), addr).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    client.until_routes(1).await;
    client.until_confirmed().await;
    assert_eq!(client.count("rhizome_xds_connected"), 1);
}
