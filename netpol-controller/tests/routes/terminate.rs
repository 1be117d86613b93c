//! TLS that ends in our gateway, from Gardener's objects and Secrets in a real API server, which is the shoot's
//! as well.
//!
//! ```text
//!   Gateway, VirtualService, DestinationRules, Secrets ─▶ kube-apiserver ─▶ netpol-controller ══xDS, SDS══▶ sni-proxy
//!   client ── serving certificate of the Secret ──▶ sni-proxy ── front proxy's ──▶ kube-apiserver
//! ```

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::certs::{Authority, Identity};
use testkit::http::{self, Connection, Proxy, Target};
use testkit::{command, wait};

use crate::objects::{name_of, namespace_of};
use crate::program::LIMIT;
use crate::seed::{Gateway, Seed, in_terminating};
use crate::{objects, programs};

const SHOOT: &str = "c";
const SNI: &str = "kubernetes.default.svc.cluster.local";

fn secret_name(suffix: &str) -> String {
    format!("{}-kube-apiserver-{suffix}", namespace_of(SHOOT))
}

fn secret(suffix: &str, own: &Identity, authorities: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": { "namespace": "istio-ingress", "name": secret_name(suffix) },
        "stringData": { "cert": own.cert_pem, "key": own.key_pem, "cacert": authorities },
    })
}

fn rule(service: &str, tls: Value) -> Value {
    let namespace = namespace_of(SHOOT);
    json!({
        "apiVersion": "networking.istio.io/v1beta1", "kind": "DestinationRule",
        "metadata": { "namespace": namespace, "name": service },
        "spec": {
            "exportTo": ["istio-ingress"],
            "host": format!("{service}.{namespace}.svc.cluster.local"),
            "trafficPolicy": { "loadBalancer": { "simple": "LEAST_REQUEST" }, "tls": tls },
        },
    })
}

fn rules() -> [Value; 3] {
    let simple =
        json!({ "mode": "SIMPLE", "credentialName": secret_name("istio-mtls"), "sni": SNI });
    let mutual =
        json!({ "mode": "MUTUAL", "credentialName": secret_name("istio-mtls"), "sni": SNI });
    [
        rule("kube-apiserver", simple.clone()),
        rule("kube-apiserver-mtls", mutual),
        rule("kube-apiserver-connection-upgrade", simple),
    ]
}

/// A gateway, as a client that trusts only one authority sees it.
fn target(gateway: &Gateway, seed: &Seed<'_>, authority: &str) -> Target {
    let target = Target::tls(gateway.ports.tls, authority).server_name(&name_of(SHOOT));
    target.bearer(seed.token()).timeout(Duration::from_secs(5))
}

fn answers(target: &Target) -> bool {
    http::get(target, "/api/v1/namespaces").is_ok_and(|answer| answer.status == 200)
}

fn until(what: &str, good: impl FnMut() -> bool) {
    wait::until(what, LIMIT, good).unwrap();
}

fn has_problem(seed: &Seed<'_>, text: &str) -> bool {
    seed.snapshot()["problems"].to_string().contains(text)
}

/// Asks for Secrets as a user with a certificate, by curl; returns the answer.
fn as_user(seed: &Seed<'_>, gateway: &Gateway, clients: &Authority, serving: &str) -> String {
    let user = clients.client("jane", &["system:masters"], &[]).unwrap();
    let files = user.write(seed.dir(), "jane").unwrap();
    let ca = seed.dir().join("serving.pem");
    fs::write(&ca, serving).unwrap();
    let (name, port) = (name_of(SHOOT), gateway.ports.tls.port());
    let mut curl = Command::new(command::require("curl").unwrap());
    curl.args([
        "--silent",
        "--show-error",
        "--fail-with-body",
        "--max-time",
        "20",
        "--noproxy",
        "*",
    ]);
    curl.arg("--resolve")
        .arg(format!("{name}:{port}:127.0.0.1"));
    curl.arg("--cacert").arg(ca);
    curl.arg("--cert")
        .arg(&files.cert)
        .arg("--key")
        .arg(&files.key);
    curl.arg(format!(
        "https://{name}:{port}/api/v1/namespaces/istio-ingress/secrets"
    ));
    command::run(&mut curl).unwrap_or_else(|error| panic!("{error:#}"))
}

