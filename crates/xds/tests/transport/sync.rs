//! What travels: everything once, then differences.

use std::sync::Arc;

use xds::{Audience, ResourceType};

use crate::support::{
    Client, Pki, Serving, client_params, cluster_name, endpoints, server_params, shoot, shoots,
};

const SHOOTS: usize = 10_000;

#[tokio::test]
async fn ten_thousand_shoots_update_incrementally() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    serving.set(shoots(SHOOTS));
    let client = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    serving.gateway.complete();
    client.until_routes(SHOOTS).await;
    client.until_confirmed().await;
    assert_eq!(client.tables(), 1, "a part of the routes is no table");

    let before = serving.pushed();
    assert!(before > 1024 * 1024, "{before} bytes");
    serving.set(endpoints(4711, 2));
    let name = cluster_name(4711);
    client
        .until("two endpoints", |seen| {
            let table = seen.table.as_ref().unwrap();
            let clusters = &table.spec.clusters;
            clusters
                .iter()
                .any(|one| one.name == name && one.endpoints.len() == 2)
        })
        .await;
    let change = serving.pushed() - before;
    assert!(change < 600, "{change} bytes for one assignment");

    let before = serving.pushed();
    serving.set(shoot(SHOOTS));
    client.until_routes(SHOOTS + 1).await;
    let change = serving.pushed() - before;
    assert!(change < 3000, "{change} bytes for one shoot");

    // The server is exchanged for another one that knows the same, as when a leader is killed.
    let addr = serving.addr;
    serving.stop().await;
    let serving = Serving::start_at(server_params(Some(pki.server_tls())), addr).await;
    serving.set(shoots(SHOOTS + 1));
    serving.set(endpoints(4711, 2));
    let tables = client.tables();
    serving.gateway.complete();
    client.until_confirmed().await;
    assert_eq!(client.tables(), tables, "nothing new, so no new table");
    let again = serving.pushed();
    assert!(again < 1024, "{again} bytes for nothing new");

    serving.set(endpoints(4711, 3));
    client
        .until("three endpoints", |seen| {
            let table = seen.table.as_ref().unwrap();
            let clusters = &table.spec.clusters;
            clusters
                .iter()
                .any(|one| one.name == name && one.endpoints.len() == 3)
        })
        .await;
}

/// The same with a server that does not know the incremental variant.
#[tokio::test]
async fn a_server_without_increments_is_understood_too() {
    let mut params = server_params(None);
    params.delta = false;
    let serving = Serving::start(params).await;
    serving.set(shoots(50));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(50).await;
    client.until_confirmed().await;
    let status = &serving.server.clients()[0];
    assert!(!status.delta);
    assert_eq!(status.types["listener"].nack, None);

    serving.set(shoot(50));
    client.until_routes(51).await;
    remove_shoot(&serving, 7);
    client.until_routes(50).await;
    client
        .until("the cluster to go", |seen| {
            let clusters = &seen.table.as_ref().unwrap().spec.clusters;
            clusters.iter().all(|one| one.name != cluster_name(7))
        })
        .await;
    serving.set(endpoints(8, 2));
    client
        .until("two endpoints", |seen| {
            let clusters = &seen.table.as_ref().unwrap().spec.clusters;
            let found = clusters.iter().find(|one| one.name == cluster_name(8));
            found.is_some_and(|one| one.endpoints.len() == 2)
        })
        .await;
}

#[tokio::test]
async fn removed_resources_are_dropped() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(3));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, None));
    client.until_routes(3).await;
    remove_shoot(&serving, 1);
    client.until_routes(2).await;
    client
        .until("the cluster to go", |seen| {
            seen.table.as_ref().unwrap().spec.clusters.len() == 2
        })
        .await;
    assert_eq!(client.endpoints(&cluster_name(1)), None);
    assert_eq!(
        client.endpoints(&cluster_name(2)),
        Some(vec!["10.1.2.1:443".to_owned()])
    );
}

/// Each table that is put in effect is whole: no route without its cluster, no cluster without its
/// endpoints, however changes come.
#[tokio::test]
async fn no_table_ever_lacks_what_it_refers_to() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(20));
    serving.gateway.complete();
    let client = Client::start_picky(client_params(serving.addr, None), |table| {
        for route in &table.spec.routes {
            let cluster = table
                .spec
                .clusters
                .iter()
                .find(|one| one.name == route.cluster);
            let endpoints = cluster.map_or(0, |cluster| cluster.endpoints.len());
            assert!(endpoints > 0, "{} has no endpoints", route.cluster);
        }
        Ok(())
    });
    client.until_routes(20).await;
    for round in 0..30 {
        serving.set(shoot(20 + round));
        remove_shoot(&serving, round);
        if round % 3 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let wanted: Vec<_> = (30..50).map(cluster_name).collect();
    client
        .until("the last state", |seen| {
            let table = seen.table.as_ref().unwrap();
            let mut names: Vec<_> = table.spec.clusters.iter().map(|one| &one.name).collect();
            names.sort();
            table.spec.routes.len() == 20 && names == wanted.iter().collect::<Vec<_>>()
        })
        .await;
    let nacks = r#"rhizome_xds_nacks_total{gateway="default",type="listener"}"#;
    assert_eq!(serving.count(nacks), 0);
}

fn remove_shoot(serving: &Serving, number: usize) {
    let removed = shoot(number).into_iter();
    let removed = removed.map(|one| (one.kind, one.audience, Arc::clone(&one.name)));
    serving.gateway.update(
        vec![],
        removed.collect::<Vec<(ResourceType, Audience, Arc<str>)>>(),
    );
}
