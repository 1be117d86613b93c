//! Keys, certificates and configurations of a world.
//!
//! Configurations are written as JSON, which is YAML too. Each is replaced in one step.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::network::{Addresses, GATEWAY};
use super::{PROXY_NAME, PROXY_PORT, Params, Part};
use crate::certs::{Authority, Identity};
use crate::keys::KeyFile;
use crate::tempdir::TempDir;

/// Who has which keys. Changed by a test that rotates them, and written by `World::write_files`.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Each server's own: all are valid at once.
    pub servers: Vec<Vec<KeyFile>>,
    pub clients: Vec<KeyFile>,
    /// The public keys by which servers know each client.
    pub known_clients: Vec<Vec<String>>,
    /// The public keys by which clients and the gateway know each server.
    pub known_servers: Vec<Vec<String>>,
    /// The preshared key of each client that has one: the first.
    pub preshared: Vec<Option<PathBuf>>,
    program: PathBuf,
    dir: PathBuf,
}

impl Keys {
    /// Makes the keys of `params` in `dir`, by `program genkey`.
    pub fn make(program: &Path, dir: &Path, params: &Params) -> Result<Self> {
        let mut keys = Self {
            servers: Vec::new(),
            clients: Vec::new(),
            known_clients: Vec::new(),
            known_servers: Vec::new(),
            preshared: Vec::new(),
            program: program.to_owned(),
            dir: dir.to_owned(),
        };
        for index in 0..params.servers {
            let key = keys.generate(&format!("server-{index}-key"))?;
            keys.known_servers.push(vec![key.public.clone()]);
            keys.servers.push(vec![key]);
        }
        for index in 0..params.clients {
            let key = keys.generate(&format!("client-{index}-key"))?;
            keys.known_clients.push(vec![key.public.clone()]);
            keys.clients.push(key);
            // 32 random bytes as well, so made in the same way.
            let shared = (index == 0).then(|| keys.generate("preshared-0"));
            keys.preshared.push(shared.transpose()?.map(|key| key.path));
        }
        Ok(keys)
    }

    /// Makes a private key in the world's directory.
    pub fn generate(&self, name: &str) -> Result<KeyFile> {
        KeyFile::generate(&self.program, self.dir.join(name))
    }
}

#[derive(Debug)]
pub struct Credentials {
    /// Signs servers and API servers.
    pub authority: Authority,
    pub api_server: Identity,
}

impl Credentials {
    /// Makes an authority, and writes its certificate and the servers' into `dir`.
    pub fn make(dir: &Path, addresses: &Addresses) -> Result<Self> {
        let authority = Authority::new("tunnel")?;
        let addresses = addresses.servers().map(|ip| ip.to_string());
        let names: Vec<String> = addresses.chain([PROXY_NAME.to_owned()]).collect();
        authority.server(&names)?.write(dir, "proxy")?;
        authority.write(&dir.join("proxy-ca.crt"))?;
        let api_server = authority.client("kube-apiserver", &[], &[])?;
        Ok(Self {
            authority,
            api_server,
        })
    }
}

/// Returns what a program is called in file names and errors.
pub(super) fn name(part: Part) -> String {
    match part {
        Part::Gateway => "gateway".to_owned(),
        Part::Server(index) => format!("server-{index}"),
        Part::Client(index) => format!("client-{index}"),
    }
}

/// Writes every configuration into the directory of the keys.
pub fn write(dir: &TempDir, params: &Params, addresses: &Addresses, keys: &Keys) -> Result<()> {
    let put = |file: &str, value: &Value| dir.replace(file, format!("{value:#}")).map(drop);
    let [to_clients, to_servers] = &params.tcp;
    let servers = addresses.servers().zip(&keys.known_servers);
    put("routes.yaml", &routes(servers, to_servers))?;
    put("gateway.yaml", &gateway(to_clients))?;
    put("peers.yaml", &peers(keys))?;
    for index in 0..params.servers {
        let file = format!("{}.yaml", name(Part::Server(index)));
        put(&file, &server(index, params, addresses, keys)?)?;
    }
    for index in 0..params.clients {
        let file = format!("{}.yaml", name(Part::Client(index)));
        put(&file, &client(index, params, keys)?)?;
    }
    Ok(())
}

/// Returns a gateway's configuration, `tcp` for clients' connections.
fn gateway(tcp: &Value) -> Value {
    json!({
        "workers": 1,
        "probes": { "address": "[::]:15021" },
        "admin": { "address": "" },
        "listeners": [
            { "name": "vpn", "address": "[::]:8132", "protocol": "connect", "tcp": tcp },
            { "name": "wireguard", "address": "[::]:51820", "protocol": "wireguard" },
        ],
        "routing": { "file": "routes.yaml" },
        "drain": { "delay": "0s", "timeout": "0s" },
    })
}