#[test]
fn gardeners_secrets_end_tls_in_the_gateway() {
    for program in ["etcd", "kube-apiserver", "kubectl", "curl"] {
        programs::announce(program);
    }
    in_terminating(SHOOT, |seed, clients, front| {
        let serving = Authority::new("serving").unwrap();
        seed.apply("rules", &rules());
        seed.start_controller();
        let gateway = seed.gateway("default", "default");
        let of = |authority: &str| target(&gateway, seed, authority);
        let kube = seed.kube_authority();
        // Without Secrets the API server ends TLS itself.
        until("passthrough", || answers(&of(kube)));
        until("an Event for the Secret", || {
            has_problem(
                seed,
                &format!("there is no Secret istio-ingress/{}", secret_name("tls")),
            )
        });

        let own = serving.server(&[name_of(SHOOT)]).unwrap();
        let identity = front.client("system:istio-gateway", &[], &[]).unwrap();
        let mtls = secret("istio-mtls", &identity, kube);
        seed.apply("secrets", &[secret("tls", &own, clients.pem()), mtls]);
        until("TLS to end in the gateway", || answers(&of(serving.pem())));
        assert!(!answers(&of(kube)));
        until("no problem", || !has_problem(seed, "Secret"));
        let listed = as_user(seed, &gateway, clients, serving.pem());
        assert!(listed.contains(&secret_name("tls")), "{listed}");
        // The same inside a node proxy's CONNECT.
        let value = format!("{}--kube-apiserver-socket", namespace_of(SHOOT));
        let inside = Target::tls(gateway.ports.node, serving.pem()).server_name(&name_of(SHOOT));
        let inside = inside.bearer(seed.token());
        let inside = inside.proxy(Proxy::connect("X-Gardener-Destination", &value));
        assert!(answers(&inside));
        let anonymous = Target::tls(gateway.ports.tls, serving.pem()).server_name(&name_of(SHOOT));
        let refused = http::get(
            &anonymous.header("X-Remote-User", "admin"),
            "/api/v1/namespaces",
        );
        assert_eq!(refused.unwrap().status, 403);

        // Renewed under another authority: new handshakes see it, and what is open goes on.
        let mut open = Connection::open(&of(serving.pem())).unwrap();
        let renewed = Authority::new("renewed").unwrap();
        let next = renewed.server(&[name_of(SHOOT)]).unwrap();
        seed.apply("renewed", &[secret("tls", &next, clients.pem())]);
        until("the renewed certificate", || answers(&of(renewed.pem())));
        assert!(!answers(&of(serving.pem())));
        assert_eq!(open.get("/api/v1/namespaces").unwrap().status, 200);

        // One that is broken, and one that is gone, leave the last good one.
        let broken = Identity {
            cert_pem: next.cert_pem.clone(),
            key_pem: own.key_pem.clone(),
        };
        seed.apply("broken", &[secret("tls", &broken, clients.pem())]);
        until("an Event for the broken Secret", || {
            has_problem(seed, "is not that of")
        });
        assert!(answers(&of(renewed.pem())));
        seed.delete("gone", &[secret("tls", &next, clients.pem())]);
        until("an Event for the Secret that is gone", || {
            has_problem(seed, "there is no Secret")
        });
        assert!(answers(&of(renewed.pem())));

        // Nothing of a key is where it does not belong.
        let shown = [seed.shown(), gateway.program.shown()].concat();
        for key in [&own.key_pem, &next.key_pem, &identity.key_pem] {
            let line = key.lines().nth(1).unwrap();
            assert!(!shown.contains(line));
        }

        // Restarted without the controller, a gateway has its routes, and passes TLS through.
        seed.stop_controller();
        drop(gateway);
        let cache = fs::read(seed.cache("default", "default").join("routes.cache")).unwrap();
        assert!(!String::from_utf8_lossy(&cache).contains("PRIVATE KEY"));
        let gateway = seed.gateway("default", "default");
        let of = |authority: &str| target(&gateway, seed, authority);
        assert!(answers(&of(kube)) && !answers(&of(renewed.pem())));
        let fallback = gateway.program.metric("rhizome_terminate_fallback", &[]);
        assert_eq!(fallback, 1.0);

        // With it, the Secret that is put back is used again.
        seed.start_controller();
        seed.apply("again", &[secret("tls", &next, clients.pem())]);
        wait::until("TLS to end in the gateway again", LIMIT * 2, || {
            answers(&of(renewed.pem()))
        })
        .unwrap();
    });
}

/// The objects of the shoot, without those of TLS toward its API server.
pub(crate) fn shoot() -> Vec<Value> {
    objects::terminating(SHOOT)
}
