//! Routes whose TLS ends in the gateway, from what Gardener writes for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use route::Handler;
use serde_json::{Value, json};
use telemetry::Registry;
use testkit::certs::{Authority, IdentityFiles};
use testkit::tempdir::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use xds::Terminate;

use super::fixture::*;
use crate::config::RoutingConfig;
use crate::plan::Reason;
use crate::publish::{Publisher, server_params};
use crate::routes::{GatewayEntry, Group, Table, all_groups, group, groups_of_secret};
use crate::state::{ClusterState, Kind, ObjectKey, Secret};

const HOSTS: [&str; 2] = [
    "api.bar.foo.example.com",
    "api.bar.foo.internal.example.com",
];
const TLS: &str = "shoot--foo--bar-kube-apiserver-tls";
const WILDCARD: &str = "shoot--foo--bar-kube-apiserver-wildcard-tls";
const MTLS: &str = "shoot--foo--bar-kube-apiserver-istio-mtls";
const SNI: &str = "kubernetes.default.svc.cluster.local";

fn on() -> Vec<GatewayEntry> {
    let mut entries = one();
    entries[0].terminates_tls = true;
    entries
}

fn mtls(tls: Value) -> Value {
    let policy = json!({ "loadBalancer": { "simple": "LEAST_REQUEST" }, "tls": tls });
    rule(&format!("{SHOOT}/kube-apiserver-mtls"), policy)
}

/// All of a shoot's objects: two servers, the rules, and what Gardener's filters add.
fn objects() -> Vec<Value> {
    let [mut gateway, bound] = terminating(SHOOT, &HOSTS);
    gateway["spec"]["servers"][0]["tls"]["minProtocolVersion"] = json!("TLSV1_3");
    let mut wildcard = gateway["spec"]["servers"][0].clone();
    wildcard["port"]["name"] = json!("wildcard-tls");
    wildcard["hosts"] = json!(["*.seed.example.com"]);
    wildcard["tls"] = json!({ "mode": "OPTIONAL_MUTUAL", "credentialName": WILDCARD });
    gateway["spec"]["servers"]
        .as_array_mut()
        .unwrap()
        .push(wildcard);
    let socket = json!({ "name": format!("{SHOOT}--kube-apiserver-socket") });
    let filter = json!({
        "workloadSelector": { "labels": { "app": "istio-ingressgateway", "istio": "ingressgateway" } },
        "configPatches": [
            { "applyTo": "CLUSTER", "patch": { "operation": "ADD", "value": socket } },
            { "applyTo": "HTTP_ROUTE", "patch": { "operation": "INSERT_FIRST", "value": {} } },
        ],
    });
    let simple = json!({ "tls": { "mode": "SIMPLE", "sni": SNI } });
    vec![
        api_server(SHOOT),
        gateway,
        bound,
        rule(&format!("{SHOOT}/kube-apiserver"), simple),
        mtls(json!({ "mode": "MUTUAL", "credentialName": MTLS, "sni": SNI })),
        istio(
            "EnvoyFilter",
            &format!("istio-ingress/{SHOOT}-apiserver-proxy"),
            filter,
        ),
    ]
}

fn secret(name: &str, ca: &Authority) -> (ObjectKey, Secret) {
    let own = ca.server(&HOSTS).unwrap();
    let data = [
        ("cert", own.cert_pem),
        ("key", own.key_pem),
        ("cacert", ca.pem().to_owned()),
    ];
    let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes())));
    let mut object = SecretObject::default();
    object.metadata.name = Some(name.to_owned());
    object.metadata.namespace = Some("istio-ingress".to_owned());
    object.data = Some(data.into());
    Secret::parse(object).unwrap()
}

fn with_secrets(names: &[&str]) -> ClusterState {
    let mut state = state(&objects());
    let ca = Authority::new("ca").unwrap();
    state.secrets.list("istio-ingress".into());
    for name in names {
        let (key, secret) = secret(name, &ca);
        assert!(state.secrets.put(key, Some(secret)));
    }
    state
}

/// How the TLS of the route ends whose match begins so; none when it is passed through.
fn ends(group: &Group, start: &str) -> Option<Arc<Terminate>> {
    let mut routes = group.gateways[0].routes.iter();
    let found = routes.find(|own| text(&own.spec.matches).starts_with(start));
    let found = found.unwrap_or_else(|| panic!("no route {start}: {:?}", of(group, 0)));
    found.spec.handler.as_ref().and_then(Handler::get)
}

