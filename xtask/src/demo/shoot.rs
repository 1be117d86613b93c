//! One shoot: its names, and the API server that answers for it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use testkit::api_server::ApiServer;
use testkit::certs::Authority;
use testkit::command;
use testkit::http::{self, Connection, Target};
use testkit::netns::{Namespace, Place};
use testkit::peers::kube::{Egress, KubeApiServer, KubeParams};

use super::network::{API_SERVERS, KONNECTIVITY};
use super::ticker::Ticker;
use super::watcher::Watcher;
use super::{konnectivity, tunnel};

/// A shoot and its API server.
#[derive(Debug)]
pub(super) struct Shoot {
    pub(super) letter: char,
    server: Server,
    authority_pem: String,
    /// Signs its kubelets' certificates.
    pub(super) kubelets: Authority,
    token: Option<String>,
}

#[derive(Debug)]
enum Server {
    Real {
        server: Box<KubeApiServer>,
        _ticker: Ticker,
    },
    StandIn {
        _server: ApiServer,
    },
}

impl Shoot {
    /// Starts the stand-in.
    pub(super) fn with_stand_in(letter: char, seed: &Namespace) -> Result<Self> {
        let authority = Authority::new(&format!("ca of shoot {letter}"))?;
        let identity = authority.server(&certificate_names(letter))?;
        let listener = Place::In(seed).bind(endpoint(letter))?;
        let server = ApiServer::start(listener, &technical_id(letter), &identity)?;
        let authority_pem = authority.pem().to_owned();
        Ok(Self {
            letter,
            server: Server::StandIn { _server: server },
            authority_pem,
            kubelets: Authority::new(&format!("kubelets of shoot {letter}"))?,
            token: None,
        })
    }