/// Returns a gateway's routes to servers by their public keys, `tcp` for connections to them.
fn routes<'a>(servers: impl IntoIterator<Item = (IpAddr, &'a Vec<String>)>, tcp: &Value) -> Value {
    let (mut clusters, mut routes) = (Vec::new(), Vec::new());
    for (index, (address, known)) in servers.into_iter().enumerate() {
        for (kind, port) in [("tcp", 1194), ("udp", 51821)] {
            clusters.push(json!({
                "name": format!("{kind}-{index}"),
                "endpoints": [{ "address": format!("{address}:{port}") }],
                "tcp": tcp,
            }));
        }
        routes.push(json!({
            "connectDestinations": [destination(index)], "cluster": format!("tcp-{index}"),
        }));
        routes.push(json!({
            "wireguard": { "publicKeys": known, "routeId": route(index) },
            "cluster": format!("udp-{index}"),
        }));
    }
    json!({ "clusters": clusters, "routes": routes })
}

fn peers(keys: &Keys) -> Value {
    let peer = |(index, known): (usize, &Vec<String>)| {
        let mut peer = json!({
            "name": format!("vpn-shoot-{index}"),
            "publicKeys": known,
            "addresses": inner(&client_host(index)),
        });
        if let Some(path) = &keys.preshared[index] {
            peer["presharedKey"] = json!(path);
        }
        peer
    };
    let all: Vec<Value> = keys.known_clients.iter().enumerate().map(peer).collect();
    json!({ "peers": all })
}

fn server(index: usize, params: &Params, addresses: &Addresses, keys: &Keys) -> Result<Value> {
    let private: Vec<&PathBuf> = keys.servers[index].iter().map(|key| &key.path).collect();
    let config = json!({
        "device": "rhizome0",
        "routeId": route(index),
        "addresses": on_network(&server_host(index)),
        "networks": networks(params),
        "keys": { "private": private, "peers": "peers.yaml" },
        "listen": { "tcp": "[::]:1194", "udp": "[::]:51820", "wrapped": "[::]:51821" },
        "trustedGateways": [format!("{}/32", addresses.gateway())],
        "proxy": {
            "address": format!("[::]:{PROXY_PORT}"),
            "ca": "proxy-ca.crt", "cert": "proxy.crt", "key": "proxy.key",
        },
        "probes": { "address": "[::]:15000" },
        "drain": { "delay": "0s", "timeout": "2s" },
    });
    merge(config, &params.server)
}

fn client(index: usize, params: &Params, keys: &Keys) -> Result<Value> {
    let preshared = keys.preshared[index].as_ref();
    let server = |(index, known): (usize, &Vec<String>)| {
        let mut server = json!({
            "name": format!("vpn-seed-server-{index}"),
            "publicKeys": known,
            "routeId": route(index),
            "value": destination(index),
            "addresses": inner(&server_host(index)),
        });
        if let Some(path) = preshared {
            server["presharedKey"] = json!(path);
        }
        server
    };
    let servers: Vec<Value> = keys.known_servers.iter().enumerate().map(server).collect();
    let config = json!({
        "device": "rhizome0",
        "addresses": on_network(&client_host(index)),
        "endpoint": {
            "address": GATEWAY, "tcpPort": 8132, "udpPort": 51820,
            "header": "Reversed-VPN", "transport": params.transport,
        },
        "servers": servers,
        "keys": { "private": keys.clients[index].path },
        "networks": networks(params),
        "masquerade": true,
        "probes": { "address": "[::]:8080" },
        "drain": { "delay": "0s", "timeout": "2s" },
    });
    merge(config, &params.client)
}

fn networks(params: &Params) -> Value {
    let mut pods = vec!["100.96.0.0/11"];
    pods.extend(params.ipv6.then_some("fd00:96::/64"));
    json!({ "pods": pods, "services": ["100.64.0.0/13"], "nodes": ["10.250.0.0/16"] })
}

/// The last parts of the addresses on the transfer networks, of IPv6 and IPv4.
fn server_host(index: usize) -> [String; 2] {
    [format!("{}", index + 1), format!("{}", index + 1)]
}

fn client_host(index: usize) -> [String; 2] {
    [format!("b:{index:x}"), format!("{}", 64 + index)]
}

fn inner([six, four]: &[String; 2]) -> [String; 2] {
    let six = format!("fd8f:6d53:b97a:1::{six}");
    [six, format!("192.168.123.{four}")]
}

fn on_network(host: &[String; 2]) -> [String; 2] {
    let [six, four] = inner(host);
    [format!("{six}/96"), format!("{four}/24")]
}

/// Returns how clients call server `index` in the header of their CONNECT.
fn destination(index: usize) -> String {
    format!("outbound|1194||vpn-seed-server-{index}.shoot--foo--bar.svc.cluster.local")
}

fn route(index: usize) -> usize {
    17 + index
}

/// Returns `config` with the keys of `more`, those of objects one by one.
pub fn merge(mut config: Value, more: &Value) -> Result<Value> {
    let more = more.as_object().context("an object to be merged")?;
    for (key, value) in more {
        let slot = &mut config[key];
        *slot = match slot.is_object() && value.is_object() {
            true => merge(slot.take(), value)?,
            false => value.clone(),
        };
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_merge_key_by_key() {
        let config = json!({ "a": { "b": 1, "c": 2 }, "d": 3 });
        let more = json!({ "a": { "c": 4 }, "e": { "f": 5 } });
        let expected = json!({ "a": { "b": 1, "c": 4 }, "d": 3, "e": { "f": 5 } });
        assert_eq!(merge(config, &more).unwrap(), expected);
    }
}
