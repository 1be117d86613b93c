//! A node: a namespace, a directory, and the program in it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::command;
use testkit::http::{self, Response, Target};
use testkit::metrics::Metrics;
use testkit::netns::{Namespace, Place};
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::upstream::{Behavior, Upstream};
use testkit::wait;

/// A hang is a failure; nothing here takes a tenth of this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The device that holds the addresses.
pub(crate) const DEVICE: &str = "apiserver-proxy";

/// The address of most tests, and where the proxy listens at it.
pub(crate) const ADDRESS: &str = "10.1.2.3";
pub(crate) const LISTEN: &str = "10.1.2.3:443";

/// Where a node's gateway listens, unless a test has another.
pub(crate) const GATEWAY: &str = "127.0.0.1:8443";

const PROBES: &str = "127.0.0.1:16910";

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ns: Namespace,
    pub(crate) dir: TempDir,
}

/// Returns a configuration with `more` keys set.
pub(crate) fn config(more: Value) -> Value {
    let mut all = json!({
        "listen": [LISTEN],
        "upstream": { "address": GATEWAY, "mode": "proxy-protocol" },
        "noTrack": "off",
        "probes": { "address": PROBES },
        "drain": { "delay": "0s", "timeout": "1s" },
    });
    let (Value::Object(base), Value::Object(more)) = (&mut all, more) else {
        panic!("two objects")
    };
    base.extend(more);
    all
}

impl Node {
    pub(crate) fn new(label: &str) -> Self {
        Self {
            ns: Namespace::new(label).unwrap(),
            dir: TempDir::new("node").unwrap(),
        }
    }

    /// Starts an echoing gateway at [`GATEWAY`].
    pub(crate) fn gateway(&self) -> Upstream {
        let listener = Place::In(&self.ns).bind(at(GATEWAY)).unwrap();
        Upstream::serve(listener, Behavior::Echo).unwrap()
    }

    /// Runs the program to its end with `arguments`, behind the words of `wrapper`.
    pub(crate) fn run_as(&self, wrapper: &[&str], arguments: &[&str], config: &Value) -> Output {
        let mut command = self.command(wrapper, config);
        command.args(arguments);
        command::output(&mut command).unwrap()
    }

    /// Runs the program to its end with `arguments`.
    pub(crate) fn run(&self, arguments: &[&str], config: &Value) -> Output {
        self.run_as(&[], arguments, config)
    }

    /// Starts the program, behind the words of `wrapper`.
    pub(crate) fn spawn_as(&self, wrapper: &[&str], config: &Value) -> ChildGuard {
        let command = self.command(wrapper, config);
        let log = self.written(config).with_extension("log");
        ChildGuard::spawn("apiserver-proxy", &command, &log).unwrap()
    }

    /// Starts the program and waits until it is ready.
    pub(crate) fn start_as(&self, wrapper: &[&str], config: &Value) -> ChildGuard {
        self.ready(self.spawn_as(wrapper, config))
    }

    /// Starts the keeper of addresses and waits until it is ready.
    pub(crate) fn keep(&self, config: &Value) -> ChildGuard {
        let mut command = self.command(&[], config);
        command.arg("keep");
        let log = self.dir.join("keep.log");
        self.ready(ChildGuard::spawn("the keeper", &command, &log).unwrap())
    }

    fn ready(&self, mut child: ChildGuard) -> ChildGuard {
        let ready = || {
            self.probe("/ready")
                .is_some_and(|answer| answer.status == 200)
        };
        child.wait_ready(LIMIT, ready).unwrap();
        child
    }

    /// Starts the program and waits until it is ready.
    pub(crate) fn start(&self, config: &Value) -> ChildGuard {
        self.start_as(&[], config)
    }

    fn command(&self, wrapper: &[&str], config: &Value) -> Command {
        let path = self.written(config);
        let words = [wrapper, &[env!("CARGO_BIN_EXE_apiserver-proxy")]].concat();
        let mut command = self.ns.command(words[0]);
        command.args(&words[1..]).arg("--config").arg(path);
        command
    }

