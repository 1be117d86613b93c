//! What the machines of both clusters run: their daemons' commands, configurations and certificates.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use testkit::certs::{Authority, Identity};

use super::machine::Spec;
use super::network::{DNS, Node, ROUTER};

/// The API server of a cluster, as its own nodes and operators know it.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) name: &'static str,
    /// With certificates, and with kubeconfigs by user.
    pub(crate) directory: PathBuf,
    pub(crate) server: &'static str,
    /// As its controllers know it.
    local: &'static str,
    pub(crate) services: &'static str,
    pub(crate) dns: &'static str,
    pub(crate) pods: &'static str,
    /// Where its addresses for balancers begin, from the first of all.
    pub(crate) balancers: u32,
}

/// Programs of Kubernetes, and their minor version.
#[derive(Clone, Debug)]
pub(crate) struct Kubernetes {
    pub(crate) directory: PathBuf,
    pub(crate) minor: u32,
}

impl Kubernetes {
    fn program(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

/// The seed's own cluster.
pub(crate) fn seed(root: &Path) -> Cluster {
    Cluster {
        name: "seed",
        directory: root.join("pki/seed"),
        server: "https://10.240.0.10:6443",
        local: "https://127.0.0.1:6443",
        services: "10.0.128.0/20",
        dns: "10.0.128.10",
        pods: "10.0.0.0/17",
        balancers: 0,
    }
}

/// The shoot's, by the name that leads to the gateway.
pub(crate) fn shoot(root: &Path) -> Cluster {
    Cluster {
        name: "shoot",
        directory: root.join("pki/shoot"),
        server: "https://api.bar.foo.example.com:443",
        local: "https://kube-apiserver",
        services: "100.64.0.0/13",
        dns: "100.64.0.10",
        pods: "100.96.0.0/11",
        balancers: 64,
    }
}

impl Cluster {
    /// Signs everything that the cluster's parts need, `names` being those of its API server.
    pub(crate) fn make_files(&self, names: &[&str], nodes: &[Node]) -> Result<()> {
        let directory = &self.directory;
        fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
        let authority = Authority::new(&format!("{}-ca", self.name))?;
        authority.write(&directory.join("ca.crt"))?;
        let front = Authority::new(&format!("{}-front-proxy", self.name))?;
        front.write(&directory.join("front-proxy-ca.crt"))?;
        let write = |name: &str, identity: Identity| identity.write(directory, name);
        write("apiserver", authority.server(names)?)?;
        write("front-proxy", front.client("front-proxy-client", &[], &[])?)?;
        write("accounts", authority.client("accounts", &[], &[])?)?;
        let masters = "system:masters";
        write(
            "kubelets",
            authority.client("kube-apiserver", &[masters], &[])?,
        )?;
        fs::write(directory.join("token"), TOKEN).context("writing a token")?;
        let tokens = format!("{TOKEN},cloud,cloud,\"{masters}\"\n");
        fs::write(directory.join("tokens.csv"), tokens).context("writing a token")?;
        let local = self.local;
        for (user, group, server) in [
            ("admin", masters, self.server),
            ("system:kube-proxy", "system:node-proxier", self.server),
            ("system:kube-controller-manager", "", local),
            ("system:kube-scheduler", "", local),
        ] {
            let groups: Vec<&str> = Some(group)
                .filter(|group| !group.is_empty())
                .into_iter()
                .collect();
            let identity = authority.client(user, &groups, &[])?;
            let short = user
                .trim_start_matches("system:kube-")
                .trim_start_matches("system:");
            self.write_kubeconfig(short, &identity, server)?;
        }
        for node in nodes {
            let user = format!("system:node:{}", node.name);
            let identity = authority.client(&user, &["system:nodes"], &[])?;
            self.write_kubeconfig(node.name, &identity, self.server)?;
            write(node.name, authority.server(&[node.address, node.name])?)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, user: &str, identity: &Identity, server: &str) -> Result<()> {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let authority = fs::read_to_string(self.directory.join("ca.crt"))?;
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "own",
            "clusters": [{ "name": "own", "cluster": {
                "server": server, "certificate-authority-data": encode(&authority),
            } }],
            "users": [{ "name": "own", "user": {
                "client-certificate-data": encode(&identity.cert_pem),
                "client-key-data": encode(&identity.key_pem),
            } }],
            "contexts": [{ "name": "own", "context": { "cluster": "own", "user": "own" } }],
        });
        fs::write(self.kubeconfig(user), config.to_string()).context("writing a kubeconfig")
    }

    /// Returns where the kubeconfig of a user is: `admin`, or a node's name.
    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        self.directory.join(format!("{user}.kubeconfig"))
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Returns the flags of its API server; `file` says where it has a file of the cluster's.
    pub(crate) fn api_server(
        &self,
        kubernetes: &Kubernetes,
        file: impl Fn(&str) -> String,
    ) -> Vec<String> {
        let mut flags: Vec<String> = [
            ("client-ca-file", "ca.crt"),
            ("tls-cert-file", "apiserver.crt"),
            ("tls-private-key-file", "apiserver.key"),
            ("kubelet-certificate-authority", "ca.crt"),
            ("kubelet-client-certificate", "kubelets.crt"),
            ("kubelet-client-key", "kubelets.key"),
            ("requestheader-client-ca-file", "front-proxy-ca.crt"),
            ("proxy-client-cert-file", "front-proxy.crt"),
            ("proxy-client-key-file", "front-proxy.key"),
            ("service-account-key-file", "accounts.crt"),
            ("token-auth-file", "tokens.csv"),
            ("service-account-signing-key-file", "accounts.key"),
        ]
        .map(|(flag, name)| format!("--{flag}={}", file(name)))
        .into();
        flags.extend(
            [
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-username-headers=X-Remote-User",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                // Only aggregated API servers by their Services, as kube-proxy would lead there.
                "--enable-aggregator-routing=false",
            ]
            .map(str::to_owned),
        );
        flags.push(format!("--service-cluster-ip-range={}", self.services));
        if kubernetes.minor < 24 {
            flags.push("--feature-gates=MixedProtocolLBService=true".to_owned());
        }
        flags
    }

    /// Returns the flags of its controller manager.
    pub(crate) fn controllers(&self, file: impl Fn(&str) -> String) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", file("controller-manager.kubeconfig")),
            format!("--root-ca-file={}", file("ca.crt")),
            format!(
                "--service-account-private-key-file={}",
                file("accounts.key")
            ),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            // A node that is gone is noticed within a test.
            "--node-monitor-grace-period=16s".to_owned(),
        ]
    }
}

