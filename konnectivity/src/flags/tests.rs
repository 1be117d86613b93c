//! Which flags are accepted and which are rejected.

mod accepted;
mod file;
mod refused;
mod upstream;
mod verified;

use std::ffi::OsString;

use super::{Environment, FlagError, ServerConfig};
use crate::agent::AgentConfig;
use crate::process::{Parsed, Setup};

/// What every server needs, with API servers on a socket.
const UDS: &str = "--uds-name=/run/k.sock --server-port=0 --cluster-cert=a.crt --cluster-key=a.key";

/// What every server needs, with API servers on a port.
const TCP: &str = "--server-ca-cert=s-ca.crt --server-cert=s.crt --server-key=s.key \
                   --cluster-cert=a.crt --cluster-key=a.key";

/// What a server needs that has a registry.
const REGISTRY: &str =
    "--registry=clusters --server-port=0 --cluster-cert=a.crt --cluster-key=a.key";

fn words(program: &str, line: &str) -> Vec<OsString> {
    let words = line.split_whitespace().map(OsString::from);
    [OsString::from(program)].into_iter().chain(words).collect()
}

fn pod() -> Environment {
    Environment {
        in_cluster: true,
        ..Environment::default()
    }
}

fn configured<C>(parsed: Result<Parsed<C>, FlagError>) -> Result<Setup<C>, String> {
    match parsed {
        Ok(Parsed::Configured(setup)) => Ok(*setup),
        Ok(Parsed::Print(text)) => Err(text),
        Err(error) => Err(error.to_string()),
    }
}

fn server(line: &str) -> Result<Setup<ServerConfig>, String> {
    configured(super::server(words("konnectivity-server", line), &pod()))
}

fn agent(line: &str) -> Result<Setup<AgentConfig>, String> {
    configured(super::agent(words("konnectivity-agent", line), &pod()))
}
