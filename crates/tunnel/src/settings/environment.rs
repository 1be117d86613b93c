//! What Gardener's environment variables say to both ends, where the file says nothing. Each program
//! names those that it knows.

use std::collections::BTreeMap;

use ::settings::ConfigErrors;
use ipnet::IpNet;

use super::{Cidr, End, Networks, TunnelAddress, trailing_number, transfer_addresses};

/// Variables and their values. Empty values count as absent.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<&'static str, String>);

impl FromIterator<(&'static str, String)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'static str, String)>>(variables: I) -> Self {
        let variables = variables.into_iter();
        Self(variables.filter(|(_, value)| !value.is_empty()).collect())
    }
}

impl Environment {
    /// Reads these variables; values that are not UTF-8 count as absent.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the module that reads the environment"
    )]
    pub fn read(names: &[&'static str]) -> Self {
        let values = names.iter().map(|name| (*name, std::env::var(name)));
        let there = values.filter_map(|(name, value)| Some((name, value.ok()?)));
        there.collect()
    }

    /// Returns the value of a variable.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Fills each list of `networks` that is empty from `SHOOT_POD_NETWORKS`,
    /// `SHOOT_SERVICE_NETWORKS` and `SHOOT_NODE_NETWORKS`, which have commas between.
    pub fn fill_networks(&self, networks: &mut Networks, errors: &mut ConfigErrors) {
        for (variable, list) in [
            ("SHOOT_POD_NETWORKS", &mut networks.pods),
            ("SHOOT_SERVICE_NETWORKS", &mut networks.services),
            ("SHOOT_NODE_NETWORKS", &mut networks.nodes),
        ] {
            match Cidr::list(self.get(variable).unwrap_or_default()) {
                Ok(given) if list.is_empty() => *list = given,
                Ok(_) => {}
                Err(error) => errors.add(variable, error),
            }
        }
    }

    /// Returns the addresses of `end` on the networks of `VPN_NETWORK`, as [`transfer_addresses`].
    ///
    /// # Errors
    /// What is wrong with `VPN_NETWORK`.
    pub fn addresses(&self, networks: &[IpNet], end: End) -> Result<Vec<TunnelAddress>, String> {
        let given = Cidr::list(self.get("VPN_NETWORK").unwrap_or_default());
        let given = given.map_err(|error| error.to_string())?;
        let given: Vec<IpNet> = given.iter().map(|cidr| cidr.0).collect();
        transfer_addresses(&given, networks, end).map_err(|error| error.to_string())
    }

    /// Returns which of several servers or clients this is: with `IS_HA` the number at the end of
    /// `POD_NAME`, else 0.
    pub fn pod_number(&self, errors: &mut ConfigErrors) -> Option<u16> {
        match self.get("IS_HA").map(str::to_ascii_lowercase).as_deref() {
            None | Some("0" | "f" | "false") => return Some(0),
            Some("1" | "t" | "true") => {}
            Some(other) => {
                let other = other.escape_debug();
                errors.add("IS_HA", format_args!("`{other}` is neither true nor false"));
                return None;
            }
        }
        let name = self.get("POD_NAME").unwrap_or_default();
        let number = trailing_number(name);
        if number.is_none() {
            let name = name.escape_debug();
            let why = format_args!("with IS_HA it must end in `-` and a number; it is `{name}`");
            errors.add("POD_NAME", why);
        }
        number
    }
}
