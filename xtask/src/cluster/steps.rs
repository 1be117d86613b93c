//! The steps of docs/deploy.md: what an operator brings, and the shipped manifests.

use std::path::Path;

use anyhow::{Context, Result};
use deploy::Objects;
use deploy::gardener::{self, API, Authorities, KONNECTIVITY, KONNECTIVITY_SIDECAR, SHOOT};
use serde_json::{Value, json};
use testkit::{command, wait};

use super::up::{self, Clusters, ROLLOUT_LIMIT};
use super::{cloud, control, network};
use crate::console::Console;
use crate::{images, workspace};

/// Loads the images on all nodes.
pub(crate) fn load_images(clusters: &Clusters) -> Result<String> {
    let archives = workspace::target()?.join("images");
    for (nodes, names) in [
        (&network::SEED[..], SEED_IMAGES),
        (&network::SHOOT[..], SHOOT_IMAGES),
    ] {
        for node in nodes {
            for name in names {
                up::load(&clusters.root, node, &archives.join(format!("{name}.tar")))?;
            }
        }
    }
    Ok(format!(
        "{} in the seed, {} in the shoot",
        SEED_IMAGES.len(),
        SHOOT_IMAGES.len()
    ))
}

/// Applies a kustomization as shipped; what the server is too old for is left out, and said.
pub(crate) fn apply(console: &mut Console, clusters: &Clusters, directory: &str) -> Result<()> {
    let in_shoot = directory.starts_with("shoot/");
    let kubectl = if in_shoot {
        &clusters.shoot
    } else {
        &clusters.seed
    };
    console.check(&format!("deploy/{directory} is applied"), || {
        let left_out = kubectl.apply(Objects::build(directory)?)?;
        Ok(match left_out.len() {
            0 => String::new(),
            _ => format!(
                "not in Kubernetes 1.{}: {}",
                clusters.kubernetes.minor,
                left_out.join(", ")
            ),
        })
    })
}

/// What an operator brings to the seed: certificates.
pub(crate) fn bring(clusters: &Clusters) -> Result<String> {
    let last = ["--namespace", SHOOT, "get", "secret/konnectivity-frontend"];
    if clusters.seed.run(&last).is_ok() {
        return Ok("as before".to_owned());
    }
    let authorities = Authorities::new()?;
    let (in_shoot, in_seed): (Vec<Value>, Vec<Value>) = authorities
        .secrets()?
        .into_iter()
        .partition(|own| own["metadata"]["namespace"] == "kube-system");
    clusters.seed.apply(in_seed)?;
    let frontend = authorities.frontend()?;
    let frontend = gardener::tls(
        SHOOT,
        "konnectivity-frontend",
        &authorities.konnectivity,
        &frontend,
    );
    clusters.seed.apply([frontend])?;
    for namespace in ["garden", "istio-ingress", SHOOT] {
        let text = include_str!("policies.yaml").replace("NAMESPACE", namespace);
        clusters.seed.apply(objects(&text, "policies.yaml")?)?;
    }
    let path = clusters.root.join("shoot-secrets.json");
    std::fs::write(&path, json!(in_shoot).to_string()).context("writing Secrets")?;
    Ok("of xDS and konnectivity".to_owned())
}

/// What an operator brings to the shoot, once it can be reached.
pub(crate) fn bring_to_shoot(clusters: &Clusters) -> Result<()> {
    let text =
        std::fs::read(clusters.root.join("shoot-secrets.json")).context("reading Secrets")?;
    let secrets: Vec<Value> = serde_json::from_slice(&text)?;
    let shoot = control::shoot(&clusters.root);
    clusters.shoot.apply(secrets)?;
    clusters.shoot.apply(up::basics(&shoot, &network::SHOOT))?;
    Ok(())
}

/// Makes the records of names that lead to the gateway's load balancer.
pub(crate) fn make_records(clusters: &Clusters) -> Result<String> {
    let words = [
        "--namespace",
        "istio-ingress",
        "service",
        "istio-ingressgateway",
    ];
    let address = wait::until_some("an address of the load balancer", ROLLOUT_LIMIT, || {
        let service = clusters.seed.get(&words).ok()?;
        let ip = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str();
        ip.map(str::to_owned)
    })?;
    let names = [API, KONNECTIVITY, KONNECTIVITY_SIDECAR].map(|name| format!("{address} {name}\n"));
    cloud::write_hosts(&clusters.root, "world", &names.concat())?;
    Ok(format!(
        "{API}, {KONNECTIVITY}, {KONNECTIVITY_SIDECAR}: {address}"
    ))
}