    /// Starts etcd and kube-apiserver, and writes the objects by which the shoot is told apart.
    pub(super) fn with_kube_apiserver(letter: char, seed: &Namespace, dir: &Path) -> Result<Self> {
        let names = certificate_names(letter);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let dir = dir.join(format!("shoot-{letter}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        let kubelets = Authority::new(&format!("kubelets of shoot {letter}"))?;
        let kubelets_file = kubelets.write(&dir.join("kubelets.crt"))?;
        let egress = dir.join("egress.json");
        Egress::Direct.write(&egress)?;
        let params = KubeParams::new(endpoint(letter), &names);
        let mut params = params.kubelets(&egress, &kubelets_file);
        let services = [
            (KONNECTIVITY, konnectivity::SERVICE),
            (tunnel::SERVER, tunnel::SERVICE),
        ];
        let services = services.map(|(address, name)| (address, name.to_owned()));
        params.hosts = services.to_vec();
        let server = KubeApiServer::start(Place::In(seed), &dir, &params)?;
        let target = server.target();
        seed.run(|| create_config_map(&target, "shoot", "name", &technical_id(letter)))??;
        let ticker = Ticker::start(seed, target)?;
        Ok(Self {
            letter,
            authority_pem: server.authority_pem().to_owned(),
            kubelets,
            token: Some(server.token().to_owned()),
            server: Server::Real {
                server: Box::new(server),
                _ticker: ticker,
            },
        })
    }

    /// Returns a target that trusts this shoot's authority only, and carries its token.
    pub(super) fn target(&self, addr: SocketAddr) -> Target {
        let target = Target::tls(addr, &self.authority_pem).timeout(REQUEST_LIMIT);
        match &self.token {
            Some(token) => target.bearer(token),
            None => target,
        }
    }

    /// Asks whoever answers at `target` for the name of its shoot, and fails unless it is ours.
    pub(super) fn ask(&self, target: &Target) -> Result<String> {
        let answer = http::get(target, self.question())?;
        let value = answer.json()?;
        let name = match self.server {
            Server::Real { .. } => value["data"]["name"].as_str(),
            Server::StandIn { .. } => value["shoot"].as_str(),
        };
        let name = name.with_context(|| format!("an answer without a name: {}", answer.text()))?;
        if name != self.technical_id() {
            bail!(
                "{name} has answered in the place of {}",
                self.technical_id()
            );
        }
        Ok(format!("answered by {name}"))
    }

    /// Asks with `kubectl`, by server name; only a real API server understands it.
    pub(super) fn ask_by_kubectl(
        &self,
        place: Place<'_>,
        addr: SocketAddr,
        dir: &Path,
    ) -> Result<String> {
        let Server::Real { server, .. } = &self.server else {
            bail!("a stand-in knows nothing of kubectl");
        };
        let path = dir.join(format!("kubeconfig-{}", self.letter));
        server.write_kubeconfig(&path, addr, Some(&self.host()))?;
        let mut kubectl = place.command(command::require("kubectl")?);
        kubectl.arg("--kubeconfig").arg(&path);
        kubectl.args([
            "get",
            "configmap",
            "shoot",
            "--output",
            "jsonpath={.data.name}",
        ]);
        let name = command::run(&mut kubectl)?;
        if name != self.technical_id() {
            bail!(
                "{name} has answered in the place of {}",
                self.technical_id()
            );
        }
        Ok(format!("answered by {name}"))
    }

    /// Has the API server reach its nodes by `egress`: writes the file and starts it anew, for it
    /// reads the file once. Its watches end with it.
    pub(super) fn select_egress(
        &mut self,
        seed: &Namespace,
        dir: &Path,
        egress: &Egress,
    ) -> Result<()> {
        egress.write(
            &dir.join(format!("shoot-{}", self.letter))
                .join("egress.json"),
        )?;
        let server = self.real()?;
        server.child().kill()?;
        server.start_again(Place::In(seed))
    }

    /// Returns the real API server.
    pub(super) fn real(&mut self) -> Result<&mut KubeApiServer> {
        match &mut self.server {
            Server::Real { server, .. } => Ok(server),
            Server::StandIn { .. } => bail!("a stand-in has no nodes"),
        }
    }

    /// Tells whether a real kube-apiserver answers.
    pub(super) fn is_real(&self) -> bool {
        matches!(self.server, Server::Real { .. })
    }

    /// Opens a watch and follows it on a thread.
    pub(super) fn watch(&self, place: Place<'_>, target: &Target) -> Result<Watcher> {
        let connection = place.run(|| Connection::open(target))??;
        match self.server {
            Server::Real { .. } => Watcher::follow(connection, super::ticker::WATCH, |event| {
                event["object"]["data"]["sequence"].as_str()?.parse().ok()
            }),
            Server::StandIn { .. } => {
                Watcher::follow(connection, "/api/v1/pods?watch=1", |event| {
                    event["sequence"].as_u64()
                })
            }
        }
    }

    /// Returns the path whose answer names the shoot.
    pub(super) fn question(&self) -> &'static str {
        match self.server {
            Server::Real { .. } => "/api/v1/namespaces/default/configmaps/shoot",
            Server::StandIn { .. } => "/version",
        }
    }

    pub(super) fn authority_pem(&self) -> &str {
        &self.authority_pem
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.token.as_deref()
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

/// Creates a ConfigMap in the namespace `default` with one key.
pub(super) fn create_config_map(target: &Target, name: &str, key: &str, value: &str) -> Result<()> {
    let body = serde_json::json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": name },
        "data": { key: value },
    });
    let path = "/api/v1/namespaces/default/configmaps";
    // The namespace `default` comes a moment after /readyz.
    testkit::wait::until_ok("the namespace default", Duration::from_secs(20), || {
        let answer = Connection::open(target)?.request("POST", path, Some(&body.to_string()))?;
        if answer.status != 201 {
            bail!(
                "creating the ConfigMap {name}: {}: {}",
                answer.status,
                answer.text()
            );
        }
        Ok(())
    })
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
