//! The whole ruleset, whichever table it is in: its generation, and its rules that translate
//! destinations.
//!
//! Changes nothing. `iptables-nft` writes its rules here too, with targets of its own.

use super::{
    GET_RULE, NEW_RULE, NFTA_EXPR_DATA, NFTA_EXPR_NAME, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS,
    NFTA_TABLE, SUBSYSTEM,
};
use crate::{
    DestinationNat,
    attributes::{self, ACK, DUMP, Request, attribute, attributes},
    error::NetlinkError,
    netlink::Connection,
};

const NEW_GENERATION: u16 = (SUBSYSTEM << 8) | 15;
const GET_GENERATION: u16 = (SUBSYSTEM << 8) | 16;
const NFTA_GEN_ID: u16 = 1;
const NFTA_NAT_TYPE: u16 = 1;
const NFT_NAT_DNAT: u32 = 1;
const NFTA_TARGET_NAME: u16 = 1;
/// `struct nfgenmsg` of every family.
const UNSPECIFIED: [u8; 4] = [0; 4];

/// Targets of iptables that give a packet another destination.
const TARGETS: [&str; 3] = ["DNAT", "NETMAP", "REDIRECT"];

/// Returns the number that the kernel increments with every change of the ruleset.
pub(crate) async fn generation(connection: &mut Connection) -> Result<Option<u32>, NetlinkError> {
    // No dump, but the answer ends in the same way, by an acknowledgement.
    let build = |request: Request| request.message(GET_GENERATION, ACK, &UNSPECIFIED, |_| {});
    let found = connection.dump(build, NEW_GENERATION, decode_generation);
    Ok(found.await?.first().copied())
}

/// Returns a rule that translates destinations, if there is any.
pub(crate) async fn destination_nat(
    connection: &mut Connection,
) -> Result<Option<DestinationNat>, NetlinkError> {
    let build = |request: Request| request.message(GET_RULE, DUMP, &UNSPECIFIED, |_| {});
    let found = connection.dump(build, NEW_RULE, decode_destination_nat);
    Ok(found.await?.into_iter().next())
}

fn decode_generation(payload: &[u8]) -> Option<u32> {
    attributes::u32_be(attribute(payload.get(4..)?, NFTA_GEN_ID)?)
}

fn decode_destination_nat(payload: &[u8]) -> Option<DestinationNat> {
    let rule = payload.get(4..)?;
    let text = |kind| attribute(rule, kind).and_then(attributes::text);
    let mut expressions = attributes(attribute(rule, NFTA_RULE_EXPRESSIONS)?);
    expressions
        .any(|(_, element)| translates_destination(element))
        .then(|| DestinationNat::Rule {
            family: family(payload),
            table: text(NFTA_TABLE).unwrap_or_default().to_owned(),
            chain: text(NFTA_RULE_CHAIN).unwrap_or_default().to_owned(),
        })
}

fn translates_destination(element: &[u8]) -> bool {
    let name = attribute(element, NFTA_EXPR_NAME).and_then(attributes::text);
    let data = attribute(element, NFTA_EXPR_DATA).unwrap_or_default();
    match name {
        Some("nat") => {
            attribute(data, NFTA_NAT_TYPE).and_then(attributes::u32_be) == Some(NFT_NAT_DNAT)
        }
        Some("redir") => true,
        Some("target") => attribute(data, NFTA_TARGET_NAME)
            .and_then(attributes::text)
            .is_some_and(|target| TARGETS.contains(&target)),
        _ => false,
    }
}

/// `NFPROTO_*` as the nft program spells them.
fn family(payload: &[u8]) -> &'static str {
    match payload.first() {
        Some(1) => "inet",
        Some(2) => "ip",
        Some(10) => "ip6",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_decode_or_do_not(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = decode_generation(&bytes);
            let _ = decode_destination_nat(&bytes);
        }
    }
}