/// Returns what the router runs.
pub(crate) fn router(root: &Path) -> Result<Spec> {
    let this = std::env::current_exe().context("finding this program")?;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let hosts = format!("--hostsdir={}", root.join("dns/world").display());
    Ok(Spec {
        name: ROUTER.to_owned(),
        daemons: vec![
            (
                "dns".to_owned(),
                words(&[
                    "dnsmasq",
                    "--no-resolv",
                    "--no-hosts",
                    "--keep-in-foreground",
                    "--user=root",
                    "--bind-interfaces",
                    "--listen-address",
                    DNS,
                    "--log-facility=-",
                    &hosts,
                ]),
            ),
            (
                "cloud".to_owned(),
                words(&[
                    &this.display().to_string(),
                    "cluster",
                    "cloud",
                    &root.display().to_string(),
                ]),
            ),
        ],
        files: BTreeMap::from([resolver()]),
    })
}

fn resolver() -> (String, String) {
    ("resolv.conf".to_owned(), format!("nameserver {DNS}\n"))
}

/// Returns what a node of a cluster runs, and with it the cluster's own parts if it is the seed's.
pub(crate) fn node(root: &Path, cluster: &Cluster, node: &Node, kubernetes: &Kubernetes) -> Spec {
    let mut daemons = Vec::new();
    let mut daemon = |name: &str, words: Vec<String>| daemons.push((name.to_owned(), words));
    let file = |name: &str| cluster.file(name);
    if cluster.name == "seed" {
        let url = "http://127.0.0.1:2379";
        let data = root.join(node.name).join("etcd");
        daemon(
            "etcd",
            vec![
                "etcd".to_owned(),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={url}"),
                format!("--advertise-client-urls={url}"),
                "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
            ],
        );
        let mut words = vec![
            kubernetes.program("kube-apiserver"),
            format!("--etcd-servers={url}"),
            format!("--advertise-address={}", node.address),
            "--secure-port=6443".to_owned(),
        ];
        words.extend(cluster.api_server(kubernetes, file));
        daemon("kube-apiserver", words);
        let mut words = vec![kubernetes.program("kube-controller-manager")];
        words.extend(cluster.controllers(file));
        daemon("kube-controller-manager", words);
        daemon(
            "kube-scheduler",
            vec![
                kubernetes.program("kube-scheduler"),
                format!("--kubeconfig={}", file("scheduler.kubeconfig")),
                "--leader-elect=false".to_owned(),
                "--bind-address=127.0.0.1".to_owned(),
            ],
        );
    }
    let hosts = format!(
        "--hostsdir={}",
        root.join("dns").join(cluster.name).display()
    );
    daemon(
        "dns",
        [
            "dnsmasq",
            "--no-hosts",
            "--no-resolv",
            "--keep-in-foreground",
            "--user=root",
            "--bind-interfaces",
            "--log-facility=-",
            "--local=/cluster.local/",
            &format!("--listen-address={}", node.address),
            &format!("--server={DNS}"),
            &hosts,
        ]
        .map(str::to_owned)
        .into(),
    );
    daemon("containerd", vec!["containerd".to_owned()]);
    let mut kubelet = vec![
        kubernetes.program("kubelet"),
        "--config=/etc/kubelet.json".to_owned(),
        format!("--kubeconfig={}", cluster.kubeconfig(node.name).display()),
        format!("--hostname-override={}", node.name),
        format!("--node-ip={}", node.address),
        format!("--node-labels=topology.kubernetes.io/zone={}", node.zone),
    ];
    if kubernetes.minor < 27 {
        kubelet.push("--container-runtime=remote".to_owned());
        kubelet.push(format!("--container-runtime-endpoint={RUNTIME}"));
    }
    daemon("kubelet", kubelet);
    daemon(
        "kube-proxy",
        vec![
            kubernetes.program("kube-proxy"),
            "--config=/etc/kube-proxy.json".to_owned(),
        ],
    );
    let text = |value: &Value| value.to_string();
    let files = BTreeMap::from([
        resolver(),
        (
            "kubelet.json".to_owned(),
            text(&kubelet_config(cluster, node, kubernetes)),
        ),
        (
            "kube-proxy.json".to_owned(),
            text(&proxy_config(cluster, node)),
        ),
        ("containerd/config.toml".to_owned(), CONTAINERD.to_owned()),
        (
            "cni/net.d/10-pods.conflist".to_owned(),
            text(&pods_network(node)),
        ),
    ]);
    Spec {
        name: node.name.to_owned(),
        daemons,
        files,
    }
}

