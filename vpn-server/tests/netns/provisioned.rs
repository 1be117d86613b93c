//! Both ends with what `vpn-provision` writes, mounted as a kubelet mounts it, and a rotation
//! of all keys and of the proxy's authority under connections that are held.
//!
//! ```text
//!     provision --out ─▶ manifests ─ files of each Secret ─▶ mounts of servers and clients
//!                            ├─ annotations ─▶ the gateway's routes
//!                            └─ vpn-seed-server-client ─▶ the test, which dials as API servers do
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::certs::Identity;
use testkit::command;
use testkit::http::{Connection, Proxy, Target, Upgraded};
use testkit::process::ChildGuard;
use testkit::tunnel_world::{GATEWAY, Held, LIMIT, PROXY_NAME, PROXY_PORT, Part, World};
use testkit::wait;

use crate::world::{ECHO, NOTICED, alive, doubled, dropped, lay, lived, pod, wait_dropped};

#[test]
fn rotation_of_all_keys_loses_no_connection() {
    let mut world = lay(doubled());
    let _echo = world.echo(ECHO).unwrap();
    let mut shoot = Provisioned::new(&mut world);
    let first = shoot.api_server();
    let held: Vec<Held> = (0..2).map(|server| hold(&world, server, &first)).collect();
    let mut apart = vec![first.clone()];
    for words in [
        ["rotate", "start"],
        ["rotate", "start"],
        ["rotate", "complete"],
        ["rotate", "complete"],
    ] {
        held.iter().for_each(Held::begin_anew);
        let phase = shoot.provision(&words);
        shoot.roll(&mut world, &apart);
        if phase == "Prepared" || phase == "Completed" {
            // API servers are started again with what they have now, one after the other.
            apart.push(shoot.api_server());
            converse(&world, &apart);
            apart.remove(0);
        }
        for (server, held) in held.iter().enumerate() {
            lived(held, &format!("{phase}, by server {server}"), NOTICED);
        }
    }
    // What was before opens nothing any more: certificates, and keys of either end.
    for server in 0..2 {
        assert!(
            dial(&world, server, &first).is_err(),
            "an old certificate is taken"
        );
    }
    let before = dropped(&world, 0, "bad_mac");
    drop(held);
    shoot.mount("vpn-shoot-1-keys", 0);
    wait_dropped(&world, 0, "bad_mac", before);
}

/// What an API server has of the proxy.
#[derive(Clone)]
struct ApiServer {
    authority: String,
    identity: Identity,
}

fn dial(world: &World, server: usize, by: &ApiServer) -> Result<Upgraded, String> {
    let addr = SocketAddr::new(world.network.addresses.server(server), PROXY_PORT);
    let target = Target::plain(addr).timeout(LIMIT).proxy(Proxy::ConnectTls {
        authority: pod(),
        server_name: PROXY_NAME.to_owned(),
        authority_pem: by.authority.clone(),
        identity: by.identity.clone(),
    });
    let opened = world.network.api_server.run(|| Connection::open(&target));
    let opened = opened.and_then(|opened| opened);
    opened
        .map(Connection::raw)
        .map_err(|error| format!("{error:#}"))
}

fn hold(world: &World, server: usize, by: &ApiServer) -> Held {
    let held = Held::hold(dial(world, server, by).unwrap()).unwrap();
    alive(&held);
    held
}

/// Every API server gets through every server, at the first attempt.
fn converse(world: &World, api_servers: &[ApiServer]) {
    for by in api_servers {
        for server in 0..2 {
            let mut connection = dial(world, server, by).unwrap();
            assert_eq!(connection.exchange(b"hello").unwrap(), b"hello");
        }
    }
}

/// Files by name, of a Secret.
type Files = BTreeMap<String, String>;

/// A shoot's manifests and mounts, and the programs that use them.
struct Provisioned {
    dir: PathBuf,
    /// What each Secret was, from the first on.
    secrets: BTreeMap<String, Vec<Files>>,
    /// What was mounted, by Secret.
    generations: BTreeMap<String, usize>,
    _programs: Vec<ChildGuard>,
}

impl Provisioned {
    /// Provisions for the first time, and starts everything with that.
    fn new(world: &mut World) -> Self {
        let dir = world.dir.join("provisioned");
        fs::create_dir_all(&dir).unwrap();
        let mut shoot = Self {
            dir,
            secrets: BTreeMap::new(),
            generations: BTreeMap::new(),
            _programs: Vec::new(),
        };
        let parameters = shoot.parameters(world);
        let text = format!("{parameters:#}");
        fs::write(shoot.dir.join("parameters.yaml"), text).unwrap();
        assert_eq!(shoot.provision(&[]), "Completed");
        for secret in MOUNTED {
            shoot.mount(secret, 0);
        }
        shoot.tell_gateway(world);
        world.start_part(Part::Gateway).unwrap();
        world.wait_ready(Part::Gateway).unwrap();
        shoot.start(world);
        shoot
    }

