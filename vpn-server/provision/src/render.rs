//! What follows from the state: the Secret of each end, and the annotations of the servers' Services.
//!
//! ```text
//!   State, Wanted ─▶ seed:  Secrets of each server, of the proxy, of API servers; annotations
//!                    shoot: a Secret of each client
//! ```
//!
//! The same in, the same out. Files in a Secret keep their names whatever phase a rotation is in:
//! no pod's configuration has to change, only what is in its files. Files beside a configuration
//! are named relative to it, so that a Secret may be mounted anywhere.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde_json::{Map, Value, json};
use settings::ConfigError;
use tunnel::keys::KeyTextError;
use tunnel::settings::{Environment, TunnelAddress};

use super::manifest::to_yaml;
use super::state::{Authority, Keys, Leaf, Phase, Secret, State, Which};
use crate::config::Wanted;

telemetry::labels! {
    /// Where something belongs.
    pub(super) enum Side {
        /// The cluster of control planes.
        Seed = "seed",
        /// The cluster that they control.
        Shoot = "shoot",
    }
}

/// A Secret.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SecretObject {
    pub(super) side: Side,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) data: BTreeMap<String, String>,
}

/// Annotations of a Service that the manifests create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Annotated {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) annotations: BTreeMap<String, String>,
}

/// Everything but the state itself.
#[derive(Clone)]
pub(super) struct Objects {
    pub(super) secrets: Vec<SecretObject>,
    pub(super) services: Vec<Annotated>,
}

/// Why nothing can be made of state and parameters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RenderError {
    #[error("the configuration of {end}, made of these parameters")]
    Config {
        end: String,
        #[source]
        source: ConfigError,
    },
    #[error("a key in the state")]
    Key(#[from] KeyTextError),
}

/// Returns the Secret that holds the state, without its content.
pub(super) fn state_secret(wanted: &Wanted) -> SecretObject {
    SecretObject {
        side: Side::Seed,
        namespace: wanted.file.namespace.clone(),
        name: STATE.to_owned(),
        data: BTreeMap::new(),
    }
}

/// Returns everything else.
pub(super) fn render(state: &State, wanted: &Wanted) -> Result<Objects, RenderError> {
    let picture = Picture {
        state,
        wanted,
        view: View::of(state.phase),
    };
    let mut secrets = Vec::new();
    for server in 0..state.servers.len() {
        secrets.push(picture.server(server)?);
    }
    let authorities = &state.authorities;
    secrets.push(picture.tls(
        "vpn-seed-server-tls",
        &bundle(authorities, picture.view.servers_trust),
        &state.server_certificate,
    ));
    secrets.push(picture.tls(
        "vpn-seed-server-client",
        &bundle(authorities, picture.view.api_servers_trust),
        &state.client_certificate,
    ));
    for client in 0..state.clients.len() {
        secrets.push(picture.client(client)?);
    }
    let services = (0..state.servers.len()).map(|server| picture.service(server));
    Ok(Objects {
        secrets,
        services: services.collect::<Result<_, _>>()?,
    })
}

/// Which of two keys each side's files hold, of its own and of the other side: the tables at
/// [`Phase`].
struct View {
    servers: Which,
    clients: Which,
    servers_trust: Which,
    api_servers_trust: Which,
}

impl View {
    fn of(phase: Phase) -> Self {
        let (servers, clients, servers_trust, api_servers_trust) = match phase {
            Phase::Completed => (Which::Old, Which::Old, Which::Old, Which::Old),
            Phase::Preparing => (Which::Both, Which::Old, Which::Both, Which::Old),
            Phase::Prepared => (Which::Both, Which::Both, Which::Both, Which::Both),
            Phase::Completing => (Which::Both, Which::New, Which::New, Which::Both),
        };
        Self {
            servers,
            clients,
            servers_trust,
            api_servers_trust,
        }
    }
}

