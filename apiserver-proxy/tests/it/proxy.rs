//! Proxies under test: in process on a thread of their own, or as a child process.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use apiserver_proxy::{Config, Proxy};
use serde_json::{Value, json};
use serve::Drain;
use telemetry::{EndpointAddr, LogControl};
use testkit::http::{self, Response, Target};
use testkit::metrics::Metrics;
use testkit::process::ChildGuard;
use testkit::tempdir::TempDir;
use testkit::wait;
use tokio::runtime::Handle;

/// A hang is a failure; nothing here takes a tenth of this.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// What `upstream.destination` is in these tests' CONNECT mode.
pub(crate) const DESTINATION: &str =
    "outbound|443||kube-apiserver.shoot--foo--bar.svc.cluster.local";

/// Returns an upstream in proxy-protocol mode.
pub(crate) fn by_proxy_header(gateway: impl ToString) -> Value {
    json!({ "address": gateway.to_string(), "mode": "proxy-protocol" })
}

/// Returns an upstream in http-connect mode.
pub(crate) fn by_connect(gateway: impl ToString) -> Value {
    json!({
        "address": gateway.to_string(), "mode": "http-connect", "destination": DESTINATION,
    })
}

/// Returns `base` with the keys of `more` set.
pub(crate) fn with(mut base: Value, more: Value) -> Value {
    let (Value::Object(all), Value::Object(more)) = (&mut base, more) else {
        panic!("two objects")
    };
    all.extend(more);
    base
}

/// Returns a configuration that touches nothing of the node, with `more` keys set.
pub(crate) fn config(upstream: Value, more: Value) -> Value {
    let base = json!({
        "listen": ["127.0.0.1:0"],
        "upstream": upstream,
        "interface": { "manage": false },
        "noTrack": "off",
        "probes": { "address": "127.0.0.1:0" },
        "drain": { "delay": "0s", "timeout": "1s" },
    });
    with(base, more)
}

/// A proxy in this process. Dropping it cuts its connections and waits for its end.
#[derive(Debug)]
pub(crate) struct Running {
    addresses: Vec<SocketAddr>,
    pub(crate) probes: SocketAddr,
    pub(crate) admin: EndpointAddr,
    drain: Drain,
    runtime: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a proxy. JSON is YAML.
    pub(crate) fn start(config: &Value) -> Self {
        let config: Config =
            settings::from_text(&config.to_string(), Path::new("test.yaml")).unwrap();
        let (sender, started) = channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let proxy = Proxy::start(config, LogControl::detached()).await.unwrap();
                let service = &proxy;
                let EndpointAddr::Tcp(probes) = service.endpoints().probes else {
                    panic!("probes answer over TCP")
                };
                sender
                    .send(Self {
                        addresses: proxy.addresses().collect(),
                        probes,
                        admin: service.endpoints().admin.clone(),
                        drain: service.drain().clone(),
                        runtime: Handle::current(),
                        thread: None,
                    })
                    .unwrap();
                proxy.run(None).await.unwrap();
            });
        });
        let mut running = started.recv_timeout(LIMIT).expect("the proxy starts");
        running.thread = Some(thread);
        running
    }

    /// Returns the first listener's address.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Connects to the first listener.
    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.addr())
    }

    /// Asks the probe port for `path`.
    pub(crate) fn probe(&self, path: &str) -> Response {
        http::get(&Target::plain(self.probes), path).unwrap()
    }

    /// Reads the metrics.
    pub(crate) fn metrics(&self) -> Metrics {
        metrics(self.probes)
    }

    /// Returns how many connections ended for `reason`.
    pub(crate) fn closed(&self, reason: &str) -> f64 {
        let labels = [("reason", reason)];
        let name = "rhizome_connections_closed_total";
        self.metrics().value(name, &labels).unwrap_or(0.0)
    }

    /// Waits until `count` connections have ended, all for `reason`.
    pub(crate) fn wait_closed(&self, reason: &str, count: f64) {
        let all = || {
            let closed = self
                .metrics()
                .value("rhizome_connections_closed_total", &[]);
            closed.unwrap_or(0.0) >= count
        };
        wait::until("connections to end", LIMIT, all).unwrap();
        let ended = self.metrics();
        let ended: Vec<_> = ended
            .matching("rhizome_connections_closed_total", &[])
            .collect();
        assert!(
            ended.len() == 1 && ended[0].labels["reason"] == reason && ended[0].value == count,
            "wanted {count} {reason}: {ended:?}"
        );
    }

    /// Starts draining, as SIGTERM does.
    pub(crate) fn drain(&self) {
        let _inside = self.runtime.enter();
        self.drain.begin();
    }

    /// Waits for the proxy to end by itself.
    pub(crate) fn wait_ended(mut self) {
        let thread = self.thread.take().unwrap();
        wait::until("the proxy's end", LIMIT, || thread.is_finished()).unwrap();
        thread.join().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.drain.cut();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Connects with a limit to each read.
pub(crate) fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads the metrics that are served at `probes`.
pub(crate) fn metrics(probes: SocketAddr) -> Metrics {
    let answer = http::get(&Target::plain(probes), "/metrics").unwrap();
    Metrics::parse(&answer.text()).unwrap()
}

/// Ends the client's writes and reads the rest.
pub(crate) fn finish(mut stream: TcpStream) -> Vec<u8> {
    use std::io::Read;

    stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    rest
}

/// The binary as a child process.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) child: ChildGuard,
    pub(crate) addr: SocketAddr,
    pub(crate) probes: SocketAddr,
    _dir: TempDir,
}

impl Program {
    /// Starts the binary and learns its ports from its log.
    pub(crate) fn start(config: &Value) -> Self {
        let dir = TempDir::new("apiserver-proxy").unwrap();
        let mut command = program();
        command.args(["--log-format", "json", "--config"]);
        command.arg(write(&dir, &config.to_string()));
        let log = dir.join("log");
        let mut child = ChildGuard::spawn("apiserver-proxy", &command, &log).unwrap();
        let probes = child.wait_log("serving probes", LIMIT).unwrap();
        let listener = format!("\"listener\":{}", config["listen"][0]);
        let listening = child.wait_log(&listener, LIMIT).unwrap();
        Self {
            child,
            addr: address(&listening),
            probes: address(&probes),
            _dir: dir,
        }
    }
}

/// Returns the binary, to be given arguments.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_apiserver-proxy"))
}

/// Writes a configuration file.
pub(crate) fn write(dir: &TempDir, text: &str) -> PathBuf {
    dir.write("proxy.yaml", text).unwrap()
}

/// Finds the field `address` of a JSON log line, at whatever depth it is.
fn address(line: &str) -> SocketAddr {
    let (_, rest) = line.split_once("\"address\":\"").unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}
