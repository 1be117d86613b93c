//! Clients that need listeners whole.

use xds::ResourceType;

use crate::raw::{DeltaRequest, Raw, features};
use crate::support::{
    Client, Serving, client_params, gateway_params, server_params, shoot_route, shoots, until,
};

/// As Envoy would: it says nothing of parts, and gets whole listeners once they are there.
#[tokio::test]
async fn whole_listeners_are_made_on_demand() {
    let serving = Serving::start(server_params(None)).await;
    let mut wanted = serving.gateway.whole_wanted();
    serving.set(shoots(2));
    serving.gateway.complete();
    let ours = Client::start(client_params(serving.addr, None));
    ours.until_routes(2).await;
    assert_eq!(*wanted.borrow_and_update(), 0);

    let mut raw = Raw::connect(serving.addr).await;
    let mut stream = raw.delta().await;
    let mut request = DeltaRequest::of(ResourceType::Listener);
    request.node = Some(features(&[
        "envoy.config.require-any-fields-contain-struct",
    ]));
    stream.send(&request);
    wanted.wait_for(|wanted| *wanted > 0).await.unwrap();
    until("the client to be listed", || {
        serving.server.clients().len() == 2
    })
    .await;
    let json = serde_json::to_value(serving.server.clients()).unwrap();
    assert_eq!(json[1]["audience"], "whole");

    let routes = [shoot_route(0), shoot_route(1)];
    let groups = std::iter::once(&routes[..]);
    serving.set(xds::whole(&gateway_params(), groups).resources);
    serving.gateway.complete_whole(true);
    let response = stream.response().await;
    let names: Vec<_> = response
        .resources
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, ["node", "tls", "vpn"]);
    assert_eq!(response.removed, Vec::<String>::new());

    drop((stream, raw));
    wanted.wait_for(|wanted| *wanted == 0).await.unwrap();
}