/// Returns the keys by which an end's configuration in `object` differs from what its Secret had
/// `before`, and that its running pod does not apply. Other Secrets have none.
pub(super) fn restart_keys(
    object: &SecretObject,
    before: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let both = |file: &str| Some((before(file)?, object.data.get(file)?.clone()));
    // What cannot be read was not ours, and no pod has started with it.
    let (open, here) = (Environment::default(), Path::new(""));
    let server = |text: &str| vpn_server::Config::from_text(text, here, &open).ok();
    let client = |text: &str| vpn_client::Config::from_text(text, here, &open).ok();
    let of_server = both(SERVER_FILE)
        .and_then(|(before, after)| Some(server(&before)?.restart_keys(&server(&after)?)));
    let of_client = both(CLIENT_FILE)
        .and_then(|(before, after)| Some(client(&before)?.restart_keys(&client(&after)?)));
    of_server.or(of_client).unwrap_or_default()
}

struct Picture<'a> {
    state: &'a State,
    wanted: &'a Wanted,
    view: View,
}

impl Picture<'_> {
    fn server(&self, number: usize) -> Result<SecretObject, RenderError> {
        let own = &self.state.servers[number];
        let mut data = BTreeMap::new();
        private(&mut data, &own.keys, self.view.servers);
        let mut peers = Vec::new();
        for (client, keys) in self.state.clients.iter().enumerate() {
            let mut peer = json!({
                "name": client_name(client),
                "publicKeys": public(keys, self.view.servers)?,
                "addresses": bare(&self.wanted.clients[client]),
            });
            if let Some(shared) = self.preshared(number, client) {
                let file = format!("psk-{client}");
                peer["presharedKey"] = json!(file);
                data.insert(file, line(shared.text()));
            }
            peers.push(peer);
        }
        data.insert("peers.yaml".to_owned(), to_yaml(&json!({ "peers": peers })));
        let mut config = self.wanted.file.server.clone();
        config.insert("name".to_owned(), json!(server_name(number)));
        config.insert("routeId".to_owned(), json!(own.route_id));
        config.insert("addresses".to_owned(), json!(self.wanted.servers[number]));
        config.insert("networks".to_owned(), json!(self.wanted.file.networks));
        let keys = json!({ "private": PRIVATE, "peers": "peers.yaml" });
        config.insert("keys".to_owned(), keys);
        proxy_files(&mut config);
        let (text, file) = (to_yaml(&Value::Object(config)), SERVER_FILE);
        let end = server_name(number);
        let name = format!("{end}{KEYS}");
        vpn_server::Config::from_text(&text, file.as_ref(), &Environment::default())
            .map_err(|source| RenderError::Config { end, source })?;
        data.insert(file.to_owned(), text);
        Ok(self.secret(Side::Seed, name, data))
    }

    fn client(&self, number: usize) -> Result<SecretObject, RenderError> {
        let mut data = BTreeMap::new();
        let own = &self.state.clients[number];
        private(&mut data, own, self.view.clients);
        let mut servers = Vec::new();
        for (server, own) in self.state.servers.iter().enumerate() {
            let mut entry = json!({
                "name": server_name(server),
                "publicKeys": public(&own.keys, self.view.clients)?,
                "routeId": own.route_id,
                "value": self.destination(server),
                "addresses": bare(&self.wanted.servers[server]),
            });
            if let Some(shared) = self.preshared(server, number) {
                let file = format!("psk-{server}");
                entry["presharedKey"] = json!(file);
                data.insert(file, line(shared.text()));
            }
            servers.push(entry);
        }
        let mut config = self.wanted.file.client.clone();
        config.insert("name".to_owned(), json!(client_name(number)));
        config.insert("addresses".to_owned(), json!(self.wanted.clients[number]));
        let endpoint = Value::Object(self.wanted.file.endpoint.clone());
        config.insert("endpoint".to_owned(), endpoint);
        config.insert("networks".to_owned(), json!(self.wanted.file.networks));
        config.insert("keys".to_owned(), json!({ "private": PRIVATE }));
        config.insert("servers".to_owned(), json!(servers));
        let (text, file) = (to_yaml(&Value::Object(config)), CLIENT_FILE);
        let end = client_name(number);
        let name = format!("{end}{KEYS}");
        vpn_client::Config::from_text(&text, file.as_ref(), &Environment::default())
            .map_err(|source| RenderError::Config { end, source })?;
        data.insert(file.to_owned(), text);
        Ok(self.secret(Side::Shoot, name, data))
    }

    fn preshared(&self, server: usize, client: usize) -> Option<&Secret> {
        self.state.preshared.get(server)?.get(client)
    }

    fn tls(&self, name: &str, authorities: &str, leaf: &Leaf) -> SecretObject {
        let data = [
            ("ca.crt", authorities),
            ("tls.crt", &leaf.certificate),
            ("tls.key", leaf.key.text()),
        ];
        let data = data.map(|(file, text)| (file.to_owned(), text.to_owned()));
        self.secret(Side::Seed, name.to_owned(), data.into())
    }

    fn service(&self, number: usize) -> Result<Annotated, RenderError> {
        let own = &self.state.servers[number];
        let keys = public(&own.keys, self.view.servers)?.join(",");
        let annotations = [
            ("connect-destination", self.destination(number)),
            ("wireguard-public-keys", keys),
            ("wireguard-route-id", own.route_id.to_string()),
        ];
        Ok(Annotated {
            namespace: self.wanted.file.namespace.clone(),
            name: server_name(number),
            annotations: annotations
                .map(|(name, value)| (format!("{ANNOTATIONS}{name}"), value))
                .into(),
        })
    }

    /// What the header of a client's CONNECT says, as Gardener's gateways know it.
    fn destination(&self, server: usize) -> String {
        let (name, namespace) = (server_name(server), &self.wanted.file.namespace);
        format!("outbound|1194||{name}.{namespace}.svc.cluster.local")
    }

    fn secret(&self, side: Side, name: String, data: BTreeMap<String, String>) -> SecretObject {
        let namespace = match side {
            Side::Seed => &self.wanted.file.namespace,
            Side::Shoot => &self.wanted.file.shoot_namespace,
        };
        SecretObject {
            side,
            namespace: namespace.clone(),
            name,
            data,
        }
    }
}

