//! Secrets: who gets them, what stays of them, and that none is on disk or in a log.

use std::sync::Arc;
use std::time::Duration;

use route::{ClusterSpec, Handler, RouteMatch, RouteSpec};
use testkit::certs::Authority;
use testkit::tempdir::TempDir;
use xds::{Audience, Resource, ResourceType, State, Terminate};

use crate::support::{Client, Pki, Seen, Serving, client_params, own, server_params, until};

const CLUSTER: &str = "outbound|443||kube-apiserver.shoot--a.svc.cluster.local";
const NAMES: [&str; 4] = [
    "shoot--a-tls",
    "shoot--a-ca",
    "shoot--a-mtls",
    "shoot--a-mtls-ca",
];

fn terminate() -> Terminate {
    let [certificate, client_authorities, identity, authorities] = NAMES.map(Arc::from);
    Terminate {
        certificate,
        client_authorities: Some(client_authorities),
        min_version: tls::MinVersion::Tls13,
        authorities,
        server_name: "kubernetes.default.svc.cluster.local".try_into().unwrap(),
        identity: Some(identity),
        hsts: Duration::from_secs(31_536_000),
        max_streams: 77,
        stream_timeout: Duration::from_secs(86_400),
    }
}

fn route(matches: RouteMatch, terminate: Terminate) -> RouteSpec {
    let mut spec = RouteSpec::new(matches, CLUSTER);
    spec.handler = Some(Handler::new(Arc::new(terminate)));
    spec.max_connection_age = Some(Duration::from_secs(3600));
    spec.allow_sources = vec!["192.0.2.0/24".parse().unwrap()];
    spec
}

fn by_name() -> RouteSpec {
    let names = vec!["api.a.example.com".to_owned(), "*.a.example.com".to_owned()];
    route(RouteMatch::ServerNames(names), terminate())
}

fn resources(routes: &[RouteSpec]) -> Vec<Resource> {
    let mut all = xds::base(&xds::GatewayParams::default());
    all.extend(xds::cluster(&ClusterSpec::new(CLUSTER)));
    let parts = xds::parts("shoot--a", routes, &xds::GatewayParams::default());
    assert_eq!(parts.withheld, [""; 0]);
    all.extend(parts.resources);
    all
}

fn pair(authority: &Authority, name: &str) -> (Resource, String) {
    let own = authority.server(&["api.a.example.com"]).unwrap();
    let secret = xds::key_pair(name, own.cert_pem.as_bytes(), own.key_pem.as_bytes());
    (secret, own.key_pem)
}

fn secrets(authority: &Authority) -> (Vec<Resource>, String) {
    let (serving, key) = pair(authority, NAMES[0]);
    let (identity, _) = pair(authority, NAMES[2]);
    let ca = |name| xds::authorities(name, authority.pem().as_bytes());
    (vec![serving, identity, ca(NAMES[1]), ca(NAMES[3])], key)
}

#[test]
fn terminating_routes_decode_to_what_they_were() {
    let connect = RouteMatch::ConnectDestinations(vec!["shoot--a--socket".to_owned()]);
    let anonymous = Terminate {
        client_authorities: None,
        identity: None,
        min_version: tls::MinVersion::Tls12,
        hsts: Duration::ZERO,
        ..terminate()
    };
    let other = RouteMatch::ServerNames(vec!["other.example.com".to_owned()]);
    let routes = [
        by_name(),
        route(connect, terminate()),
        route(other, anonymous),
    ];
    let mut state = State::default();
    for resource in resources(&routes) {
        let decoded = xds::decode(resource.kind, &resource.name, &resource.body).unwrap();
        state.set(&*resource.name, decoded);
    }
    assert_eq!(state.missing(), [].into());
    let mut listeners = own();
    listeners.push(xds::OwnListener {
        name: "vpn".to_owned(),
        port: 8132,
        protocol: xds::OwnProtocol::Connect,
    });
    let table = state.table(&listeners).unwrap();
    let reports: Vec<_> = table.reports.iter().map(|(_, what)| what).collect();
    assert!(
        reports.iter().all(|what| what.starts_with("no listener")),
        "{reports:?}"
    );
    // One cluster: the others have its endpoints.
    let clusters: Vec<_> = table.spec.clusters.iter().map(|own| &own.name).collect();
    assert_eq!(clusters, [CLUSTER]);
    assert_eq!(table.spec.routes.len(), 3);
    for wanted in &routes {
        let mut found = table.spec.routes.iter();
        let found = found.find(|own| own.matches == wanted.matches).unwrap();
        assert_eq!(found.cluster, CLUSTER);
        let own = |spec: &RouteSpec| spec.handler.as_ref().unwrap().get::<Terminate>().unwrap();
        assert_eq!(own(found), own(wanted));
        assert_eq!(found.allow_sources, wanted.allow_sources);
    }
    let tls = table
        .spec
        .routes
        .iter()
        .find(|own| own.matches == routes[0].matches);
    assert_eq!(
        tls.unwrap().max_connection_age,
        routes[0].max_connection_age
    );
}

#[test]
fn envoy_passes_through_what_terminates_here() {
    let whole = |route: RouteSpec| {
        let route = [route];
        let params = xds::GatewayParams::default();
        xds::whole(&params, [&route[..]].into_iter()).resources
    };
    let mut passed = by_name();
    passed.handler = None;
    assert_eq!(whole(by_name()), whole(passed));
}