    fn parameters(&self, world: &World) -> Value {
        let addresses = &world.network.addresses;
        let tls = |file: &str| self.dir.join("vpn-seed-server-tls").join(file);
        json!({
            "namespace": "shoot--foo--bar",
            "servers": 2,
            "clients": 2,
            "networks": {
                "pods": ["100.96.0.0/11"], "services": ["100.64.0.0/13"], "nodes": ["10.250.0.0/16"],
            },
            "endpoint": { "address": GATEWAY, "tcpPort": 8132, "udpPort": 51820 },
            "routeIds": [17, 18],
            "server": {
                "trustedGateways": [format!("{}/32", addresses.gateway())],
                "proxy": { "ca": tls("ca.crt"), "cert": tls("tls.crt"), "key": tls("tls.key") },
            },
        })
    }

    /// Runs the program; returns the phase that it names.
    fn provision(&mut self, words: &[&str]) -> String {
        let own = env!("CARGO_BIN_EXE_vpn-server");
        let program = command::sibling(own, "vpn-provision", "vpn-provision").unwrap();
        let mut program = Command::new(program);
        program.arg("--config");
        program.arg(self.dir.join("parameters.yaml"));
        program.args(["--settle", "0s", "--out"]);
        program.arg(self.dir.join("manifests")).args(words);
        let told = command::run(&mut program).unwrap();
        for side in ["seed", "shoot"] {
            for entry in fs::read_dir(self.dir.join("manifests").join(side)).unwrap() {
                self.keep(&read(&entry.unwrap().path()));
            }
        }
        let phase = told
            .lines()
            .find_map(|line| line.strip_prefix("rotation: "));
        phase.unwrap().to_owned()
    }

    /// Keeps what a Secret says now.
    fn keep(&mut self, object: &Value) {
        let Some(data) = object["data"].as_object() else {
            return;
        };
        let decoded = data.iter().map(|(file, text)| {
            let bytes = STANDARD.decode(text.as_str().unwrap()).unwrap();
            (file.clone(), String::from_utf8(bytes).unwrap())
        });
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let (files, known) = (decoded.collect(), self.secrets.entry(name).or_default());
        if known.last() != Some(&files) {
            known.push(files);
        }
    }

    /// Delivers the changes to every part, one after the other as kubelets do, and checks after
    /// each that every API server gets through.
    fn roll(&mut self, world: &mut World, api_servers: &[ApiServer]) {
        self.tell_gateway(world);
        for secret in MOUNTED {
            let newest = self.secrets[secret].len() - 1;
            if self.generations[secret] == newest {
                continue;
            }
            let parts = readers(secret);
            let count = |part: &Part, metric: &str| {
                let labels: &[_] = match part {
                    Part::Client(_) => &[],
                    Part::Gateway | Part::Server(_) => &[("result", "taken")],
                };
                world.metric(*part, metric, labels).unwrap_or_default()
            };
            let handshakes = |server| world.metric(Part::Server(server), HANDSHAKES, &[]);
            let before: Vec<f64> = parts
                .iter()
                .map(|(part, metric)| count(part, metric))
                .collect();
            let shaken = [0, 1].map(handshakes);
            self.mount(secret, newest);
            for ((part, metric), before) in parts.iter().zip(&before) {
                let what = format!("{part:?} to read {secret} again");
                wait::until(&what, LIMIT, || count(part, metric) > *before).unwrap();
            }
            let keys = &self.secrets[secret][newest];
            // A client that has a new key uses it before its old one may go.
            if secret.starts_with("vpn-shoot") && keys["private-0"] != keys["private-1"] {
                for (server, before) in shaken.iter().enumerate() {
                    let what = format!("a handshake of {secret} with server {server}");
                    wait::until(&what, LIMIT, || handshakes(server) > *before).unwrap();
                }
            }
            converse(world, api_servers);
        }
    }

