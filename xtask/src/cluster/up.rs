//! Starts both clusters: machines, control planes, nodes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use deploy::Objects;
use serde_json::{Value, json};
use testkit::command;

use super::control::{self, Cluster, Kubernetes};
use super::kubectl::Kubectl;
use super::machine::Machine;
use super::network::{self, Node, ROUTER};
use super::{cloud, needs, root};
use crate::console::Console;

/// Both clusters, with an operator of each.
#[derive(Clone, Debug)]
pub(crate) struct Clusters {
    pub(crate) root: std::path::PathBuf,
    pub(crate) kubernetes: Kubernetes,
    pub(crate) router: Machine,
    pub(crate) seed: Kubectl,
    pub(crate) shoot: Kubectl,
}

pub(crate) fn run() -> Result<()> {
    let mut console = Console::new();
    let clusters = start(&mut console)?;
    for (name, kubectl) in [("seed", &clusters.seed), ("shoot", &clusters.shoot)] {
        let line = command::line(&kubectl.command(&["get", "pods", "--all-namespaces"])?);
        console.say(&format!("  {name}: {line}"));
    }
    Ok(())
}

/// Starts what is not running yet.
pub(crate) fn start(console: &mut Console) -> Result<Clusters> {
    console.heading("What it is made of");
    needs::check()?;
    let say = |console: &Console, text: &str| console.say(&format!("  {text}"));
    let kubernetes = needs::install(&|text| say(console, text))?;
    let root = root()?;
    fs::create_dir_all(&root).with_context(|| format!("making {}", root.display()))?;
    let programs = format!(
        "Kubernetes 1.{} in {}",
        kubernetes.minor,
        kubernetes.directory.display()
    );
    say(console, &programs);
    let router = Machine::at(&root, ROUTER);
    let (seed, shoot) = (control::seed(&root), control::shoot(&root));
    let clusters = Clusters {
        router: router.clone(),
        seed: Kubectl::new(&router, &seed, kubernetes.minor),
        shoot: Kubectl::new(&router, &shoot, kubernetes.minor),
        root: root.clone(),
        kubernetes: kubernetes.clone(),
    };
    let runs = |name| Machine::at(&root, name).init().is_some();
    let complete = root.join(COMPLETE);
    if complete.exists() && super::machines().all(runs) {
        let running = fs::read_to_string(&complete).context("reading what runs")?;
        ensure!(
            running == programs,
            "clusters run with `{running}`, not with `{programs}`: `cargo xtask cluster down` first"
        );
        say(console, "both clusters run already");
        return Ok(clusters);
    }
    // What a start left that did not come to its end.
    super::stop(&root)?;
    let image = needs::image(&root, &|text| say(console, text))?;
    console.heading("Seed");
    seed.make_files(SEED_NAMES, &network::SEED)?;
    shoot.make_files(SHOOT_NAMES, &network::SHOOT)?;
    cloud::write_hosts(&root, "world", "")?;
    for cluster in [&seed, &shoot] {
        cloud::write_hosts(&root, cluster.name, "")?;
    }
    console.check("a router with a firewall, DNS and a cloud", || {
        router.start(&control::router(&root)?)?;
        network::prepare_router(&router)?;
        router.go()?;
        Ok("10.240.0.1, 10.250.0.1".to_owned())
    })?;
    for node in &network::SEED {
        console.check(node.name, || {
            start_node(&clusters, &seed, node)?;
            clusters.seed.wait_ready(ROLLOUT_LIMIT)?;
            clusters.seed.apply(basics(&seed, &network::SEED))?;
            clusters
                .seed
                .apply(Objects::read("tests/data/definitions.yaml")?)?;
            clusters.seed.apply(deploy::gardener::namespaces())?;
            wait_node(&clusters.seed, node)?;
            load(&clusters.root, node, &image)?;
            Ok("etcd, API server, controllers, scheduler, kubelet, kube-proxy".to_owned())
        })?;
    }
    console.check("the shoot's control plane, in pods", || {
        clusters.seed.apply(control_plane(&shoot, &kubernetes)?)?;
        clusters.seed.apply(deploy::gardener::api_server())?;
        for workload in [
            "statefulset/etcd-main",
            "deployment/kube-apiserver",
            "deployment/kube-controllers",
        ] {
            clusters
                .seed
                .rolled_out(deploy::gardener::SHOOT, workload, ROLLOUT_LIMIT)?;
        }
        Ok(deploy::gardener::SHOOT.to_owned())
    })?;
    console.heading("Shoot");
    for node in &network::SHOOT {
        console.check(node.name, || {
            start_node(&clusters, &shoot, node)?;
            load(&clusters.root, node, &image)?;
            Ok(format!("asks for {}", deploy::gardener::API))
        })?;
    }
    fs::write(complete, programs).context("saying so")?;
    Ok(clusters)
}

