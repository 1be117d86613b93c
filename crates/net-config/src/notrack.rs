//! NOTRACK rules for the node proxy's addresses, in an nf_tables table of their own.
//!
//! ```text
//!   pod or node ──▶ prerouting/output (raw, -300): daddr A, tcp dport P → notrack ──▶ listener A:P
//!               ◀── output/prerouting (raw, -300): saddr A, tcp sport P → notrack ◀──
//! ```
//!
//! An address that never leaves the node gains nothing from connection tracking and would fill its
//! table. Both chains carry both directions, since a packet over the loopback device passes both.
//! The rules are replaced whole in one atomic batch; no other table is touched.
//!
//! Untracked replies match no `ct state established` rule: a firewall that drops whatever is not
//! established or new has to accept them itself, or the rules have to stay away.
//!
//! Replies of a connection that was translated to the address (kube-proxy does that from the
//! ClusterIP of the Service `kubernetes`) are not translated back without tracking, and the client
//! hangs. The rules cannot spare them: a reply passes the output hook at raw priority, before its
//! connection is looked up, and its packet is like any other. So the caller asks
//! [`NatWatch`](crate::NatWatch) first; nothing here does.

use std::net::SocketAddr;

use crate::{
    error::NoTrackError,
    nft::{self, Chain, ChainKind, Expression, Hook, Rule, Table},
};

/// `NF_IP_PRI_RAW`: before connection tracking, which is at -200.
const RAW: i32 = -300;
/// `NF_INET_PRE_ROUTING` and `NF_INET_LOCAL_OUT`.
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];

const IPPROTO_TCP: u8 = 6;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const NFPROTO: [u8; 2] = [2, 10];

/// NOTRACK rules for TCP to and from some addresses of this node.
#[derive(Clone, Debug)]
pub struct NoTrack {
    table: String,
    destinations: Vec<SocketAddr>,
}

/// Which end of a packet is the proxy's.
#[derive(Clone, Copy)]
enum Side {
    Destination,
    Source,
}

impl NoTrack {
    /// Rules for `destinations` in the inet table `table` (1 to 255 bytes, no zero byte), which
    /// belongs to this caller alone. Nothing is touched yet.
    pub fn new(table: impl Into<String>, destinations: Vec<SocketAddr>) -> Self {
        let mut destinations: Vec<_> = destinations
            .into_iter()
            .map(|destination| SocketAddr::new(destination.ip().to_canonical(), destination.port()))
            .collect();
        destinations.sort_unstable();
        destinations.dedup();
        Self {
            table: table.into(),
            destinations,
        }
    }

    /// Makes the table hold exactly these rules, in one atomic step; calling it again is harmless.
    /// Without destinations the table is removed.
    ///
    /// # Errors
    /// `NotSupported` on a kernel without nf_tables or its `notrack`, `Permission` without
    /// `CAP_NET_ADMIN`, `Destination` for an unspecified address or port 0, `Other`.
    pub async fn install(&self) -> Result<(), NoTrackError> {
        if self.destinations.is_empty() {
            return self.remove().await;
        }
        let installed = self.table()?.install().await;
        installed.map_err(|source| NoTrackError::netlink("installing NOTRACK rules", source))
    }

    /// Whether the table holds exactly these rules, as the kernel tells.
    ///
    /// # Errors
    /// As for [`NoTrack::install`].
    pub async fn installed(&self) -> Result<bool, NoTrackError> {
        let installed = self.table()?.installed().await;
        installed.map_err(|source| NoTrackError::netlink("reading NOTRACK rules", source))
    }

    /// Removes the table. That there is none, or no nf_tables at all, is success.
    ///
    /// # Errors
    /// `Permission`, `Other`.
    pub async fn remove(&self) -> Result<(), NoTrackError> {
        let removed = self.table()?.remove().await;
        removed.map_err(|source| NoTrackError::netlink("removing NOTRACK rules", source))
    }

    fn table(&self) -> Result<Table<'_>, NoTrackError> {
        let unfit = |at: &&SocketAddr| at.ip().is_unspecified() || at.port() == 0;
        if let Some(destination) = self.destinations.iter().find(unfit) {
            return Err(NoTrackError::Destination {
                destination: *destination,
            });
        }
        let chain = |(name, number): &(&str, u32)| Chain {
            name: (*name).to_owned(),
            kind: ChainKind::Filter,
            hook: Hook {
                number: *number,
                priority: RAW,
            },
        };
        let hooks = HOOKS.iter().filter(|_| !self.destinations.is_empty());
        Ok(Table {
            name: &self.table,
            chains: hooks.map(chain).collect(),
            rules: self.rules(),
        })
    }

    fn rules(&self) -> Vec<Rule> {
        let sides = [Side::Destination, Side::Source];
        HOOKS
            .iter()
            .flat_map(|(chain, _)| self.destinations.iter().map(move |at| (*chain, *at)))
            .flat_map(|(chain, at)| sides.map(|side| rule(chain, at, side)))
            .collect()
    }
}

/// `ip daddr A tcp dport P notrack`, or with `saddr` and `sport`, as the nft program spells it.
fn rule(chain: &str, at: SocketAddr, side: Side) -> Rule {
    // Offsets of the addresses in RFC 791 and RFC 8200 headers, of the ports in RFC 9293's.
    let (family, address, from, to) = match at {
        SocketAddr::V4(at) => (NFPROTO[0], at.ip().octets().to_vec(), 12, 16),
        SocketAddr::V6(at) => (NFPROTO[1], at.ip().octets().to_vec(), 8, 24),
    };
    let length = if at.is_ipv4() { 4 } else { 16 };
    let (address_offset, port_offset) = match side {
        Side::Destination => (to, 2),
        Side::Source => (from, 0),
    };
    Rule {
        chain: chain.to_owned(),
        expressions: vec![
            Expression::Meta(nft::META_NFPROTO),
            Expression::Equal(vec![family]),
            Expression::Payload {
                base: nft::NETWORK_HEADER,
                offset: address_offset,
                length,
            },
            Expression::Equal(address),
            Expression::Meta(nft::META_L4PROTO),
            Expression::Equal(vec![IPPROTO_TCP]),
            Expression::Payload {
                base: nft::TRANSPORT_HEADER,
                offset: port_offset,
                length: 2,
            },
            Expression::Equal(at.port().to_be_bytes().to_vec()),
            Expression::NoTrack,
        ],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn every_destination_has_both_directions_in_both_chains() {
        let rules = NoTrack::new("rhizome", vec![at("10.1.2.3:443"), at("[fd00::3]:443")]).rules();

        assert_eq!(rules.len(), 8);
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), 8);
        assert_eq!(
            rules.iter().filter(|rule| rule.chain == "output").count(),
            4
        );
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped = NoTrack::new(
            "rhizome",
            vec![at("[::ffff:10.1.2.3]:443"), at("10.1.2.3:443")],
        );

        assert_eq!(mapped.destinations, [at("10.1.2.3:443")]);
    }

    #[tokio::test]
    async fn notrack_rejects_params_before_any_change() {
        for destination in ["0.0.0.0:443", "[::]:443", "10.1.2.3:0"] {
            let refused = NoTrack::new("rhizome", vec![at(destination)])
                .install()
                .await;
            assert_eq!(refused.unwrap_err().reason(), "destination");
        }
    }
}