#[test]
fn gardeners_objects_end_tls_in_the_gateway() {
    let state = with_secrets(&[TLS, WILDCARD, MTLS]);
    let found = group(&state, &on(), SHOOT);
    assert_eq!(problems(&found), [""; 0]);
    let own = ends(&found, &format!("names {}", HOSTS[0])).unwrap();
    assert_eq!(*own.certificate, *TLS);
    assert_eq!(
        own.client_authorities.as_deref(),
        Some(&*format!("{TLS}-cacert"))
    );
    assert_eq!(own.min_version, tls::MinVersion::Tls13);
    assert_eq!(own.identity.as_deref(), Some(MTLS));
    assert_eq!(*own.authorities, *format!("{MTLS}-cacert"));
    assert_eq!(own.server_name.to_str(), SNI);
    assert_eq!((own.hsts.as_secs(), own.max_streams), (31_536_000, 100));
    assert_eq!(own.stream_timeout.as_secs(), 86_400);
    let wildcard = ends(&found, "names *.seed.example.com").unwrap();
    assert_eq!(*wildcard.certificate, *WILDCARD);
    assert_eq!(wildcard.min_version, tls::MinVersion::Tls12);
    // A node proxy's CONNECT ends with the shoot's certificate, or leads to the API server as it is.
    let connect = ends(&found, &format!("connect {SHOOT}--kube-apiserver-socket"));
    assert_eq!(connect, Some(own));
    assert_eq!(ends(&found, &format!("connect {API}")), None);
    let clusters: Vec<_> = found.gateways[0]
        .clusters
        .iter()
        .map(|own| &own.name)
        .collect();
    assert_eq!(clusters, [API]);
}

#[test]
fn tls_is_passed_through_unless_it_is_switched_on() {
    let state = with_secrets(&[TLS, WILDCARD, MTLS]);
    let found = group(&state, &one(), SHOOT);
    assert_eq!(ends(&found, &format!("names {}", HOSTS[0])), None);
    assert_eq!(count(&found, Reason::RouteAdapted, Kind::IstioGateway), 2);
    // A shoot that opts out has other objects.
    let mut objects = vec![api_server(SHOOT)];
    objects.extend(passthrough(SHOOT, &HOSTS));
    let found = group(&super::fixture::state(&objects), &on(), SHOOT);
    assert_eq!(ends(&found, &format!("names {}", HOSTS[0])), None);
    assert_eq!(problems(&found), [""; 0]);
}

#[test]
fn foreign_filter_of_http_is_reported() {
    let lua = json!({ "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua" } });
    let of_http = [
        ("HTTP_FILTER", "INSERT_BEFORE", lua),
        (
            "HTTP_ROUTE",
            "MERGE",
            json!({ "route": { "timeout": "15s" } }),
        ),
        (
            "VIRTUAL_HOST",
            "MERGE",
            json!({ "request_headers_to_remove": ["X"] }),
        ),
        ("CLUSTER", "MERGE", json!({ "transport_socket": {} })),
    ];
    for (kind, operation, value) in of_http {
        let patch = json!({ "operation": operation, "value": value });
        let spec = json!({ "configPatches": [{ "applyTo": kind, "patch": patch }] });
        for (name, reported) in [
            ("apiserver-tls-termination", false),
            ("hsts", false),
            ("misdirected-requests", false),
            (&*format!("{SHOOT}-istio-tls-termination"), false),
            ("mine", true),
        ] {
            let mut all = objects();
            all.push(istio(
                "EnvoyFilter",
                &format!("istio-ingress/{name}"),
                spec.clone(),
            ));
            let state = state(&all);
            let found = group(&state, &on(), "istio-ingress");
            let expected = format!(
                "RouteAdapted EnvoyFilter istio-ingress/{name}: it changes HTTP, which is not applied to requests \
                 whose TLS ends in the gateway"
            );
            let expected: Vec<String> = reported.then_some(expected).into_iter().collect();
            assert_eq!(problems(&found), expected, "{kind}");
            // Passed through, each is.
            let found = group(&state, &one(), "istio-ingress");
            assert_eq!(count(&found, Reason::RouteAdapted, Kind::EnvoyFilter), 1);
        }
    }
}

#[test]
fn missing_secret_is_reported_until_it_is_there() {
    let mut state = with_secrets(&[TLS, WILDCARD]);
    let start = format!("names {}", HOSTS[0]);
    let found = group(&state, &on(), SHOOT);
    // The gateway has what it was given before.
    assert!(ends(&found, &start).is_some());
    let why = format!("there is no Secret istio-ingress/{MTLS}");
    let reported = problems(&found);
    assert!(
        reported.len() == 1 && reported[0].contains(&why),
        "{reported:?}"
    );
    assert_eq!(groups_of_secret(&state, MTLS), [SHOOT.into()].into());
    assert_eq!(groups_of_secret(&state, WILDCARD), [SHOOT.into()].into());
    assert_eq!(groups_of_secret(&state, "another"), [].into());
    let (key, secret) = secret(MTLS, &Authority::new("ca").unwrap());
    state.secrets.put(key, Some(secret));
    assert_eq!(problems(&group(&state, &on(), SHOOT)), [""; 0]);
    // Before they were listed, none is missing.
    state.secrets = crate::state::Secrets::default();
    assert_eq!(problems(&group(&state, &on(), SHOOT)), [""; 0]);
}