/// Starts a node's machine, with its daemons.
pub(crate) fn start_node(clusters: &Clusters, cluster: &Cluster, node: &Node) -> Result<()> {
    let machine = Machine::at(&clusters.root, node.name);
    machine.start(&control::node(
        &clusters.root,
        cluster,
        node,
        &clusters.kubernetes,
    ))?;
    network::connect(&clusters.router, &machine, node)?;
    for other in network::SHOOT.iter().filter(|_| cluster.name == "shoot") {
        if other.name != node.name {
            machine.run(&format!(
                "ip route replace {} via {}",
                other.pods, other.address
            ))?;
        }
    }
    machine.go()
}

/// Loads an image's archive on a node.
pub(crate) fn load(root: &Path, node: &Node, archive: &Path) -> Result<()> {
    ensure!(
        archive.exists(),
        "no {}: `cargo xtask images` makes it",
        archive.display()
    );
    let machine = Machine::at(root, node.name);
    testkit::wait::until_ok("a container runtime", ROLLOUT_LIMIT, || {
        let mut import = machine.command("timeout")?;
        import
            .args(["60", "ctr", "--namespace", "k8s.io", "images", "import"])
            .arg(archive);
        command::run(&mut import).map(|_| ())
    })
}

pub(crate) fn wait_node(kubectl: &Kubectl, node: &Node) -> Result<()> {
    let what = format!("node/{}", node.name);
    testkit::wait::until_ok(node.name, ROLLOUT_LIMIT, || {
        let waited = kubectl.run(&["wait", "--for=condition=Ready", &what, "--timeout=60s"]);
        waited
            .map(|_| ())
            .inspect_err(|_| testkit::wait::pause(Duration::from_millis(300)))
    })
}

/// What every cluster has: its DNS, by the Service that pods ask.
pub(crate) fn basics(cluster: &Cluster, nodes: &[Node]) -> Vec<Value> {
    let meta = json!({ "name": "kube-dns", "namespace": "kube-system" });
    let ports = json!([
        { "name": "dns", "port": 53, "protocol": "UDP" },
        { "name": "dns-tcp", "port": 53, "protocol": "TCP" },
    ]);
    let addresses = nodes.iter().map(|node| json!({ "ip": node.address }));
    let addresses: Vec<Value> = addresses.collect();
    vec![
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": meta,
            "spec": { "clusterIP": cluster.dns, "ports": ports },
        }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": meta,
            "subsets": [{ "addresses": addresses, "ports": ports }],
        }),
    ]
}

/// The shoot's control plane, with its files as Secrets.
fn control_plane(shoot: &Cluster, kubernetes: &Kubernetes) -> Result<Vec<Value>> {
    let text = include_str!("shoot.yaml");
    let text = text.replace("KUBERNETES", &kubernetes.directory.display().to_string());
    let mut objects: Vec<Value> = Objects::parse(&text, Path::new("shoot.yaml"))?
        .into_iter()
        .collect();
    let pki = |name: &str| format!("/pki/{name}");
    let mut server = vec![
        "/kubernetes/kube-apiserver".to_owned(),
        "--etcd-servers=http://etcd-main:2379".to_owned(),
        format!("--advertise-address={}", deploy::gardener::ADVERTISED),
        "--secure-port=443".to_owned(),
        "--egress-selector-config-file=/egress/egress.yaml".to_owned(),
    ];
    server.extend(shoot.api_server(kubernetes, pki));
    let mut controllers = vec!["/kubernetes/kube-controller-manager".to_owned()];
    controllers.extend(shoot.controllers(pki));
    let mut filled = 0;
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(deploy::gardener::SHOOT);
        let name = object["metadata"]["name"].clone();
        let words = match name.as_str() {
            Some("kube-apiserver") => &server,
            Some("kube-controllers") => &controllers,
            _ => continue,
        };
        object["spec"]["template"]["spec"]["containers"][0]["command"] = json!(words);
        filled += 1;
    }
    ensure!(filled == 2, "{filled} of 2 commands found their place");
    let mut data = serde_json::Map::new();
    for entry in fs::read_dir(&shoot.directory).context("reading certificates")? {
        let path = entry?.path();
        if path.is_file() {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            data.insert(name, json!(BASE64_STANDARD.encode(fs::read(&path)?)));
        }
    }
    objects.push(json!({
        "apiVersion": "v1", "kind": "Secret", "data": data,
        "metadata": { "name": "shoot-pki", "namespace": deploy::gardener::SHOOT },
    }));
    objects.push(egress(&json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": [],
    })));
    Ok(objects)
}

/// The egress selector of the shoot's API server.
pub(crate) fn egress(configuration: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "egress-selector", "namespace": deploy::gardener::SHOOT },
        "data": { "egress.yaml": configuration.to_string() },
    })
}

/// Is there once both clusters have started.
const COMPLETE: &str = "complete";
pub(crate) const ROLLOUT_LIMIT: Duration = Duration::from_secs(180);

const SEED_NAMES: &[&str] = &[
    "10.240.0.10",
    "127.0.0.1",
    "10.0.128.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

const SHOOT_NAMES: &[&str] = &[
    deploy::gardener::API,
    deploy::gardener::ADVERTISED,
    "kube-apiserver",
    "100.64.0.1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