    /// Returns the file of a configuration: what a process reads is not written again.
    fn written(&self, config: &Value) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        config.to_string().hash(&mut hasher);
        let name = format!("proxy-{:016x}.yaml", hasher.finish());
        let path = self.dir.join(&name);
        if !path.exists() {
            self.dir.write(&name, config.to_string()).unwrap();
        }
        path
    }

    /// Returns a command prefix that gives a program `nameserver` in `/etc/resolv.conf` and an
    /// empty `/etc/hosts`. `ip netns exec` has given it mounts of its own.
    pub(crate) fn resolving_at(&self, nameserver: &str) -> Vec<String> {
        let resolv = format!("nameserver {nameserver}\noptions timeout:1 attempts:1\n");
        let resolv: PathBuf = self.dir.write("resolv.conf", resolv).unwrap();
        let hosts = self.dir.write("hosts", "").unwrap();
        let script = format!(
            "mount --bind {} /etc/resolv.conf && mount --bind {} /etc/hosts && exec \"$@\"",
            resolv.display(),
            hosts.display()
        );
        ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec()
    }

    /// Asks the probe port for `path`; `None` while no process answers.
    pub(crate) fn probe(&self, path: &str) -> Option<Response> {
        let target = Target::plain(at(PROBES)).timeout(Duration::from_secs(5));
        self.ns.run(|| http::get(&target, path)).unwrap().ok()
    }

    /// Waits until the probe answers with `status`.
    pub(crate) fn wait_ready(&self, status: u16) {
        wait::until(&format!("readiness {status}"), LIMIT, || {
            self.probe("/ready")
                .is_some_and(|answer| answer.status == status)
        })
        .unwrap();
    }

    /// Returns a metric's value, summed over its labels.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let text = self.probe("/metrics")?.text();
        Metrics::parse(&text).unwrap().value(name, labels)
    }

    /// Waits until a metric has `value`.
    pub(crate) fn wait_metric(&self, name: &str, labels: &[(&str, &str)], value: f64) {
        wait::until(&format!("{name} to be {value}"), LIMIT, || {
            self.metric(name, labels) == Some(value)
        })
        .unwrap();
    }

    /// Connects from the node itself.
    pub(crate) fn connect(&self, address: &str) -> std::io::Result<TcpStream> {
        let address = at(address);
        let connect = || TcpStream::connect_timeout(&address, LIMIT);
        let connected = self.ns.run(connect).map_err(std::io::Error::other)?;
        connected.and_then(|stream| stream.set_read_timeout(Some(LIMIT)).map(|()| stream))
    }

    /// Has a word echoed by the gateway; returns what came back before it.
    pub(crate) fn converse(&self, address: &str) -> Vec<u8> {
        converse(self.connect(address).unwrap())
    }

    /// Returns `address/prefix` of everything on `device` but what the kernel puts there itself.
    pub(crate) fn addresses_of(&self, device: &str) -> Vec<String> {
        let shown = self.ns.ip(&["-o", "addr", "show", "dev", device]).unwrap();
        shown
            .lines()
            .filter(|line| !line.contains("scope link"))
            .filter_map(|line| line.split_whitespace().nth(3))
            .map(str::to_owned)
            .filter(|address| address != "127.0.0.1/8" && address != "::1/128")
            .collect()
    }

    /// Tells whether there is such a device.
    pub(crate) fn has(&self, device: &str) -> bool {
        self.ns.ip(&["link", "show", device]).is_ok()
    }

    /// Runs `nft` with `arguments`.
    pub(crate) fn nft(&self, arguments: &[&str]) -> String {
        command::run(self.ns.command("nft").args(arguments)).unwrap()
    }
}

pub(crate) fn at(address: &str) -> SocketAddr {
    address.parse().unwrap()
}

/// Has a word echoed by the gateway; returns what came back before it.
pub(crate) fn converse(mut stream: TcpStream) -> Vec<u8> {
    stream.write_all(b"hello").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back.ends_with(b"hello"), "{back:?}");
    back.truncate(back.len() - 5);
    back
}

/// Sends a word on an open connection and waits for its echo.
pub(crate) fn ping(stream: &mut TcpStream) {
    stream.write_all(b"ping").unwrap();
    let mut back = Vec::new();
    let mut byte = [0];
    while !back.ends_with(b"ping") {
        stream.read_exact(&mut byte).unwrap();
        back.extend(byte);
    }
}

/// Expects the program to have ended well, or with 1 and these words on standard error.
pub(crate) fn expect(output: &Output, failure: Option<&str>) {
    let told = String::from_utf8_lossy(&output.stderr);
    match failure {
        None => assert_eq!(output.status.code(), Some(0), "{told}"),
        Some(words) => {
            assert_eq!(output.status.code(), Some(1), "{told}");
            assert!(told.contains(words), "{words} is not in {told}");
        }
    }
}