#[test]
fn forbidden_secrets_are_reported_until_they_are_listed() {
    let mut state = state(&objects());
    assert!(state.secrets.forbid("istio-ingress".into()));
    assert!(!state.secrets.forbid("istio-ingress".into()));
    let found = group(&state, &on(), SHOOT);
    // A gateway that has them goes on; each of the two servers says it, once.
    assert!(ends(&found, &format!("names {}", HOSTS[0])).is_some());
    assert_eq!(count(&found, Reason::RouteAdapted, Kind::IstioGateway), 1);
    let reported = problems(&found);
    let why = "the controller may not list and watch Secrets in namespace istio-ingress";
    assert!(
        reported.len() == 1 && reported[0].matches(why).count() == 1,
        "{reported:?}"
    );
    let ca = Authority::new("ca").unwrap();
    for (key, secret) in [TLS, WILDCARD, MTLS].map(|name| secret(name, &ca)) {
        state.secrets.put(key, Some(secret));
    }
    assert!(state.secrets.list("istio-ingress".into()));
    assert_eq!(problems(&group(&state, &on(), SHOOT)), [""; 0]);
}

#[test]
fn unfit_objects_pass_tls_through_with_the_reason() {
    let start = format!("names {}", HOSTS[0]);
    let simple = mtls(json!({ "mode": "SIMPLE", "sni": SNI }));
    let unnamed = mtls(json!({ "mode": "MUTUAL", "credentialName": MTLS }));
    let other =
        json!({ "mode": "MUTUAL", "credentialName": MTLS, "sni": SNI, "subjectAltNames": ["x"] });
    let mut no_credential = objects();
    no_credential[1]["spec"]["servers"][0]["tls"]["credentialName"] = json!("");
    let mut version = objects();
    version[1]["spec"]["servers"][0]["tls"]["minProtocolVersion"] = json!("SSL3");
    let mut plain = objects();
    plain[1]["spec"]["servers"][0]["tls"]["mode"] = json!("SIMPLE");
    let mut without = objects();
    without.remove(4);
    let mut of_another = objects();
    of_another[1]["spec"]["servers"][0]["tls"]["credentialName"] =
        json!("shoot--foo--baz-kube-apiserver-tls");
    let foreign = "shoot--foo--baz-kube-apiserver-istio-mtls";
    let foreign = json!({ "mode": "MUTUAL", "credentialName": foreign, "sni": SNI });
    let mut header = objects();
    header[3]["spec"]["trafficPolicy"]["proxyProtocol"] = json!({ "version": "V2" });
    let with = |rule: Value| {
        let mut all = objects();
        all[4] = rule;
        all
    };
    for (objects, why) in [
        (with(simple), "is not MUTUAL with a credentialName"),
        (with(unnamed), "is no name"),
        (with(mtls(other)), "has other subjectAltNames than its sni"),
        (without, "has no DestinationRule"),
        (no_credential, "it has no credentialName"),
        (
            of_another,
            "Secret shoot--foo--baz-kube-apiserver-tls is none of namespace shoot--foo--bar",
        ),
        (
            with(mtls(foreign)),
            "Secret shoot--foo--baz-kube-apiserver-istio-mtls is none of namespace shoot--foo--bar",
        ),
        (header, "a PROXY header goes to its API server"),
        (version, "minProtocolVersion SSL3 is not known"),
        (plain, "clients are not asked for certificates by SIMPLE"),
    ] {
        let found = group(&state(&objects), &on(), SHOOT);
        assert_eq!(ends(&found, &start), None, "{why}");
        let reported = problems(&found);
        assert!(
            reported.iter().any(|own| own.contains(why)),
            "{why}: {reported:?}"
        );
    }
}

#[test]
fn gateway_of_another_namespace_ends_no_tls() {
    // Its clients would be vouched for by the other shoot's identity.
    let beside = |other: &str| {
        let mut all = objects();
        let [gateway, mut bound] = terminating(other, &["a.baz.example.com"]);
        let host = format!("kube-apiserver.{SHOOT}.svc.cluster.local");
        let to = json!([{"destination": {"host": host, "port": {"number": 443}}}]);
        bound["spec"]["http"] = json!([{ "route": to }]);
        all.extend([gateway, bound]);
        state(&all)
    };
    let (state, alone) = (beside("shoot--foo--baz"), with_secrets(&[]));
    let led = |state| of(&group(state, &on(), SHOOT), 0);
    assert_eq!(led(&state), led(&alone));
    let other = "istio-ingress";
    let state = beside(other);
    let found = group(&state, &on(), SHOOT);
    assert_eq!(ends(&found, "names a.baz.example.com"), None);
    let own = ends(&found, &format!("connect {SHOOT}--kube-apiserver-socket")).unwrap();
    assert_eq!(*own.certificate, *TLS);
    let why = format!("its API server is in namespace {SHOOT}");
    let reported = problems(&group(&state, &on(), other));
    assert!(
        reported.iter().any(|own| own.contains(&why)),
        "{reported:?}"
    );
}

