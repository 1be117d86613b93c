//! One shoot: its names, and the API server that answers for it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Connection, Target};
use testkit::netns::{Namespace, Place};

use super::network::API_SERVERS;
use super::watcher::Watcher;

#[derive(Debug)]
pub(super) struct Shoot {
    pub(super) letter: char,
    pub(super) host: String,
    /// The name of its control plane's namespace, in Gardener's form.
    pub(super) technical_id: String,
    pub(super) cluster: String,
    pub(super) endpoint: SocketAddr,
    /// The address of its API server's Service, by which PROXY headers tell it apart.
    pub(super) service: IpAddr,
    pub(super) authority_pem: String,
    pub(super) kubelets: Authority,
    _server: ApiServer,
}

impl Shoot {
    pub(super) fn with_stand_in(letter: char, seed: &Namespace) -> Result<Self> {
        let index = usize::from(letter != 'a');
        let host = format!("api.{letter}.demo.example.com");
        let technical_id = format!("shoot--demo--{letter}");
        let endpoint = SocketAddr::new(API_SERVERS[index], 443);
        let authority = Authority::new(&format!("ca of shoot {letter}"))?;
        // Pods may know it under both addresses.
        let identity = authority.server(&[&host, SERVICES[0], SERVICES[1]])?;
        let listener = Place::In(seed).bind(endpoint)?;
        Ok(Self {
            letter,
            cluster: format!("outbound|443||kube-apiserver.{technical_id}.svc.cluster.local"),
            endpoint,
            service: SERVICES[index].parse()?,
            authority_pem: authority.pem().to_owned(),
            kubelets: Authority::new(&format!("kubelets of shoot {letter}"))?,
            _server: ApiServer::start_http2(listener, &technical_id, &identity)?,
            host,
            technical_id,
        })
    }

    pub(super) fn target(&self, addr: SocketAddr) -> Target {
        Target::tls(addr, &self.authority_pem).timeout(REQUEST_LIMIT)
    }

    /// Asks the server at `target` for the name of its shoot, and fails unless it is ours.
    pub(super) fn ask(&self, target: &Target) -> Result<String> {
        let answer = http::get(target, "/version")?;
        let value = answer.json()?;
        let name = value["shoot"].as_str();
        let name = name.with_context(|| format!("an answer without a name: {}", answer.text()))?;
        let own = &self.technical_id;
        ensure!(name == own, "{name} has answered in the place of {own}");
        Ok(format!("answered by {name}"))
    }

    /// Opens a watch and follows it on a thread.
    pub(super) fn watch(&self, place: Place<'_>, target: &Target) -> Result<Watcher> {
        let connection = place.run(|| Connection::open(target))??;
        Watcher::follow(connection, "/api/v1/pods?watch=1")
    }
}

const REQUEST_LIMIT: Duration = Duration::from_secs(5);
const SERVICES: [&str; 2] = ["10.1.2.3", "10.1.2.4"];