#[test]
fn debug_shows_nothing_of_a_secret() {
    let (secret, key) = pair(&Authority::new("ca").unwrap(), "a");
    let decoded = xds::decode(ResourceType::Secret, "a", &secret.body).unwrap();
    let shown = format!("{secret:?} {decoded:?}");
    assert!(shown.contains("KeyPair(..)"), "{shown}");
    let bytes = format!("{:?}", &key.as_bytes()[40..50]);
    assert!(!shown.contains(&key[40..60]) && !shown.contains(bytes.trim_matches(['[', ']'])));
    let wrong = xds::decode(ResourceType::Secret, "b", &secret.body).unwrap_err();
    assert!(!wrong.to_string().contains(&key[40..60]));
}

#[test]
fn secrets_of_other_kinds_are_refused() {
    let too_long = xds::authorities("a", &vec![b'x'; 2 << 20]);
    let no_key = xds::key_pair("a", b"certificate", b"");
    let nothing = xds::authorities("a", b"");
    for (secret, why) in [
        (too_long, "it is larger than 1048576 bytes"),
        (
            no_key,
            "tls_certificate: certificate_chain and private_key are needed",
        ),
        (nothing, "validation_context.trusted_ca: it is needed"),
    ] {
        let error = xds::decode(ResourceType::Secret, "a", &secret.body).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn delivered(client: &Client) -> Vec<String> {
    let seen = client.seen.lock().unwrap();
    seen.secrets.keys().map(ToString::to_string).collect()
}

async fn until_secrets(client: &Client, wanted: &[&str]) {
    let mut wanted: Vec<_> = wanted.to_vec();
    wanted.sort_unstable();
    let what = format!("the secrets {wanted:?}");
    let all = |seen: &Seen| {
        seen.secrets
            .keys()
            .map(|own| &**own)
            .eq(wanted.iter().copied())
    };
    client.until(&what, all).await;
}

/// Both variants: what is subscribed is delivered, changes, and stays when the server has it no longer; the cache
/// has nothing of it.
#[tokio::test]
async fn secrets_follow_their_routes_and_stay_in_memory() {
    for delta in [true, false] {
        let dir = TempDir::new("xds-secrets").unwrap();
        let pki = Pki::new();
        let authority = Authority::new("ca").unwrap();
        let mut params = server_params(Some(pki.server_tls()));
        params.delta = delta;
        let serving = Serving::start(params).await;
        serving.set(resources(&[by_name()]));
        let (all, key) = secrets(&authority);
        serving.set(all.clone());
        serving.set(vec![pair(&authority, "another-shoots").0]);
        serving.gateway.complete();
        let mut params = client_params(serving.addr, Some(pki.client_tls()));
        let path = dir.join("cache");
        params.cache = Some(path.clone());
        let client = Client::start(params.clone());
        until_secrets(&client, &NAMES).await;
        client.until_confirmed().await;

        // Renewed: only it is sent, and no table.
        let (tables, before) = (client.tables(), serving.pushed());
        let old = client.seen.lock().unwrap().secrets[NAMES[0]].clone();
        serving.set(vec![pair(&authority, NAMES[0]).0]);
        let renewed = |seen: &Seen| !Arc::ptr_eq(&seen.secrets[NAMES[0]], &old);
        client.until("a renewed secret", renewed).await;
        assert_eq!(client.tables(), tables);
        let sent = serving.pushed() - before;
        assert!(sent < 3000, "{sent} bytes");

        // Gone at the server: the client goes on with it.
        let gone = (ResourceType::Secret, Audience::Parts, Arc::from(NAMES[0]));
        serving.gateway.update(Vec::new(), vec![gone]);
        serving.set(vec![pair(&authority, NAMES[2]).0]);
        client.until_confirmed().await;
        assert_eq!(delivered(&client).len(), 4);

        // No route refers to them any more.
        until("the cache to be written", || path.exists()).await;
        client.stop().await;
        let kept = std::fs::read(&path).unwrap();
        let holds = |text: &str| kept.windows(text.len()).any(|own| own == text.as_bytes());
        assert!(holds(NAMES[0]) && holds(CLUSTER));
        assert!(!holds("PRIVATE KEY") && !holds("CERTIFICATE") && !holds(&key[40..60]));

        let client = Client::start(params);
        until_secrets(&client, &NAMES[1..]).await;
        let mut passed = by_name();
        passed.handler = None;
        serving.set(resources(&[passed]));
        until_secrets(&client, &[]).await;
    }
}

/// By state of the world nothing is said of what is absent.
#[tokio::test]
async fn server_answers_for_absent_secrets() {
    let pki = Pki::new();
    let serving = Serving::start(server_params(Some(pki.server_tls()))).await;
    serving.set(resources(&[by_name()]));
    let (mut all, _) = secrets(&Authority::new("ca").unwrap());
    serving.set(all.split_off(2));
    serving.gateway.complete();
    let client = Client::start(client_params(serving.addr, Some(pki.client_tls())));
    let complete = |seen: &Seen| seen.complete && seen.secrets.len() == 2;
    client.until("an answer for each secret", complete).await;
}

#[tokio::test]
async fn plain_streams_carry_no_secret() {
    let serving = Serving::start(server_params(None)).await;
    serving.set(resources(&[by_name()]));
    serving.set(secrets(&Authority::new("ca").unwrap()).0);
    serving.gateway.complete();
    let mut params = client_params(serving.addr, None);
    params.secrets = true;
    let client = Client::start(params);
    client.until_routes(1).await;
    client.until_confirmed().await;
    client.until_confirmed().await;
    assert_eq!(delivered(&client), [""; 0]);
    let labels = r#"rhizome_xds_pushes_total{gateway="default",type="secret"}"#;
    assert_eq!(serving.count(labels), 0);
}