fn kubelet_config(cluster: &Cluster, node: &Node, kubernetes: &Kubernetes) -> Value {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": cluster.file("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [cluster.dns], "clusterDomain": "cluster.local",
        "failSwapOn": false, "oomScoreAdj": 0, "readOnlyPort": 0,
        // Not its disk alone: it is full when the host's is.
        "evictionHard": { "memory.available": "1Mi" }, "imageGCHighThresholdPercent": 100,
        "resolvConf": "/etc/resolv.conf",
        "tlsCertFile": cluster.file(&format!("{}.crt", node.name)),
        "tlsPrivateKeyFile": cluster.file(&format!("{}.key", node.name)),
        "nodeStatusUpdateFrequency": "4s",
    });
    if kubernetes.minor >= 27 {
        config["containerRuntimeEndpoint"] = json!(RUNTIME);
    }
    if kubernetes.minor >= 31 {
        // From 1.35 on it would not start where control groups are those of version 1.
        config["failCgroupV1"] = json!(false);
    }
    config
}

fn proxy_config(cluster: &Cluster, node: &Node) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": cluster.file("proxy.kubeconfig") },
        "clusterCIDR": cluster.pods, "hostnameOverride": node.name, "mode": "iptables",
        "oomScoreAdj": 0,
        // The host's alone.
        "conntrack": { "maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        "iptables": { "minSyncPeriod": "0s", "syncPeriod": "30s" },
    })
}

fn pods_network(node: &Node) -> Value {
    json!({
        "cniVersion": "0.4.0", "name": "pods",
        "plugins": [{
            "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local", "ranges": [[{ "subnet": node.pods }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}

/// The cloud's, for a cluster that lives for a while on one machine.
const TOKEN: &str = "rhizome-cluster-cloud";
const RUNTIME: &str = "unix:///run/containerd/containerd.sock";

/// The sandbox's image is ours; profiles of AppArmor would stay in the host's kernel; and a host may not let
/// even root make a process less likely to be killed.
const CONTAINERD: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/rhizome-test/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
"#;
