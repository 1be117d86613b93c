//! What a cluster's labels and annotations promise, as the document puts it in words.

use ring::digest::{SHA256, digest};
use testkit::netpol::{Pod, Protocol};

use crate::model::{CONTROLLER, Entry, Model, PREFIX, Routed, Selector, Service, has_all};

/// Longest key of a label behind its prefix.
const MAX_KEY_BYTES: usize = 63;

impl Model {
    /// Returns the ports that Services promise the client of the other pod, each with the index of
    /// the Service.
    pub(crate) fn promises(&self, client: &Pod, server: &Pod) -> Vec<(usize, Entry)> {
        let services = self.services.iter().enumerate();
        let serving = services.filter(|(_, service)| self.serves(service, server));
        let promised = serving.flat_map(|(index, service)| {
            let entries = service.promises(self, client);
            let all = entries.chain(self.exposed(index, client));
            all.map(move |entry| (index, entry))
        });
        promised.collect()
    }

    /// Returns the indices of the Services that promise the pod's port to all outside sources.
    pub(crate) fn promising_world(
        &self,
        server: &Pod,
        protocol: Protocol,
        port: u16,
    ) -> Vec<usize> {
        let promises = |index: &usize| {
            let service = &self.services[*index];
            let covered = |entries: &Vec<Entry>| {
                let mut entries = entries.iter();
                entries.len() == 0 || entries.any(|entry| entry.covers(server, protocol, port))
            };
            self.serves(service, server) && service.state.as_ref().is_some_and(covered)
        };
        (0..self.services.len()).filter(promises).collect()
    }

    /// Returns the keys by which pods in a namespace ask for what any Service offers, selected or
    /// not.
    pub(crate) fn keys(&self, client: &str) -> Vec<String> {
        let services = self.services.iter();
        let keys = services.flat_map(|service| {
            let keyed = service.keyed();
            keyed.map(|(what, _)| service.key(client, &what))
        });
        keys.collect()
    }

    /// Returns whether the pod is behind the Service, and the Service is looked after.
    fn serves(&self, service: &Service, pod: &Pod) -> bool {
        let namespace = &self.namespaces[&service.namespace];
        let selects = |one: &Selector| one.selects(&service.namespace, &namespace.labels);
        let handled = self.handled.is_empty() || self.handled.iter().any(selects);
        handled
            && !namespace.terminating
            && pod.namespace == service.namespace
            && has_all(&pod.labels, &service.selector)
    }

    /// Returns the ports of a Service that Ingresses and routes open to the client.
    fn exposed<'a>(&'a self, service: usize, client: &'a Pod) -> impl Iterator<Item = Entry> + 'a {
        let lives = self.lives(&client.namespace);
        let controls = self.controller.as_ref() == Some(&client.namespace)
            && client
                .labels
                .get(CONTROLLER.0)
                .is_some_and(|app| app == CONTROLLER.1);
        let ingresses = self.ingresses.iter().filter(move |_| lives && controls);
        let leads = move |routed: &&Routed| {
            lives
                && routed.namespace == client.namespace
                && has_all(&client.labels, &routed.gateway)
        };
        let routed = self
            .routed
            .iter()
            .filter(leads)
            .map(|routed| &routed.exposed);
        let own = ingresses
            .chain(routed)
            .filter(move |one| one.service == service);
        own.map(move |one| Entry::of_port(&self.services[service].ports[one.port]))
    }

    fn lives(&self, namespace: &str) -> bool {
        !self.namespaces[namespace].terminating
    }
}

impl Service {
    /// Returns the ports that the client may reach for the labels it has.
    fn promises(&self, model: &Model, client: &Pod) -> impl Iterator<Item = Entry> {
        let namespace = &model.namespaces[&client.namespace];
        let mut selectors = self.clients.iter().flatten();
        let relevant = client.namespace == self.namespace
            || selectors.any(|one| one.selects(&client.namespace, &namespace.labels));
        let relevant = relevant && model.lives(&client.namespace);
        self.keyed()
            .filter(move |(what, _)| {
                let value = client.labels.get(&self.key(&client.namespace, what));
                relevant && value.is_some_and(|value| value == "allowed")
            })
            .map(|(_, entry)| entry)
    }

    /// Returns what a label can name, and the port each stands for.
    fn keyed(&self) -> impl Iterator<Item = (String, Entry)> {
        let of_port = |entry: Entry| {
            let protocol = name(entry.protocol()).to_lowercase();
            let port = entry.port.as_ref().unwrap();
            (format!("{}-{protocol}-{port}", self.name), entry)
        };
        let ports = self
            .ports
            .iter()
            .map(move |port| of_port(Entry::of_port(port)));
        let aliases = self.aliases.iter().flat_map(move |(alias, entries)| {
            entries.iter().map(move |entry| match alias.as_str() {
                "" => of_port(entry.clone()),
                alias => (alias.to_owned(), entry.clone()),
            })
        });
        ports.chain(aliases)
    }

    /// Returns the key of the label by which pods in a namespace ask for something.
    fn key(&self, client: &str, what: &str) -> String {
        let name = if client == self.namespace {
            format!("to-{what}")
        } else {
            let namespace = self.namespace_alias.as_ref().unwrap_or(&self.namespace);
            format!("to-{namespace}-{what}")
        };
        format!("{PREFIX}{}", shortened(&name))
    }
}

/// Returns a protocol as objects write it.
pub(crate) fn name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Sctp => "SCTP",
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    }
}

/// What is too long is cut after 57 characters, then come a hyphen and the first 5 digits of the
/// whole's SHA-256.
fn shortened(name: &str) -> String {
    if name.len() <= MAX_KEY_BYTES {
        return name.to_owned();
    }
    let sum = digest(&SHA256, name.as_bytes());
    let sum = sum.as_ref().iter().take(3);
    let digits: String = sum.map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}", &name[..57], &digits[..5])
}

#[test]
fn long_keys_are_those_that_gardener_knows() {
    let name = "to-shoot--my-project--my-long-cluster-name-kube-apiserver-tcp-443";
    let expected = "to-shoot--my-project--my-long-cluster-name-kube-apiserver-16753";
    assert_eq!(shortened(name), expected);
}
