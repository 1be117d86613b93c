//! What is kept of a gateway's Secrets, without an API server.

use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::Client;
use telemetry::Registry;
use testkit::tempdir::TempDir;

use super::*;
use crate::state::Secret;

const CONFIG: &str = "
controllers:
  routing:
    enabled: true
    tlsTermination: true
    gateways:
    - { name: one, namespace: one, selector: { a: b }, clients: [one] }
    - { name: two, namespace: two, selector: { a: b }, clients: [two] }
    xds: { address: '127.0.0.1:0', ca: ca, cert: cert, key: key }
";

fn reconciler() -> (Reconciler, watch::Sender<Vec<GatewayEntry>>) {
    let dir = TempDir::new("reconciler").unwrap();
    let config = dir.write("controller.yaml", CONFIG).unwrap();
    let config = Config::load(&config).unwrap();
    let registry = Registry::new();
    let params = publish::server_params(config.gateways(), None);
    let server = xds::Server::new(params, &registry);
    let (gateways, configured) = watch::channel(config.gateways().to_vec());
    let client = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = Client::try_from(client).unwrap();
    let (leadership, metrics) = (Leadership::alone(), Metrics::new(&registry));
    let parts = Parts {
        publisher: Publisher::new(config.routing.as_ref(), Some(&server)),
        config: Arc::new(config),
        messages: mpsc::channel(1).1,
        leadership: leadership.clone(),
        resolved: watch::channel(HostName::None).1,
        writer: Writer::new(client.clone(), leadership),
        recorder: Recorder::start(client, "test".to_owned(), metrics.clone()),
        gateways: configured,
        server: Some(server),
        metrics,
        summary: watch::channel(Arc::default()).0,
    };
    (Reconciler::new(parts), gateways)
}

fn key(namespace: &str) -> ObjectKey {
    ObjectKey::new(namespace, "kube-apiserver-tls")
}

/// Takes what a watch says that has listed a namespace with one Secret.
fn list(own: &mut Reconciler, namespace: &str) {
    let mut object = SecretObject::default();
    object.metadata.namespace = Some(namespace.to_owned());
    object.metadata.name = Some(key(namespace).name.to_string());
    let (key, secret) = Secret::parse(object).unwrap();
    own.take(Message::Secret(key.clone(), Some(secret)));
    own.take(Message::SecretsListed(namespace.into(), [key].into()));
}

fn known(own: &Reconciler) -> Vec<ObjectKey> {
    own.state.secrets.keys().cloned().collect()
}

#[tokio::test]
async fn secrets_of_a_removed_gateway_are_forgotten() {
    let (mut own, gateways) = reconciler();
    let both = gateways.borrow().clone();
    list(&mut own, "one");
    list(&mut own, "two");
    assert_eq!(known(&own), [key("one"), key("two")]);

    gateways.send_replace(both[..1].to_vec());
    own.set_gateways();
    assert_eq!(known(&own), [key("one")]);
    // What its watch said last comes late.
    list(&mut own, "two");
    own.take(Message::SecretsForbidden("two".into()));
    assert_eq!(known(&own), [key("one")]);

    own.secrets.clear();
    gateways.send_replace(both);
    own.set_gateways();
    assert_eq!(own.secrets, [key("one")].into());
    assert!(!own.state.secrets.settled("two"));
}

#[tokio::test]
async fn secrets_of_a_new_gateway_are_kept_before_its_routes_are_published() {
    let (mut own, gateways) = reconciler();
    let both = gateways.borrow().clone();
    gateways.send_replace(both[..1].to_vec());
    own.set_gateways();
    // Those who watch Secrets may learn of a gateway first.
    gateways.send_replace(both);
    list(&mut own, "two");
    own.set_gateways();
    assert_eq!(known(&own), [key("two")]);
    assert!(own.state.secrets.settled("two"));
}
