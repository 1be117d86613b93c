//! What the tests share: gateways, clients, and what a gateway says about itself.

mod api_server;
mod child;
mod client;
mod gateway;
mod probe;
pub(crate) mod secrets;

use std::time::Duration;

pub(crate) use api_server::{ApiServer, Asked, Local};
pub(crate) use child::{Child, Starting, run};
pub(crate) use client::{Client, End, connect_head};
pub(crate) use gateway::Gateway;
pub(crate) use probe::Probe;

/// A wait that lasts this long has failed; on an idle machine nothing takes a tenth of it.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns the routing file of one cluster for each name, all routed by `*.<name>.test`, by the
/// server name `<name>.test`, and by the CONNECT value `<name>`.
pub(crate) fn routes_of(clusters: &[(&str, std::net::SocketAddr)]) -> String {
    let mut text = String::from("clusters:\n");
    for (name, endpoint) in clusters {
        text += &format!("- {{ name: {name}, endpoints: [{{ address: \"{endpoint}\" }}] }}\n");
    }
    text += "routes:\n";
    for (name, _) in clusters {
        text += &format!("- {{ serverNames: [\"{name}.test\"], cluster: {name} }}\n");
        text += &format!("- {{ connectDestinations: [\"{name}\"], cluster: {name} }}\n");
    }
    text
}
