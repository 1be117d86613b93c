//! One shoot: its names, and the API server that answers for it.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::http::{self, Connection, Target};
use testkit::netns::{Namespace, Place};

use super::network::API_SERVERS;
use super::watcher::Watcher;

/// A shoot and its API server.
#[derive(Debug)]
pub(super) struct Shoot {
    pub(super) letter: char,
    _server: ApiServer,
    authority_pem: String,
    /// Signs its kubelets' certificates.
    pub(super) kubelets: Authority,
}

impl Shoot {
    pub(super) fn with_stand_in(letter: char, seed: &Namespace) -> Result<Self> {
        let authority = Authority::new(&format!("ca of shoot {letter}"))?;
        let identity = authority.server(&certificate_names(letter))?;
        let listener = Place::In(seed).bind(endpoint(letter))?;
        let server = ApiServer::start(listener, &technical_id(letter), &identity)?;
        let authority_pem = authority.pem().to_owned();
        Ok(Self {
            letter,
            _server: server,
            authority_pem,
            kubelets: Authority::new(&format!("kubelets of shoot {letter}"))?,
        })
    }

    /// Returns a target that trusts this shoot's authority only.
    pub(super) fn target(&self, addr: SocketAddr) -> Target {
        Target::tls(addr, &self.authority_pem).timeout(REQUEST_LIMIT)
    }

    /// Asks the server at `target` for the name of its shoot, and fails unless it is ours.
    pub(super) fn ask(&self, target: &Target) -> Result<String> {
        let answer = http::get(target, "/version")?;
        let value = answer.json()?;
        let name = value["shoot"].as_str();
        let name = name.with_context(|| format!("an answer without a name: {}", answer.text()))?;
        if name != self.technical_id() {
            bail!(
                "{name} has answered in the place of {}",
                self.technical_id()
            );
        }
        Ok(format!("answered by {name}"))
    }

    /// Opens a watch and follows it on a thread.
    pub(super) fn watch(&self, place: Place<'_>, target: &Target) -> Result<Watcher> {
        let connection = place.run(|| Connection::open(target))??;
        Watcher::follow(connection, "/api/v1/pods?watch=1", |event| {
            event["sequence"].as_u64()
        })
    }

    pub(super) fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    /// Returns the name of its control plane's namespace, in Gardener's form.
    pub(super) fn technical_id(&self) -> String {
        technical_id(self.letter)
    }

    /// Returns the host name users know.
    pub(super) fn host(&self) -> String {
        host(self.letter)
    }

    /// Returns the name of its cluster of endpoints.
    pub(super) fn cluster(&self) -> String {
        format!(
            "outbound|443||kube-apiserver.{}.svc.cluster.local",
            self.technical_id()
        )
    }

    /// Returns where its API server listens, inside the seed.
    pub(super) fn endpoint(&self) -> SocketAddr {
        endpoint(self.letter)
    }

    /// Returns the address of its API server's Service, by which PROXY headers tell it apart.
    pub(super) fn service(&self) -> IpAddr {
        service(self.letter)
    }
}

fn technical_id(letter: char) -> String {
    format!("shoot--demo--{letter}")
}

fn host(letter: char) -> String {
    format!("api.{letter}.demo.example.com")
}

fn endpoint(letter: char) -> SocketAddr {
    SocketAddr::new(API_SERVERS[index(letter)], 443)
}

fn service(letter: char) -> IpAddr {
    IpAddr::from([10, 1, 2, if index(letter) == 0 { 3 } else { 4 }])
}

fn index(letter: char) -> usize {
    usize::from(letter != 'a')
}

/// The certificate is good for the host, and for both addresses under which pods may know it.
fn certificate_names(letter: char) -> Vec<String> {
    vec![
        host(letter),
        service('a').to_string(),
        service('b').to_string(),
    ]
}

const REQUEST_LIMIT: Duration = Duration::from_secs(5);