/// Two files at any time: outside of a rotation both hold one key, which counts once.
fn private(data: &mut BTreeMap<String, String>, keys: &Keys<Secret>, which: Which) {
    let these = keys.these(which);
    let (first, last) = (these.first(), these.last());
    for (file, key) in PRIVATE.iter().zip([first, last]) {
        let text = key.map_or("", |key| key.text());
        data.insert((*file).to_owned(), line(text));
    }
}

fn public(keys: &Keys<Secret>, which: Which) -> Result<Vec<String>, KeyTextError> {
    keys.these(which).iter().map(|key| key.public()).collect()
}

fn bundle(authorities: &Keys<Authority>, which: Which) -> String {
    let these = authorities.these(which);
    these.iter().map(|one| one.certificate.as_str()).collect()
}

/// Where the proxy's files are, unless the parameters say so.
fn proxy_files(config: &mut Map<String, Value>) {
    let proxy = config.entry("proxy").or_insert_with(|| json!({}));
    // What is no mapping is refused with the whole configuration.
    if let Some(proxy) = proxy.as_object_mut() {
        for (key, file) in [("ca", "ca.crt"), ("cert", "tls.crt"), ("key", "tls.key")] {
            let path = format!("/tls/{file}");
            proxy.entry(key).or_insert_with(|| json!(path));
        }
    }
}

fn bare(addresses: &[TunnelAddress]) -> Vec<IpAddr> {
    addresses.iter().map(|own| own.address()).collect()
}

fn line(text: &str) -> String {
    format!("{text}\n")
}

/// Returns the name of a server, and of its Service.
pub(super) fn server_name(number: usize) -> String {
    format!("vpn-seed-server-{number}")
}

fn client_name(number: usize) -> String {
    format!("vpn-shoot-{number}")
}

/// The Secret of the state.
const STATE: &str = "vpn-provision";

/// Its only file.
pub(super) const STATE_FILE: &str = "state.json";

/// The configurations in the Secrets of the two ends.
const SERVER_FILE: &str = "vpn-server.yaml";
const CLIENT_FILE: &str = "vpn-client.yaml";

/// What the name of an end's Secret has behind that of its pod.
pub(super) const KEYS: &str = "-keys";

/// Files of private keys.
const PRIVATE: [&str; 2] = ["private-0", "private-1"];

/// What annotations of ours begin with.
const ANNOTATIONS: &str = "rhizome.gardener.cloud/";

/// The annotation with a server's route id.
pub(super) const ROUTE_ID: &str = "rhizome.gardener.cloud/wireguard-route-id";

#[cfg(test)]
mod tests;