/// Runs `vpn-provision` with the parameters as shipped, against both API servers.
pub(crate) fn provision(clusters: &Clusters) -> Result<String> {
    let program = workspace::target()?
        .join(workspace::host()?)
        .join("dist/vpn-provision");
    let config = deploy::root().join("control-plane/vpn-server/provision.yaml");
    let kubeconfig = |cluster: &control::Cluster| cluster.kubeconfig("admin");
    let mut provision = clusters.router.command(&program)?;
    provision.arg("--config").arg(config);
    provision
        .arg("--kubeconfig")
        .arg(kubeconfig(&control::seed(&clusters.root)));
    provision
        .arg("--shoot-kubeconfig")
        .arg(kubeconfig(&control::shoot(&clusters.root)));
    provision.args(["--wait", "15m"]);
    command::run(&mut provision)?;
    Ok("keys, certificates and configurations of both ends".to_owned())
}

/// Gives the shoot's API server one of the egress selectors that are shipped, and rolls it.
pub(crate) fn select_egress(clusters: &Clusters, file: &str) -> Result<()> {
    write_egress(clusters, file)?;
    roll_api_server(clusters)
}

/// As [`select_egress`], for the next API server that starts.
pub(crate) fn write_egress(clusters: &Clusters, file: &str) -> Result<()> {
    let selector = Objects::read(&format!("control-plane/egress-selector/{file}"))?;
    let selector = selector.into_iter().next().context("no egress selector")?;
    clusters.seed.apply([up::egress(&selector)]).map(|_| ())
}

/// Rolls the shoot's API server.
pub(crate) fn roll_api_server(clusters: &Clusters) -> Result<()> {
    let deployment = "deployment/kube-apiserver";
    let restart = ["--namespace", SHOOT, "rollout", "restart", deployment];
    clusters.seed.run(&restart)?;
    clusters.seed.rolled_out(SHOOT, deployment, ROLLOUT_LIMIT)
}

/// Asks the shoot's API server for a token of an account in `kube-system`.
pub(crate) fn token(clusters: &Clusters, account: &str) -> Result<String> {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "expirationSeconds": 24 * 3600 },
    });
    let file = clusters.root.join("token-request.json");
    std::fs::write(&file, request.to_string()).context("writing a request")?;
    let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{account}/token");
    let file = file.display().to_string();
    let create = ["create", "--raw", &path, "--filename", &file];
    let answer: Value = serde_json::from_str(&clusters.shoot.run(&create)?)?;
    let token = answer["status"]["token"].as_str();
    Ok(token.context("no token")?.to_owned())
}

/// Builds every image, as `cargo xtask images` does.
pub(crate) fn build_images() -> Result<()> {
    let code = images::run(&images::Options::default())?;
    anyhow::ensure!(
        code == std::process::ExitCode::SUCCESS,
        "an image is not as it should be"
    );
    Ok(())
}

/// As [`build_images`], if one is missing.
pub(crate) fn build_missing_images() -> Result<()> {
    let archives = workspace::target()?.join("images");
    let mut names = SEED_IMAGES.iter().chain(SHOOT_IMAGES);
    if names.all(|name| archives.join(format!("{name}.tar")).exists()) {
        return Ok(());
    }
    build_images()
}

/// Returns a signed certificate of a Service in the shoot, as a Secret, and its authority in base64.
pub(crate) fn service_certificate(name: &str) -> Result<(Value, String)> {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    let authority = testkit::certs::Authority::new(name)?;
    let identity = authority.server(&[format!("{name}.default.svc")])?;
    let secret = gardener::tls("default", &format!("{name}-tls"), &authority, &identity);
    Ok((secret, BASE64_STANDARD.encode(authority.pem())))
}

/// Reads objects of a file that is this module's own.
pub(crate) fn objects(text: &str, name: &str) -> Result<Objects> {
    Objects::parse(text, Path::new(name))
}

/// How the API server reaches the shoot, as [`select_egress`] takes it.
pub(crate) const VPN_SELECTOR: &str = "vpn-http-connect.yaml";
pub(crate) const KONNECTIVITY_SELECTOR: &str = "konnectivity-http-connect.yaml";

const SEED_IMAGES: &[&str] = &[
    "konnectivity-server",
    "netpol-controller",
    "sni-proxy",
    "vpn-server",
];
const SHOOT_IMAGES: &[&str] = &["apiserver-proxy", "konnectivity-agent", "vpn-client"];
