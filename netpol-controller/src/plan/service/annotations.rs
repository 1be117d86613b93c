//! What a Service's annotations say, each one understood or not.

use super::super::labels::{PREFIX, shorten};
use super::super::ports::{Port, parse_list};
use crate::state::{NAMESPACE_SELECTORS, Service, is_label_key, is_subdomain};

/// Most aliases of one Service; Gardener's Services have up to four.
const MAX_ALIASES: usize = 16;

pub(super) struct Annotations<'a> {
    /// What stands for the Service's namespace in the keys of other namespaces' labels.
    pub(super) namespace_alias: Result<Option<&'a str>, ()>,
    /// Labels of their own for some ports: their names, and the ports.
    pub(super) aliases: Vec<(&'a str, Vec<Port>)>,
    /// Aliases whose ports cannot be understood, or that are too many.
    pub(super) bad_aliases: Vec<&'a str>,
    /// Ports open to all sources; an empty list is all ports. `None` without the annotation.
    pub(super) from_world: Option<Vec<Port>>,
    /// The annotation about them cannot be understood.
    pub(super) bad_from_world: bool,
    /// The namespace selectors cannot be understood.
    pub(super) bad_selectors: bool,
    /// What is wrong, by annotation.
    pub(super) errors: Vec<(String, String)>,
}

impl<'a> Annotations<'a> {
    pub(super) fn parse(service: &'a Service) -> Self {
        let mut parsed = Self {
            namespace_alias: Ok(None),
            aliases: Vec::new(),
            bad_aliases: Vec::new(),
            from_world: None,
            bad_from_world: false,
            bad_selectors: false,
            errors: Vec::new(),
        };
        if let Err(error) = &service.namespace_selectors {
            parsed.bad_selectors = true;
            parsed.error(NAMESPACE_SELECTORS, error.clone());
        }
        for (key, value) in &service.annotations {
            match key.strip_prefix(PREFIX) {
                Some("from-world-to-ports") => parsed.world_ports(key, value),
                Some("pod-label-selector-namespace-alias") => parsed.namespace(key, value),
                Some(name) => {
                    let alias = name.strip_prefix("from-");
                    if let Some(alias) = alias.and_then(|one| one.strip_suffix("-allowed-ports")) {
                        parsed.alias(key, alias, value);
                    }
                }
                None => {}
            }
        }
        parsed
    }

    fn alias(&mut self, key: &str, alias: &'a str, value: &str) {
        let named =
            is_subdomain(&format!("via-{alias}")) && is_label_key(&shorten(&format!("to-{alias}")));
        if !named && !alias.is_empty() {
            let error = format!("{alias:?} cannot be part of the name of a policy or a label");
            return self.error(key, error);
        }
        let mut ports = parse_list(value).and_then(|ports| {
            let lacks = ports.iter().position(|port| port.target.is_none());
            lacks.map_or(Ok(ports), |at| Err(format!("item {}: no port", at + 1)))
        });
        if self.aliases.len() == MAX_ALIASES {
            let error = format!("a Service may have {MAX_ALIASES} aliases, it has more");
            ports = Err(error);
        }
        match ports {
            Ok(ports) => self.aliases.push((alias, ports)),
            Err(error) => {
                self.bad_aliases.push(alias);
                self.error(key, error);
            }
        }
    }

    fn namespace(&mut self, key: &str, value: &'a str) {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if value.bytes().all(inner) {
            self.namespace_alias = Ok(Some(value));
        } else {
            self.namespace_alias = Err(());
            self.error(key, format!("{value:?} cannot be part of a label key"));
        }
    }

    fn world_ports(&mut self, key: &str, value: &str) {
        match parse_list(value) {
            Ok(ports) => self.from_world = Some(ports),
            Err(error) => {
                self.bad_from_world = true;
                self.error(key, error);
            }
        }
    }

    fn error(&mut self, key: &str, error: String) {
        self.errors.push((key.to_owned(), error));
    }
}
