//! The table that finds the most specific route for a destination address and port.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::prefix::IpPrefix;
use crate::route::Route;
use crate::tables::RouteMap;

/// What one entry matches: a prefix, and one port or any.
pub(crate) type DestinationKey = (IpPrefix, Option<u16>);

/// Routes by destination.
///
/// A lookup probes the map twice for each prefix length that any route of the address's family
/// has: at most 66 times for IPv4 and 258 for IPv6, usually twice, however many routes there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct DestinationTable {
    routes: RouteMap<DestinationKey>,
    ipv4_lens: Vec<u8>,
    ipv6_lens: Vec<u8>,
}

impl DestinationTable {
    /// Adds an entry, or puts it in place of the one before.
    pub(crate) fn insert(&mut self, key: DestinationKey, route: Arc<Route>) {
        let lens = match key.0.network() {
            IpAddr::V4(_) => &mut self.ipv4_lens,
            IpAddr::V6(_) => &mut self.ipv6_lens,
        };
        // Longest first.
        if let Err(place) = lens.binary_search_by(|len| key.0.len().cmp(len)) {
            lens.insert(place, key.0.len());
        }
        self.routes.insert(key, route);
    }

    /// Returns the route of exactly this prefix and port.
    pub(crate) fn exact(&self, key: &DestinationKey) -> Option<&Arc<Route>> {
        self.routes.get(key)
    }

    /// Returns the route of the longest prefix that has one for the port, or for any, of those that
    /// are `fit`.
    pub(crate) fn find(
        &self,
        addr: SocketAddr,
        fit: impl Fn(&Route) -> bool,
    ) -> Option<&Arc<Route>> {
        let ip = addr.ip().to_canonical();
        let lens = if ip.is_ipv4() {
            &self.ipv4_lens
        } else {
            &self.ipv6_lens
        };
        lens.iter().find_map(|len| {
            let prefix = IpPrefix::covering(ip, *len);
            [Some(addr.port()), None].into_iter().find_map(|port| {
                let route = self.routes.get(&(prefix, port))?;
                fit(route).then_some(route)
            })
        })
    }
}
