//! A gateway in process, on a control runtime of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use serve::Drain;
use sni_proxy::{Config, Environment};
use telemetry::{EndpointAddr, LogControl};
use testkit::tempdir::TempDir;

use super::Probe;

/// A gateway with its directory, on ports of its own. Dropping it cuts it and waits for its end.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) dir: TempDir,
    listeners: BTreeMap<String, SocketAddr>,
    probe: Probe,
    drain: Drain,
    thread: Option<JoinHandle<()>>,
}

struct Started {
    listeners: BTreeMap<String, SocketAddr>,
    probe: Probe,
    drain: Drain,
}

impl Gateway {
    /// Starts with `config`, to which everything but listeners and limits is added, and `routes`.
    pub(crate) fn start(config: &str, routes: &str) -> Self {
        Self::start_in_zone(None, config, routes)
    }

    pub(crate) fn start_in_zone(zone: Option<&str>, config: &str, routes: &str) -> Self {
        let dir = TempDir::new("gateway").unwrap();
        dir.write("routes.yaml", routes).unwrap();
        Self::start_with(dir, zone, config)
    }

    /// Starts in a directory that has its `routes.yaml` already.
    pub(crate) fn start_with(dir: TempDir, zone: Option<&str>, config: &str) -> Self {
        let text = whole(config);
        let config: Config = settings::from_text(&text, &dir.join("sni-proxy.yaml")).unwrap();
        let (started, starting) = channel();
        let zone = zone.map(str::to_owned);
        let thread = std::thread::spawn(move || run(config, zone, &started));
        let Ok(Started {
            listeners,
            probe,
            drain,
        }) = starting.recv()
        else {
            panic!("the gateway did not start with\n{text}");
        };
        Self {
            dir,
            listeners,
            probe,
            drain,
            thread: Some(thread),
        }
    }

    pub(crate) fn addr(&self, listener: &str) -> SocketAddr {
        self.listeners[listener]
    }
}

impl Deref for Gateway {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        &self.probe
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.drain.cut();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// Adds what no test asks about; blocks that `config` has itself stay.
pub(super) fn whole(config: &str) -> String {
    let defaults = [
        ("workers:", "workers: 2\n"),
        ("probes:", "probes: { address: \"127.0.0.1:0\" }\n"),
        ("admin:", "admin: { address: \"127.0.0.1:0\" }\n"),
        ("routing:", "routing: { file: routes.yaml }\n"),
        ("drain:", "drain: { delay: 0s, timeout: 5s }\n"),
    ];
    let has = |key: &str| config.lines().any(|line| line.starts_with(key));
    let missing = defaults.iter().filter(|(key, _)| !has(key));
    missing.map(|(_, text)| *text).collect::<String>() + config
}

fn run(config: Config, zone: Option<String>, started: &Sender<Started>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let names: Vec<String> = settings::effective(&config)["listeners"]
        .as_array()
        .unwrap()
        .iter()
        .map(|listener| listener["name"].as_str().unwrap().to_owned())
        .collect();
    runtime.block_on(async move {
        let log = LogControl::detached();
        let gateway = sni_proxy::Gateway::start(config, zone, &Environment::default(), log)
            .await
            .unwrap();
        let tcp = |address: &EndpointAddr| match address {
            EndpointAddr::Tcp(address) => *address,
            EndpointAddr::Unix(_) | EndpointAddr::None => panic!("not TCP: {address}"),
        };
        let service = &gateway;
        let listeners = names.into_iter().map(|name| {
            let address = gateway.listener_address(&name).unwrap();
            (name, address)
        });
        let running = Started {
            listeners: listeners.collect(),
            probe: Probe {
                probes: tcp(&service.endpoints().probes),
                admin: tcp(&service.endpoints().admin),
            },
            drain: service.drain().clone(),
        };
        started.send(running).unwrap();
        gateway.run(None).await.unwrap();
    });
}
