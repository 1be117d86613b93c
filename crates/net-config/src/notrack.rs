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
    attributes::Writer,
    error::NftablesError,
    nft::{self, EQUAL, Rules},
};

/// `NF_IP_PRI_RAW`: before connection tracking, which is at -200.
const RAW: i32 = -300;
/// `NF_INET_PRE_ROUTING` and `NF_INET_LOCAL_OUT`.
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];

const IPPROTO_TCP: u8 = 6;
/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const NFPROTO: [u8; 2] = [2, 10];

/// Which end of a packet is the proxy's.
#[derive(Clone, Copy)]
enum Side {
    Destination,
    Source,
}

impl Rules {
    /// NOTRACK rules for TCP to and from `destinations` of this node, in the inet table `table` (1
    /// to 255 bytes, no zero byte), which belongs to this caller alone. Nothing is touched yet.
    ///
    /// # Errors
    /// `Destination` for an unspecified address or port 0.
    pub fn no_track(
        table: impl Into<String>,
        destinations: Vec<SocketAddr>,
    ) -> Result<Self, NftablesError> {
        let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
        let mut destinations: Vec<_> = destinations.into_iter().map(canonical).collect();
        destinations.sort_unstable();
        destinations.dedup();
        let mut rules = Self::new(table, "NOTRACK rules");
        let hooks = HOOKS.iter().filter(|_| !destinations.is_empty());
        for (chain, hook) in hooks {
            rules.add_chain(chain, "filter", *hook, RAW);
            for destination in &destinations {
                if destination.ip().is_unspecified() || destination.port() == 0 {
                    let destination = *destination;
                    return Err(NftablesError::Destination { destination });
                }
                for side in [Side::Destination, Side::Source] {
                    rules.add_rule(chain, |out| no_track(out, *destination, side));
                }
            }
        }
        Ok(rules)
    }
}

/// `ip daddr A tcp dport P notrack`, or with `saddr` and `sport`, as the nft program spells it.
fn no_track(out: &mut Writer<'_>, at: SocketAddr, side: Side) {
    // Offsets of the addresses in RFC 791 and RFC 8200 headers, of the ports in RFC 9293's.
    let (family, address, from, to) = match at {
        SocketAddr::V4(at) => (NFPROTO[0], at.ip().octets().to_vec(), 12, 16),
        SocketAddr::V6(at) => (NFPROTO[1], at.ip().octets().to_vec(), 8, 24),
    };
    let (address_offset, port_offset) = match side {
        Side::Destination => (to, 2),
        Side::Source => (from, 0),
    };
    nft::meta(out, nft::META_NFPROTO, EQUAL, &[family]);
    nft::payload(out, nft::NETWORK_HEADER, address_offset, &address);
    nft::meta(out, nft::META_L4PROTO, EQUAL, &[IPPROTO_TCP]);
    let port = at.port().to_be_bytes();
    nft::payload(out, nft::TRANSPORT_HEADER, port_offset, &port);
    nft::notrack(out);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn rules(texts: &[&str]) -> Result<Rules, NftablesError> {
        let destinations = texts.iter().map(|text| text.parse().unwrap());
        Rules::no_track("rhizome", destinations.collect())
    }

    #[test]
    fn each_destination_has_four_rules() {
        let rules = rules(&["10.1.2.3:443", "[fd00::3]:443"]).unwrap().rules;

        assert_eq!(rules.len(), 8);
        assert_eq!(rules.iter().collect::<BTreeSet<_>>().len(), 8);
        let of_output = |rule: &&Vec<u8>| rule.windows(6).any(|bytes| bytes == b"output");
        assert_eq!(rules.iter().filter(of_output).count(), 4);
    }

    #[test]
    fn a_mapped_address_is_the_ipv4_address() {
        let mapped = rules(&["[::ffff:10.1.2.3]:443", "10.1.2.3:443"]).unwrap();

        assert_eq!(mapped, rules(&["10.1.2.3:443"]).unwrap());
    }

    #[test]
    fn notrack_rejects_params_before_any_change() {
        for destination in ["0.0.0.0:443", "[::]:443", "10.1.2.3:0"] {
            let refused = rules(&[destination]).unwrap_err();
            assert_eq!(refused.reason(), "destination");
        }
    }
}
