//! Routes that only sockets bound to the tunnel device use.
//!
//! ```text
//!   socket bound to the device ──▶ rule: oif DEVICE ──▶ table of its own: NETWORK dev DEVICE src OWN
//!   any other socket           ──▶ local, main: as if there were no tunnel
//! ```
//!
//! So a network may exist on both sides. The rule for the kernel's `local` table comes first and
//! stays where it is: a look-up for a socket bound to a device passes over every route that leads
//! to another, in `local` too and in both families (`fib_lookup_good_nhc`, `RT6_LOOKUP_F_IFACE`).
//! The namespace's own address, and its subnet's broadcast address, are therefore looked up in our
//! table and reached through the tunnel.
//!
//! Each route names its source, because IPv6 would choose the destination itself as the source of
//! a packet to an own address (RFC 6724 section 5, rule 1), and such a reply reaches no peer.
//!
//! Lets no packet in: that is [`SourceChecks`](super::SourceChecks).

use std::net::IpAddr;

use ipnet::IpNet;

use super::{Setup, check_networks, device_settings};
use crate::{
    NetConfigError,
    netlink::Connection,
    rtnl::{
        self, device,
        route::{self, PROTOCOL, Route, Rule},
    },
};

/// Which networks sockets bound to the tunnel device reach through it.
#[derive(Clone, Debug)]
pub struct TunnelRoutes {
    /// Name of the device.
    pub device: String,
    /// Number of a routing table that belongs to this tunnel alone; see
    /// [`TunnelRoutes::DEFAULT_TABLE`].
    pub table: u32,
    /// Place of the rule: below 32766, where the main table is; see
    /// [`TunnelRoutes::DEFAULT_PRIORITY`].
    pub priority: u32,
    /// The device's own addresses; the first of a family is the source toward its networks.
    pub sources: Vec<IpAddr>,
    /// The networks behind the tunnel, of both families.
    pub networks: Vec<IpNet>,
}

impl TunnelRoutes {
    /// The table that is used where none is configured.
    pub const DEFAULT_TABLE: u32 = 51820;
    /// The rule's place where none is configured: after `local`, before all other rules.
    pub const DEFAULT_PRIORITY: u32 = 100;

    /// Puts routes and rules in place and has the kernel look up every network, and every own
    /// address in one of them, for a socket bound to the device. Calling it again changes nothing;
    /// routes and rules of ours that are no longer wanted are removed, and foreign ones are kept.
    ///
    /// Not cancel-safe in the sense that some changes may have been made; calling it again is
    /// always right.
    ///
    /// # Errors
    /// `DeviceName`, `Table`, `Address` and `NoAddress` (a network without a source of its family)
    /// before anything is touched; `DeviceMissing`; `Permission` without `CAP_NET_ADMIN`;
    /// `NotInPlace` when a foreign rule before ours wins; `Netlink` for the rest.
    pub async fn install(&self) -> Result<Vec<String>, NetConfigError> {
        self.check()?;
        let mut setup = Setup::new()?;
        let index = device_settings(&self.device).await?.index;
        let (routes, rules) = (self.routes(index)?, self.rules());
        self.remove_others(&mut setup, &routes, &rules).await?;
        self.add(&mut setup, &routes, &rules).await?;
        self.verify(&mut setup.connection, index).await?;
        Ok(setup.changes)
    }

    /// Removes our rules for the device and our routes; that there are none, or no device, is
    /// success.
    ///
    /// # Errors
    /// `DeviceName`, `Table`, `Permission`, `Netlink`.
    pub async fn remove(&self) -> Result<Vec<String>, NetConfigError> {
        self.check()?;
        let mut setup = Setup::new()?;
        self.remove_others(&mut setup, &[], &[]).await?;
        Ok(setup.changes)
    }

    fn routes(&self, index: u32) -> Result<Vec<Route>, NetConfigError> {
        let route = |network: &IpNet| {
            Ok(Route {
                destination: network.trunc(),
                table: self.table,
                protocol: PROTOCOL,
                devices: vec![index],
                source: Some(self.source(network)?),
            })
        };
        self.networks.iter().map(route).collect()
    }

    fn rules(&self) -> Vec<Rule> {
        let rule = |ipv6| Rule {
            ipv6,
            priority: self.priority,
            table: self.table,
            device: self.device.clone(),
            protocol: PROTOCOL,
        };
        let needed = |ipv6: &bool| self.networks.iter().any(|at| at.addr().is_ipv6() == *ipv6);
        [false, true].into_iter().filter(needed).map(rule).collect()
    }

    fn source(&self, network: &IpNet) -> Result<IpAddr, NetConfigError> {
        let ipv6 = network.addr().is_ipv6();
        let mut sources = self.sources.iter().copied();
        let source = sources.find(|source| source.is_ipv6() == ipv6);
        source.ok_or_else(|| NetConfigError::NoAddress {
            device: self.device.clone(),
            network: *network,
        })
    }