#[test]
fn same_objects_are_no_change() {
    let state = with_secrets(&[TLS, WILDCARD, MTLS]);
    let mut table = Table::default();
    assert_eq!(
        table.put(SHOOT, group(&state, &on(), SHOOT)).routes.len(),
        1
    );
    assert_eq!(
        table.put(SHOOT, group(&state, &on(), SHOOT)),
        crate::routes::Changed::default()
    );
    let passed = table.put(SHOOT, group(&state, &one(), SHOOT));
    assert_eq!(passed.routes.len(), 1);
}

/// What a gateway has of secrets: how many, and whether the server has answered for all.
struct Told(watch::Sender<(usize, bool)>);

impl xds::Sink for Told {
    fn apply(&mut self, _table: xds::Table) -> Result<(), String> {
        Ok(())
    }

    fn secrets(&mut self, all: tls::Secrets, complete: bool) {
        self.0.send_replace((all.len(), complete));
    }

    fn confirmed(&mut self) {}
}

#[tokio::test]
async fn gateway_is_told_of_absent_secrets_once_they_are_listed() {
    const LIMIT: Duration = Duration::from_secs(60);
    const URI: &str = "spiffe://example.com/gateway";

    let dir = TempDir::new("publish").unwrap();
    let authority = Authority::new("gateways").unwrap();
    let ca = authority.write(&dir.join("ca.crt")).unwrap();
    let own = authority.server(&["127.0.0.1"]).unwrap();
    let IdentityFiles { cert, key } = own.write(dir.path(), "server").unwrap();
    let server_tls = tls::ServerTls::load(tls::ServerTlsParams {
        cert,
        key,
        client_ca: Some(ca.clone()),
        client_auth: tls::ClientAuth::Required,
        alpn: vec![xds::ALPN_H2.to_vec()],
    });
    let own = authority.client("gateway", &[], &[URI]).unwrap();
    let IdentityFiles { cert, key } = own.write(dir.path(), "client").unwrap();
    let client_tls = tls::ClientTls::load(tls::ClientTlsParams {
        ca,
        cert: Some(cert),
        key: Some(key),
        alpn: vec![xds::ALPN_H2.to_vec()],
    });

    let mut gateways = on();
    gateways[0].clients = vec![URI.to_owned()];
    let registry = Registry::new();
    let params = server_params(&gateways, Some(server_tls.unwrap()));
    let server = xds::Server::new(params, &registry);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let routing = RoutingConfig {
        gateways,
        address,
        tls: None,
    };
    let mut publisher = Publisher::new(Some(&routing), Some(&server));
    let (told, mut seen) = watch::channel((0, false));
    let params = xds::ClientParams {
        server: format!("https://{address}").parse().unwrap(),
        tls: Some(client_tls.unwrap()),
        node: "gateway-0".to_owned(),
        cluster: "default".to_owned(),
        own: vec![xds::OwnListener {
            name: "tls".to_owned(),
            port: 443,
            protocol: xds::OwnProtocol::Tls,
        }],
        start: xds::State::default(),
        secrets: true,
        cache: None,
        limits: xds::ClientLimits::default(),
    };
    let registry = Registry::new();
    let metrics = xds::ClientMetrics::new(&registry, tls::Metrics::new(&registry));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { server.serve(listener, std::future::pending()).await });
    tasks.spawn(async move {
        xds::run(params, Told(told), metrics).await;
    });

    // The controller knows all objects, and of the Secrets the first page.
    let mut state = state(&objects());
    let ca = Authority::new("ca").unwrap();
    let mut keys = BTreeSet::new();
    for name in [TLS, MTLS] {
        let (key, secret) = secret(name, &ca);
        keys.insert(key.clone());
        state.secrets.put(key, Some(secret));
    }
    publisher.translate(&state, all_groups(&state));
    publisher.publish_secrets(&state, &keys);
    publisher.complete();
    let known = timeout(LIMIT, seen.wait_for(|(count, _)| *count == 4)).await;
    assert_eq!(*known.unwrap().unwrap(), (4, false));

    state.secrets.list("istio-ingress".into());
    publisher.publish_secrets(&state, &BTreeSet::new());
    let all = timeout(LIMIT, seen.wait_for(|(_, complete)| *complete)).await;
    assert_eq!(*all.unwrap().unwrap(), (4, true));
}
