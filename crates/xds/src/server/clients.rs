//! Connected clients, and how far each is: what an operator asks first.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

use serde::Serialize;
use telemetry::lock;

use crate::resource::{Audience, ResourceType};

/// A client with a stream.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct ClientStatus {
    /// `node.id`, at most 256 bytes of it.
    pub node: String,
    /// The gateway whose resources it gets.
    pub gateway: String,
    /// Where it connects from.
    pub peer: SocketAddr,
    /// Its audience, beside [`Audience::All`].
    pub audience: Audience,
    /// Whether it uses the incremental variant.
    pub delta: bool,
    /// When its stream began, seconds since 1970.
    pub since: u64,
    /// How far it is with each type that it was sent something of, by the word for the type.
    pub types: BTreeMap<&'static str, TypeStatus>,
}

/// How far a client is with a type.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct TypeStatus {
    /// Version of the latest response: for the incremental variant the number of the change that
    /// it goes up to, for the other the hash of the list.
    pub version: String,
    /// Nonce of the latest response.
    pub nonce: String,
    /// Version of the latest response that was taken.
    pub acked: Option<String>,
    /// What the client said when it last refused a response, at most 1 KiB of it.
    pub nack: Option<String>,
}

/// All clients with a stream, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<Vec<Weak<Mutex<ClientStatus>>>>);

impl Clients {
    pub(super) fn list(&self) -> Vec<ClientStatus> {
        let clients = lock(&self.0);
        let clients = clients.iter().filter_map(Weak::upgrade);
        clients.map(|client| lock(&client).clone()).collect()
    }

    pub(super) fn enter(&self, mut status: ClientStatus) -> ClientEntry {
        status.node = cut(&status.node, 256);
        let client = Arc::new(Mutex::new(status));
        let mut clients = lock(&self.0);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&client));
        ClientEntry(client)
    }
}

/// A client's place in the list, given up when dropped.
#[derive(Debug)]
pub(super) struct ClientEntry(Arc<Mutex<ClientStatus>>);

impl ClientEntry {
    pub(super) fn set(&self, kind: ResourceType, status: &TypeStatus) {
        lock(&self.0).types.insert(kind.as_str(), status.clone());
    }
}

/// The first bytes of a text, up to a boundary of characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_listed_while_it_has_its_place() {
        let clients = Clients::default();
        let place = clients.enter(ClientStatus {
            node: "é".repeat(200),
            gateway: "default".into(),
            peer: ([127, 0, 0, 1], 1).into(),
            audience: Audience::Parts,
            delta: true,
            since: 0,
            types: BTreeMap::new(),
        });
        place.set(
            ResourceType::Listener,
            &TypeStatus {
                version: "7".into(),
                nonce: "1".into(),
                acked: None,
                nack: Some("no".into()),
            },
        );
        let listed = clients.list();
        assert_eq!(listed[0].node.len(), 256);
        let json = serde_json::to_value(&listed[0]).unwrap();
        assert_eq!(json["types"]["listener"]["nack"], "no");
        assert_eq!(json["types"].as_object().unwrap().len(), 1);
        assert_eq!(json["audience"], "parts");
        drop(place);
        assert_eq!(clients.list(), []);
    }
}
