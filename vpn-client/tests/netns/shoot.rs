//! A shoot: a namespace, a directory, and the program in it.

use std::net::SocketAddr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{self, Response, Target};
use testkit::metrics::Metrics;
use testkit::netns::{End, Namespace, Place, cable};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait;
use tunnel::keys::{PrivateKey, PublicKey, generate, write_new};

/// A hang is a failure; nothing here takes a tenth of this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The TUN device.
pub(crate) const DEVICE: &str = "rhizome0";
/// The shoot's end of the cable, and the seed's.
pub(crate) const SHOOT: &str = "10.9.0.1";
pub(crate) const SEED: &str = "10.9.0.2";
/// A pod of the shoot, which answers beyond the cable.
pub(crate) const POD: &str = "100.96.0.10";
/// The name of the server.
pub(crate) const SERVER: &str = "vpn-seed-server";

const PROBES: &str = "127.0.0.1:8080";
const ADMIN: &str = "127.0.0.1:9901";

/// A shoot and what it is connected to.
#[derive(Debug)]
pub(crate) struct Shoot {
    pub(crate) ns: Namespace,
    pub(crate) seed: Namespace,
    pub(crate) dir: TempDir,
    /// The client's key.
    pub(crate) client: PublicKey,
    /// The server's key.
    pub(crate) server: PrivateKey,
}

impl Shoot {
    pub(crate) fn new(label: &str) -> Self {
        let (ns, seed) = (
            Namespace::new(label).unwrap(),
            Namespace::new("seed").unwrap(),
        );
        let end = |namespace| End {
            namespace,
            device: "eth0",
        };
        cable(end(&ns), end(&seed)).unwrap();
        ns.add_address("eth0", &format!("{SHOOT}/24")).unwrap();
        seed.add_address("eth0", &format!("{SEED}/24")).unwrap();
        seed.add_address("lo", &format!("{POD}/32")).unwrap();
        ns.add_route("default", SEED).unwrap();
        let dir = TempDir::new("shoot").unwrap();
        let key = generate().unwrap();
        write_new(&dir.join("client"), &key).unwrap();
        Self {
            ns,
            seed,
            dir,
            client: key.public(),
            server: generate().unwrap(),
        }
    }

    /// Returns a configuration with `more` keys set.
    pub(crate) fn config(&self, more: Value) -> Value {
        let mut all = json!({
            "addresses": ["192.168.123.64/24"],
            "endpoint": { "address": SEED },
            "servers": [{
                "name": SERVER, "publicKeys": [self.server.public().to_string()],
                "routeId": 17, "value": "outbound|1194||a", "addresses": ["192.168.123.1"],
            }],
            "keys": { "private": "client" },
            "networks": { "pods": ["100.96.0.0/11"] },
            "probes": { "address": PROBES },
            "admin": { "address": ADMIN },
            "drain": { "timeout": "20s" },
        });
        let (Value::Object(base), Value::Object(more)) = (&mut all, more) else {
            panic!("two objects")
        };
        base.extend(more);
        all
    }

    /// Runs the program to its end with `arguments`.
    pub(crate) fn run(&self, arguments: &[&str], config: &Value) -> Output {
        let mut command = self.command(&[], config);
        command.args(arguments);
        command::output(&mut command).unwrap()
    }

    /// Starts the program, behind the words of `wrapper`, and waits until it connects.
    pub(crate) fn start_as(&self, wrapper: &[&str], config: &Value) -> ChildGuard {
        let command = self.command(wrapper, config);
        let mut child = ChildGuard::spawn("vpn-client", &command, &self.dir.join("log")).unwrap();
        let up = || {
            self.probe("/healthz")
                .is_some_and(|answer| answer.status == 200)
        };
        child.wait_ready(LIMIT, up).unwrap();
        child
    }

    /// Starts the program and waits until it connects.
    pub(crate) fn start(&self, config: &Value) -> ChildGuard {
        self.start_as(&[], config)
    }

    fn command(&self, wrapper: &[&str], config: &Value) -> Command {
        self.write(config);
        let words = [wrapper, &[env!("CARGO_BIN_EXE_vpn-client")]].concat();
        let mut command = self.ns.command(words[0]);
        let path = self.dir.join("vpn-client.yaml");
        command.args(&words[1..]).arg("--config").arg(path);
        command
    }

    /// Replaces the configuration file.
    pub(crate) fn write(&self, config: &Value) {
        let text = config.to_string();
        self.dir.replace("vpn-client.yaml", text).unwrap();
    }

    /// Asks the probe port; `None` while it does not answer.
    pub(crate) fn probe(&self, path: &str) -> Option<Response> {
        self.get(PROBES, path)
    }

    /// Asks the admin address.
    pub(crate) fn admin(&self, path: &str) -> Response {
        self.get(ADMIN, path).unwrap()
    }

    fn get(&self, address: &str, path: &str) -> Option<Response> {
        let target = Target::plain(address.parse::<SocketAddr>().unwrap());
        let get = || http::get(&target, path).ok();
        Place::In(&self.ns).run(get).unwrap()
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.probe("/readyz")
            .is_some_and(|answer| answer.status == 200)
    }

    /// Waits until the client is ready, or is not.
    pub(crate) fn wait_ready(&self, ready: bool) {
        let what = format!("the client to be ready: {ready}");
        wait::until(&what, LIMIT, || self.is_ready() == ready).unwrap();
    }

    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.probe("/metrics")?.text();
        Metrics::parse(&text).unwrap().value(name, labels)
    }

    /// Waits until a metric has at least a value.
    pub(crate) fn wait_metric(&self, name: &str, labels: &[(&str, &str)], least: f64) {
        let what = format!("{name} {labels:?} of {least}");
        let there = || {
            self.metric(name, labels)
                .is_some_and(|value| value >= least)
        };
        wait::until(&what, LIMIT, there).unwrap();
    }

    pub(crate) fn has_device(&self) -> bool {
        self.ns.ip(&["link", "show", DEVICE]).is_ok()
    }

    /// Returns what `nft` prints.
    pub(crate) fn nft(&self, arguments: &[&str]) -> String {
        command::run(self.ns.command("nft").args(arguments)).unwrap()
    }

    /// Reads or writes a switch below `/proc/sys/net`.
    pub(crate) fn switch(&self, name: &str, value: Option<&str>) -> String {
        let path = format!("/proc/sys/net/{name}");
        let act = || {
            if let Some(value) = value {
                std::fs::write(&path, value).unwrap();
            }
            std::fs::read_to_string(&path).unwrap()
        };
        self.ns.run(act).unwrap().trim().to_owned()
    }
}

/// Checks how a program ended: with `code`, and saying `said`.
pub(crate) fn expect(output: &Output, code: i32, said: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(errors.contains(said), "{said:?} is not in {errors}");
}
