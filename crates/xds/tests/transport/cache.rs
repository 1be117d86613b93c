//! What is kept on disk.

use std::path::Path;
use std::time::{Duration, SystemTime};

use testkit::tempdir::TempDir;
use xds::{CacheError, Cached, ServerAddress, State};

use crate::support::{
    Client, Serving, client_params, endpoints, own, server_params, shoot, shoots, until,
};

fn load(path: &Path, server: ServerAddress) -> Result<Option<Cached>, CacheError> {
    xds::load_cache(path, (&server, "default"), &own(), State::default())
}

#[tokio::test]
async fn restarted_client_needs_only_differences() {
    let dir = TempDir::new("xds-client").unwrap();
    let path = dir.join("cache");
    assert!(
        load(&path, "http://127.0.0.1:1".parse().unwrap())
            .unwrap()
            .is_none()
    );
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(500));
    serving.gateway.complete();
    let mut params = client_params(serving.addr, None);
    params.cache = Some(path.clone());
    let client = Client::start(params.clone());
    client.until_routes(500).await;
    until("the cache to be written", || path.exists()).await;
    serving.set(shoot(500));
    client.until_routes(501).await;
    let table = client.seen.lock().unwrap().table.clone().unwrap();
    assert!(client.count(r#"rhizome_xds_cache_writes_total{result="ok"}"#) >= 1);
    client.stop().await;
    let kept = load(&path, params.server.clone()).unwrap().unwrap();
    assert!(kept.age < Duration::from_secs(3600));
    assert_eq!(kept.table, table, "what came last is written at the end");

    let before = serving.pushed();
    serving.set(endpoints(3, 2));
    let client = Client::start(params);
    client.until_routes(501).await;
    client.until_confirmed().await;
    let again = serving.pushed() - before;
    assert!(again < 1024, "{again} bytes for one difference");
    let name = crate::support::cluster_name(3);
    assert_eq!(client.endpoints(&name).unwrap().len(), 2);
}

#[tokio::test]
async fn cache_is_as_old_as_its_last_confirmation() {
    let dir = TempDir::new("xds-client").unwrap();
    let path = dir.join("cache");
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(1));
    serving.gateway.complete();
    let mut params = client_params(serving.addr, None);
    params.cache = Some(path.clone());
    let server = params.server.clone();
    let age = || load(&path, server.clone()).unwrap().unwrap().age;
    let client = Client::start(params);
    client.until_routes(1).await;
    until("the cache to be written", || path.exists()).await;
    let hour = Duration::from_secs(3600);
    // Again should it be written meanwhile.
    until("the cache to be old", || {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - hour).unwrap();
        age() >= hour
    })
    .await;
    until("the routes to be confirmed", || age() < hour).await;
    client.stop().await;
}

#[tokio::test]
async fn unusable_cache_is_skipped() {
    let dir = TempDir::new("xds-client").unwrap();
    let path = dir.write("cache", "RHIZXDS\x01 of a kind").unwrap();
    load(&path, "http://127.0.0.1:1".parse().unwrap()).unwrap_err();
    let serving = Serving::start(server_params(None)).await;
    serving.set(shoots(2));
    serving.gateway.complete();
    let mut params = client_params(serving.addr, None);
    params.cache = Some(path.clone());
    let server = params.server.clone();
    let client = Client::start(params);
    client.until_routes(2).await;
    until("a good one to be written", || {
        load(&path, server.clone()).is_ok()
    })
    .await;

    let mut params = client_params(serving.addr, None);
    params.cache = Some(dir.join("no/such/directory/cache"));
    let client = Client::start(params);
    client.until_routes(2).await;
    until("the failure to be counted", || {
        client.count(r#"rhizome_xds_cache_writes_total{result="failed"}"#) >= 1
    })
    .await;
}
