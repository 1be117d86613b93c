//! What our gateways are told of routes where TLS ends, judged by a real Envoy: it puts all of it to use.
//!
//! Leaves out answers of servers: Envoy would have to be told what they speak, which our gateway asks them. The
//! listener that CONNECT leads to is taken, and not used.

use std::sync::Arc;
use std::time::Duration;

use route::{ClusterSpec, Handler, RouteMatch, RouteSpec};
use serde_json::json;
use testkit::certs::Authority;
use testkit::http::{self, Target};
use testkit::netns::Place;
use testkit::peers::envoy::Envoy;
use testkit::tempdir::TempDir;
use testkit::wait;
use tls::{ClientAuth, ServerTls, ServerTlsParams};
use xds::{Audience, GatewayParams, Resource, ResourceType, Terminate};

use crate::control::{self, Control, loopback};
use crate::program::LIMIT;
use crate::programs::announce;
use crate::seed::listeners;

const CLIENT: &str = "spiffe://example.com/gateway";
const NAME: &str = "api.a.example.com";
const SOCKET: &str = "shoot--test--a--kube-apiserver-socket";
const CLUSTER: &str = "outbound|443||kube-apiserver.shoot--test--a.svc.cluster.local";

fn routes() -> [RouteSpec; 2] {
    let terminate = Arc::new(Terminate {
        certificate: "serving".into(),
        client_authorities: Some("clients".into()),
        min_version: tls::MinVersion::Tls13,
        authorities: "servers".into(),
        server_name: "kubernetes".try_into().unwrap(),
        identity: Some("identity".into()),
        hsts: Duration::from_secs(3600),
        max_streams: 100,
        stream_timeout: Duration::from_secs(86_400),
    });
    [
        RouteMatch::ServerNames(vec![NAME.to_owned()]),
        RouteMatch::ConnectDestinations(vec![SOCKET.to_owned()]),
    ]
    .map(|matches| RouteSpec {
        handler: Some(Handler::new(Arc::clone(&terminate))),
        ..RouteSpec::new(matches, CLUSTER)
    })
}

/// Puts the listener for server names together as our gateway does: of two messages one behind the other protobuf
/// makes one. The others' parts say nothing of TLS, and too little for Envoy.
fn resources(params: &GatewayParams) -> Vec<Resource> {
    let parts = xds::parts("a", &routes(), params);
    assert_eq!(parts.withheld, Vec::<String>::new());
    let mut resources = parts.resources;
    resources.retain(|one| !["node|a", "vpn|a"].contains(&&*one.name));
    let mut base = xds::base(params).into_iter();
    let base = base.find(|one| &*one.name == "tls").unwrap();
    let mut listeners = resources.iter_mut();
    let part = listeners.find(|one| &*one.name == "tls|a").unwrap();
    part.body = [&part.body[..], &base.body].concat().into();
    part.name = base.name;
    resources.extend(xds::cluster(&ClusterSpec::new(CLUSTER)));
    resources
}

#[test]
fn envoy_takes_what_gateways_are_told_of_terminated_tls() {
    announce("envoy");
    let dir = TempDir::new("judged").unwrap();
    let authority = Authority::new("serving").unwrap();
    let own = authority.server(&[NAME]).unwrap();
    let identity = authority.client("gateway", &[], &[]).unwrap();
    let gateway = control::gateway();
    let pair = |name: &str, own: &testkit::certs::Identity| {
        xds::key_pair(name, own.cert_pem.as_bytes(), own.key_pem.as_bytes())
    };
    let authorities = |name: &str| xds::authorities(name, authority.pem().as_bytes());
    let mut all = resources(&gateway);
    all.extend([pair("serving", &own), pair("identity", &identity)]);
    all.extend(["clients", "servers"].map(authorities));
    for one in &mut all {
        one.audience = Audience::All;
    }
    let told = all.iter().filter(|one| one.kind == ResourceType::Cluster);
    let clusters: Vec<_> = told.map(|one| one.name.to_string()).collect();
    let (server, client) = (
        authority.server(&["127.0.0.1"]).unwrap(),
        authority.client("envoy", &[], &[CLIENT]).unwrap(),
    );
    let server = server.write(dir.path(), "server").unwrap();
    let client = client.write(dir.path(), "client").unwrap();
    let ca = dir.join("ca.crt");
    authority.write(&ca).unwrap();
    let params = ServerTlsParams {
        cert: server.cert,
        key: server.key,
        client_ca: Some(ca.clone()),
        client_auth: ClientAuth::Required,
        alpn: vec![xds::ALPN_H2.to_vec()],
    };
    let control = Control::start(all, Some((ServerTls::load(params).unwrap(), CLIENT)));

    let mut bootstrap =
        crate::envoy::bootstrap("DELTA_GRPC", "default", control.addr, Some((&ca, &client)));
    let kind =
        "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener";
    bootstrap["bootstrap_extensions"] = json!([{
        "name": "envoy.bootstrap.internal_listener",
        "typed_config": { "@type": kind },
    }]);
    let envoy = Envoy::start_with(Place::Here, dir.path(), "envoy", bootstrap);
    let envoy = envoy.unwrap_or_else(|error| panic!("{:?}: {error:#}", control.refused()));
    let listening = || {
        let listening = listeners(&envoy);
        ["tls::", SOCKET]
            .iter()
            .all(|name| listening.contains(name))
    };
    let waited = wait::until("Envoy to listen", LIMIT, listening);
    assert_eq!(control.refused(), Vec::<String>::new());
    waited.unwrap();
    let known = http::get(&Target::plain(envoy.admin()), "/clusters").unwrap();
    let known = known.text();
    assert!(clusters.iter().all(|name| known.contains(name)), "{known}");

    // There is no server: its own answer says that TLS ends there, with the secrets and by the rules of the route.
    let target = Target::tls(loopback(gateway.tls), authority.pem()).server_name(NAME);
    let answer = http::get(&target, "/api").unwrap();
    assert_eq!(answer.status, 503, "{}", answer.text());
    let hsts = answer.header("strict-transport-security");
    assert_eq!(hsts, Some("max-age=3600"));
    assert_eq!(control.refused(), Vec::<String>::new());
}