    /// Removes what is ours and in neither list. Rules go first, so that no packet meets a table
    /// that is half empty.
    async fn remove_others(
        &self,
        setup: &mut Setup,
        routes: &[Route],
        rules: &[Rule],
    ) -> Result<(), NetConfigError> {
        let there = self.our_rules(&mut setup.connection).await?;
        for stale in there.iter().filter(|rule| !rules.contains(rule)) {
            let what = format!("remove the {stale}");
            let request = route::delete_rule(setup.request(), stale);
            setup.change(what, request, Some(libc::ENOENT)).await?;
        }
        let place = |route: &Route| (route.destination, route.table);
        for stale in self.our_routes(&mut setup.connection).await? {
            if routes.iter().any(|route| place(route) == place(&stale)) {
                continue;
            }
            let (network, table) = place(&stale);
            let what = format!("remove the route to {network} from table {table}");
            let request = route::delete_route(setup.request(), &stale);
            setup.change(what, request, Some(libc::ESRCH)).await?;
        }
        Ok(())
    }

    async fn add(
        &self,
        setup: &mut Setup,
        routes: &[Route],
        rules: &[Rule],
    ) -> Result<(), NetConfigError> {
        let there = self.our_routes(&mut setup.connection).await?;
        for route in routes.iter().filter(|route| !there.contains(route)) {
            let (network, table) = (route.destination, route.table);
            let what = format!("add the route to {network} to table {table}");
            let request = route::put_route(setup.request(), route);
            setup.change(what, request, None).await?;
        }
        let there = self.our_rules(&mut setup.connection).await?;
        for rule in rules.iter().filter(|rule| !there.contains(rule)) {
            let request = route::add_rule(setup.request(), rule);
            let what = format!("add the {rule}");
            setup.change(what, request, Some(libc::EEXIST)).await?;
        }
        Ok(())
    }

    async fn verify(&self, connection: &mut Connection, index: u32) -> Result<(), NetConfigError> {
        let failed = || NetConfigError::during("looking up the way to a network");
        let held = rtnl::addresses(connection).await.map_err(failed())?;
        let own = held.iter().map(|held| held.prefix.addr());
        let inside = |address: &IpAddr| self.networks.iter().any(|at| at.contains(address));
        let firsts = self.networks.iter().map(|at| at.network());
        for address in firsts.chain(own.filter(inside)) {
            let way = route::look_up(connection, address, index).await;
            let ours = |way: Route| way.table == self.table && way.devices == [index];
            if !way.map_err(failed())?.is_some_and(ours) {
                let missing = format!("a way to {address} by table {}", self.table);
                return Err(NetConfigError::NotInPlace { missing });
            }
        }
        Ok(())
    }

    /// Those in our table, and those out of our device in a table that was configured earlier.
    async fn our_routes(&self, connection: &mut Connection) -> Result<Vec<Route>, NetConfigError> {
        let failed = || NetConfigError::during("reading the routes");
        let settings = device::settings(&self.device).await.map_err(failed())?;
        let all = route::routes(connection).await.map_err(failed())?;
        let ours = |route: &Route| {
            let by_us = settings.iter().any(|own| route.devices == [own.index]);
            route.protocol == PROTOCOL && (route.table == self.table || by_us)
        };
        Ok(all.into_iter().filter(ours).collect())
    }

    async fn our_rules(&self, connection: &mut Connection) -> Result<Vec<Rule>, NetConfigError> {
        let all = route::rules(connection).await;
        let all = all.map_err(NetConfigError::during("reading the rules"))?;
        let ours = |rule: &Rule| rule.protocol == PROTOCOL && rule.device == self.device;
        Ok(all.into_iter().filter(ours).collect())
    }

    fn check(&self) -> Result<(), NetConfigError> {
        check_networks(&self.device, &self.networks)?;
        match self.table {
            table @ (0 | 253..=255) => Err(NetConfigError::Table { table }),
            _ => self.routes(0).map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes() -> TunnelRoutes {
        TunnelRoutes {
            device: "rhizome0".to_owned(),
            table: TunnelRoutes::DEFAULT_TABLE,
            priority: TunnelRoutes::DEFAULT_PRIORITY,
            sources: vec!["192.168.123.1".parse().unwrap()],
            networks: vec!["10.96.0.1/11".parse().unwrap()],
        }
    }

    #[tokio::test]
    async fn unusable_values_change_nothing() {
        let tables = [0, 253, 254, 255].into_iter();
        let tables = tables.map(|table| (TunnelRoutes { table, ..routes() }, "table"));
        let mut wrong: Vec<_> = tables.collect();
        for (network, reason) in [("fd00::/64", "no_address"), ("127.0.0.0/8", "address")] {
            let networks = vec![network.parse().unwrap()];
            let routes = routes();
            wrong.push((TunnelRoutes { networks, ..routes }, reason));
        }
        for (routes, reason) in wrong {
            assert_eq!(routes.install().await.unwrap_err().reason(), reason);
        }
    }

    #[test]
    fn routed_network_has_no_host_bits() {
        let wanted = routes().routes(7).unwrap();

        assert_eq!(wanted[0].destination, "10.96.0.0/11".parse().unwrap());
        assert_eq!(routes().rules().len(), 1, "one family, one rule");
    }
}
