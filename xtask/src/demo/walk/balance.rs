//! Two API servers for shoot a: one connection of HTTP/2 stays at one of them, and its requests reach both where TLS
//! ends in the gateway.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::command;
use testkit::netns::Place;

use super::Stage;
use crate::console::Console;
use crate::demo::gateway::{self, Extra};
use crate::demo::network::API_SERVERS;

/// A name of its own for the pair, so that shoot a's own route stays.
const HOST: &str = "balanced.a.demo.example.com";
const REQUESTS: usize = 20;

struct Pair<'a> {
    stage: &'a Stage,
    authority: Authority,
    servers: [ApiServer; 2],
}

pub(super) fn show(console: &mut Console, stage: &Stage) -> Result<()> {
    console.heading("Two API servers behind one name: connections are balanced, or requests");
    let pair = console.step("two API servers for one shoot, inside the seed", || {
        let pair = Pair::start(stage)?;
        let [one, other] = pair.addresses();
        Ok((pair, format!("stand-ins at {one} and {other}")))
    })?;
    console.check("passed through: one HTTP/2 connection stays at one", || {
        pair.route(json!({ "serverNames": [HOST] }))?;
        let counts = pair.ask()?;
        ensure!(counts.contains(&0), "{counts:?} requests");
        Ok(format!(
            "{REQUESTS} requests: {} and {}",
            counts[0], counts[1]
        ))
    })?;
    console.check("TLS ends in the gateway: its requests reach both", || {
        pair.route(json!({ "serverNames": [HOST], "terminate": TERMINATE.parse::<Value>()? }))?;
        let counts = pair.ask()?;
        let balanced = counts.iter().all(|count| *count >= REQUESTS / 4);
        ensure!(balanced, "{counts:?} requests");
        Ok(format!(
            "{REQUESTS} requests: {} and {}",
            counts[0], counts[1]
        ))
    })?;
    console.check("the routes are as before", || {
        let [a, b] = &stage.shoots;
        let now = stage.change_routes(&[a, b], &[])?;
        Ok(format!("generation {now}"))
    })
}

impl<'a> Pair<'a> {
    fn start(stage: &'a Stage) -> Result<Self> {
        let authority = Authority::new("ca of the pair")?;
        let dir = stage.dir.path();
        let identity = authority.server(&[HOST])?;
        identity.write(dir, "balanced")?;
        authority.write(&stage.dir.join("balanced-ca.crt"))?;
        let start = |address: SocketAddr| {
            let listener = Place::In(&stage.network.seed).bind(address)?;
            ApiServer::start_http2(listener, "shoot--demo--a", &identity)
        };
        let [one, other] = API_SERVERS.map(|ip| start(SocketAddr::new(ip, 6443)));
        Ok(Self {
            stage,
            authority,
            servers: [one?, other?],
        })
    }

    fn addresses(&self) -> [SocketAddr; 2] {
        [self.servers[0].addr(), self.servers[1].addr()]
    }

    /// Leads the name to both, by this rule.
    fn route(&self, rule: Value) -> Result<()> {
        let [a, b] = &self.stage.shoots;
        let extra = Extra {
            cluster: "balanced".to_owned(),
            endpoints: self.addresses().to_vec(),
            rule,
        };
        self.stage.change_routes(&[a, b], &[extra]).map(drop)
    }

    /// Asks over one connection, and returns how many requests each server answered.
    fn ask(&self) -> Result<[usize; 2]> {
        let counts = || self.servers.each_ref().map(|own| own.requests());
        let before = counts();
        let ca = self.authority.write(&self.stage.dir.join("balanced.ca"))?;
        let mut curl = Place::In(&self.stage.network.user).command(command::require("curl")?);
        curl.args(["--silent", "--show-error", "--max-time", "10", "--http2"]);
        curl.args([
            "--noproxy",
            "*",
            "--write-out",
            "%{http_version} %{num_connects}\n",
        ]);
        curl.arg("--cacert").arg(ca);
        let gateway = gateway::TLS;
        let resolved = format!("{HOST}:{}:{}", gateway.port(), gateway.ip());
        curl.arg("--resolve").arg(resolved);
        for _ in 0..REQUESTS {
            curl.args(["--output", "/dev/null"]);
            curl.arg(format!("https://{HOST}/version"));
        }
        let said = command::run(&mut curl)?;
        let lines: Vec<_> = said.lines().collect();
        let one = lines.first() == Some(&"2 1") && lines[1..].iter().all(|line| *line == "2 0");
        ensure!(
            one && lines.len() == REQUESTS,
            "not one connection of HTTP/2: {said}"
        );
        let after = counts();
        Ok([after[0] - before[0], after[1] - before[1]])
    }
}

const TERMINATE: &str = r#"{
    "certificate": { "cert": "balanced.crt", "key": "balanced.key" },
    "upstream": { "authorities": "balanced-ca.crt", "serverName": "balanced.a.demo.example.com" }
}"#;
