//! Masquerading of what comes out of the tunnel, in an nf_tables table of its own.
//!
//! ```text
//!   tunnel device ──▶ forward ──▶ postrouting (nat, 100): iifname DEVICE oifname != DEVICE masquerade
//!                                    ──▶ uplink, source: the uplink's address
//!   tunnel device ◀── forward ◀── connection tracking turns replies back
//! ```
//!
//! One rule serves both families. Source ports are chosen at random: without that two connections
//! that begin at once may be given the same one, and the loser's first packet is dropped. The rule
//! is replaced in one atomic batch, of which established connections notice nothing: the kernel
//! asks it once per connection. No other table is touched.
//!
//! Postrouting tells the device a packet came in by since Linux 5.7, and the inet family has `nat`
//! since 5.2. Not here: forwarding ([`Forwarding`](crate::Forwarding)), and how long the kernel
//! remembers a silent connection, which is a setting of the whole namespace.

use crate::{
    address::is_device_name,
    error::NftablesError,
    nft::{self, Rules},
};

/// `NF_INET_POST_ROUTING` and `NF_IP_PRI_NAT_SRC`.
const HOOK: (u32, i32) = (4, 100);
const CHAIN: &str = "postrouting";
/// `IFNAMSIZ`, terminating zero included: how much of the register a device's name takes.
const NAME_BYTES: usize = 16;
/// `NF_NAT_RANGE_PROTO_RANDOM_FULLY`.
const RANDOM_PORTS: u32 = 1 << 4;

impl Rules {
    /// A rule that masquerades what comes in by `device` and leaves by another, in the inet table
    /// `table` (1 to 255 bytes, no zero byte), which belongs to this caller alone. Nothing is touched
    /// yet, and the device need not exist.
    ///
    /// # Errors
    /// `DeviceName`.
    pub fn masquerade(table: impl Into<String>, device: &str) -> Result<Self, NftablesError> {
        if !is_device_name(device) {
            let device = device.to_owned();
            return Err(NftablesError::DeviceName { device });
        }
        let mut name = device.as_bytes().to_vec();
        name.resize(NAME_BYTES, 0);
        let mut rules = Self::new(table, "the masquerade rule");
        rules.add_chain(CHAIN, "nat", HOOK.0, HOOK.1);
        rules.add_rule(CHAIN, |out| {
            nft::meta(out, nft::META_IIFNAME, nft::EQUAL, &name);
            nft::meta(out, nft::META_OIFNAME, nft::NOT_EQUAL, &name);
            nft::masquerade(out, RANDOM_PORTS);
        });
        Ok(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_name_changes_nothing() {
        let refused = Rules::masquerade("rhizome", "a-name-far-too-long");
        assert_eq!(refused.unwrap_err().reason(), "device_name");
    }
}