    /// Puts that state of a Secret where its pod reads it: all files at one moment, by a link.
    fn mount(&mut self, secret: &str, generation: usize) {
        let place = self.dir.join(secret);
        let count = self.generations.entry(secret.to_owned()).or_default();
        let fresh = format!("..{generation}");
        fs::create_dir_all(place.join(&fresh)).unwrap();
        for (file, text) in &self.secrets[secret][generation] {
            fs::write(place.join(&fresh).join(file), text).unwrap();
            let link = place.join(file);
            if fs::symlink_metadata(&link).is_err() {
                symlink(Path::new("..data").join(file), &link).unwrap();
            }
        }
        let _ = fs::remove_file(place.join("..data_tmp"));
        symlink(&fresh, place.join("..data_tmp")).unwrap();
        fs::rename(place.join("..data_tmp"), place.join("..data")).unwrap();
        *count = generation;
    }

    /// Does for the gateway what the controller does with the Services' annotations.
    fn tell_gateway(&self, world: &mut World) {
        for server in 0..2 {
            let file = format!("manifests/seed/service-vpn-seed-server-{server}.yaml");
            let service = read(&self.dir.join(file));
            let annotations = &service["metadata"]["annotations"];
            let note = |name: &str| annotations[format!("rhizome.gardener.cloud/{name}")].as_str();
            assert_eq!(
                note("wireguard-route-id"),
                Some(if server == 0 { "17" } else { "18" })
            );
            let keys = note("wireguard-public-keys").unwrap().split(',');
            world.keys.known_servers[server] = keys.map(str::to_owned).collect();
        }
        world.write_files().unwrap();
    }

    fn start(&mut self, world: &World) {
        let server = Path::new(env!("CARGO_BIN_EXE_vpn-server"));
        let client =
            command::sibling(env!("CARGO_BIN_EXE_vpn-server"), "vpn-client", "vpn-client").unwrap();
        let mut programs = Vec::new();
        for number in 0..2 {
            for (part, program, secret, file) in [
                (
                    Part::Server(number),
                    server,
                    "vpn-seed-server",
                    "vpn-server.yaml",
                ),
                (
                    Part::Client(number),
                    &client,
                    "vpn-shoot",
                    "vpn-client.yaml",
                ),
            ] {
                let name = format!("{secret}-{number}-keys");
                let config = self.dir.join(&name).join(file);
                let mut check = Command::new(program);
                command::run(check.arg("--config").arg(&config).arg("--check")).unwrap();
                let mut run = world.namespace(part).command(program);
                run.args(["--log-format", "json", "--config"]).arg(config);
                let log = self.dir.join(format!("{name}.log"));
                programs.push((part, ChildGuard::spawn(&name, &run, &log).unwrap()));
            }
        }
        for (part, child) in &mut programs {
            let ready = || {
                world
                    .probe(*part, "/readyz")
                    .is_ok_and(|answer| answer.status == 200)
            };
            child.wait_ready(LIMIT, ready).unwrap();
        }
        self._programs = programs.into_iter().map(|(_, child)| child).collect();
    }

    /// Returns what an API server reads that is started now.
    fn api_server(&self) -> ApiServer {
        let files = self.secrets["vpn-seed-server-client"].last().unwrap();
        ApiServer {
            authority: files["ca.crt"].clone(),
            identity: Identity {
                cert_pem: files["tls.crt"].clone(),
                key_pem: files["tls.key"].clone(),
            },
        }
    }
}

/// Who reads a Secret, and what counts that.
fn readers(secret: &str) -> Vec<(Part, &'static str)> {
    match secret {
        "vpn-seed-server-0-keys" => vec![(Part::Server(0), KEYS)],
        "vpn-seed-server-1-keys" => vec![(Part::Server(1), KEYS)],
        "vpn-seed-server-tls" => vec![(Part::Server(0), TLS), (Part::Server(1), TLS)],
        "vpn-shoot-0-keys" => vec![(Part::Client(0), CLIENT)],
        "vpn-shoot-1-keys" => vec![(Part::Client(1), CLIENT)],
        other => panic!("no part reads {other}"),
    }
}

fn read(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap();
    settings::yaml::from_str(&text, path).unwrap()
}

/// Secrets that pods of the tunnel mount, in the order in which this test's kubelets are.
const MOUNTED: [&str; 5] = [
    "vpn-shoot-1-keys",
    "vpn-seed-server-0-keys",
    "vpn-seed-server-tls",
    "vpn-shoot-0-keys",
    "vpn-seed-server-1-keys",
];

const CLIENT: &str = "rhizome_vpn_client_reloads_total";
const HANDSHAKES: &str = "rhizome_tunnel_handshakes_total";
const KEYS: &str = "rhizome_vpn_keys_reloads_total";
const TLS: &str = "rhizome_tls_reloads_total";
