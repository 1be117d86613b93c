//! Every certificate of a run, and both ends with theirs.
//!
//! ```text
//! clients.crt ─▶ the load's        serving.crt ◀─ the gateway's ─▶ front-proxy.crt        cluster.crt ─▶ the servers'
//! ```

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::ServerConfig;
use testkit::certs::{self, Authority, Identity};
use testkit::netns::Place;
use testkit::tempdir::TempDir;

use super::client::Client;
use super::server::{Server, USER};
use crate::cpus::Bound;
use crate::profile::{Listener, Profile, Route, Setting, Target};
use crate::programs::Given;

/// The files go with it.
#[derive(Debug)]
pub(crate) struct World {
    dir: TempDir,
    /// Of what clients see.
    serving: Authority,
    /// Of what a gateway sees.
    cluster: Authority,
    client: Identity,
    front_proxy: Identity,
    servers: Arc<ServerConfig>,
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        let dir = TempDir::new("bench-https")?;
        let authority = |name: &str| Authority::new(name);
        let (serving, cluster) = (authority("serving")?, authority("cluster")?);
        let (clients, front) = (authority("clients")?, authority("front-proxy")?);
        let name = Route::numbered(0, (Ipv4Addr::LOCALHOST, 0).into()).name;
        let own = serving.server(&[&name])?;
        own.write(dir.path(), "serving")?;
        let front_proxy = front.client("system:istio-gateway", &[], &[])?;
        front_proxy.write(dir.path(), "front-proxy")?;
        clients.write(&dir.join("clients.crt"))?;
        cluster.write(&dir.join("cluster.crt"))?;
        let server = cluster.server(&[UPSTREAM_NAME, &name])?;
        Ok(Self {
            client: clients.client(USER, &["system:nodes"], &[])?,
            servers: certs::optional_server_config(&server, front.pem(), &ANY)?,
            dir,
            serving,
            cluster,
            front_proxy,
        })
    }

    pub(crate) fn servers(&self, count: usize) -> Result<Vec<Server>> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        (0..count).map(|_| self.server(any)).collect()
    }

    pub(crate) fn server(&self, address: SocketAddr) -> Result<Server> {
        Server::start(address, Arc::clone(&self.servers))
    }

    /// Starts a profile, by whose route every server is reached.
    pub(crate) fn start(
        &self,
        profile: &Profile,
        servers: &[Server],
        (place, given, cpus): (Place<'_>, &[Given], &Bound),
    ) -> Result<Target> {
        let dir = self.dir.path().to_str();
        let dir = dir.context("a directory whose name is no text")?;
        let routes = servers.iter().map(|own| Route::numbered(0, own.address()));
        let setting = Setting {
            place,
            cpus,
            given,
            listener: Listener::Https,
            routes: routes.collect(),
        };
        Target::start(&profile.clone().with("certs", dir), &setting)
    }

    /// Returns whom the load talks to; without a gateway it shows the gateway's certificate.
    pub(crate) fn client(&self, profile: &Profile, target: &Target) -> Result<Client> {
        let (authority, identity, user) = if profile.is_direct() {
            (&self.cluster, &self.front_proxy, USER)
        } else {
            (&self.serving, &self.client, "system:admin")
        };
        let config = |alpn| certs::mutual_client_config(authority.pem(), Some(identity), &[alpn]);
        let [http1, http2] = ["http/1.1", "h2"].map(|alpn| {
            let mut config = Arc::unwrap_or_clone(config(alpn)?);
            // Each handshake is a full one.
            config.resumption = rustls::client::Resumption::disabled();
            anyhow::Ok(Arc::new(config))
        });
        let first = target.routes().first().context("no routes")?;
        Ok(Client {
            address: target.address(),
            name: first.name.clone(),
            user,
            http1: http1?,
            http2: http2?,
        })
    }
}

const UPSTREAM_NAME: &str = "kubernetes.default.svc.cluster.local";
const ANY: [&str; 2] = ["h2", "http/1.1"];
