//! A server that was away.

use std::time::Duration;

use http::StatusCode;
use testkit::{certs, ports};
use tokio::time::{sleep, timeout};

use super::{NAME, World};
use crate::support::ApiServer;

/// Long before it would be tried again by itself, which is after 30 s.
#[tokio::test]
async fn server_that_came_back_is_asked_soon() {
    let at = format!("127.0.0.1:{}", ports::free(1).unwrap()[0]);
    let world = World::with(|dir| {
        let routes = std::fs::read_to_string(dir.join("routes.yaml")).unwrap();
        let third = format!(
            ", {{ address: \"{at}\" }}], outlierDetection: {{ consecutiveConnectFailures: 1 }}, balance"
        );
        let changed = routes.replace("], balance", &third);
        assert_ne!(changed, routes);
        dir.write("routes.yaml", changed).unwrap();
    });
    let mut client = world.client(None, "h2").await;
    // A request that is sent there is refused, and served by another.
    for _ in 0..6 {
        assert_eq!(client.get(&[]).await.0, StatusCode::OK);
    }
    let own = world.cluster.server(&["kubernetes.test", NAME]).unwrap();
    let tls = certs::optional_server_config(&own, world.secrets.front.pem(), &["h2"]).unwrap();
    ApiServer::start_at(at.parse().unwrap(), "third", tls);
    let asked = async {
        loop {
            let (status, asked) = client.get(&[]).await;
            assert_eq!(status, StatusCode::OK);
            if asked.0["server"] == "third" {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    let soon = timeout(Duration::from_secs(10), asked).await;
    soon.expect("a request of the third server");
}
