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
    error::{NetlinkError, lacks_nf_tables},
    nft::{self, Chain, ChainKind, Expression, Hook, Rule, Table},
};

/// `NF_INET_POST_ROUTING` and `NF_IP_PRI_NAT_SRC`.
const HOOK: Hook = Hook {
    number: 4,
    priority: 100,
};
const CHAIN: &str = "postrouting";

/// Masquerading of packets that came in by one device and leave by another.
#[derive(Clone, Debug)]
pub struct Masquerade {
    table: String,
    device: String,
}

impl Masquerade {
    /// A rule for what comes in by `device`, in the inet table `table` (1 to 255 bytes, no zero
    /// byte), which belongs to this caller alone. Nothing is touched yet, and the device need not exist.
    pub fn new(table: impl Into<String>, device: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            device: device.into(),
        }
    }

    /// Makes the table hold exactly this rule, in one atomic step, and reads it back; calling it
    /// again is harmless.
    ///
    /// # Errors
    /// `NotSupported` on a kernel without nf_tables, its `nat` chains or its `masquerade`;
    /// `Permission` without `CAP_NET_ADMIN`; `DeviceName`; `NotInPlace`; `Other`.
    pub async fn install(&self) -> Result<(), MasqueradeError> {
        let installing = failed("installing the masquerade rule");
        self.table()?.install().await.map_err(installing)?;
        if self.installed().await? {
            Ok(())
        } else {
            Err(MasqueradeError::NotInPlace {
                table: self.table.clone(),
            })
        }
    }

    /// Whether the table holds exactly this rule, as the kernel tells.
    ///
    /// # Errors
    /// As for [`Masquerade::install`].
    pub async fn installed(&self) -> Result<bool, MasqueradeError> {
        let reading = failed("reading the masquerade rule");
        self.table()?.installed().await.map_err(reading)
    }

    /// Removes the table. That there is none, or no nf_tables at all, is success. Connections that
    /// are masqueraded stay so.
    ///
    /// # Errors
    /// `Permission`, `DeviceName`, `Other`.
    pub async fn remove(&self) -> Result<(), MasqueradeError> {
        let removing = failed("removing the masquerade rule");
        self.table()?.remove().await.map_err(removing)
    }

    fn table(&self) -> Result<Table<'_>, MasqueradeError> {
        if !is_device_name(&self.device) {
            return Err(MasqueradeError::DeviceName {
                device: self.device.clone(),
            });
        }
        let device = nft::device_name(&self.device);
        let chain = Chain {
            name: CHAIN.to_owned(),
            kind: ChainKind::Nat,
            hook: HOOK,
        };
        let rule = Rule {
            chain: CHAIN.to_owned(),
            expressions: vec![
                Expression::Meta(nft::META_IIFNAME),
                Expression::Equal(device.clone()),
                Expression::Meta(nft::META_OIFNAME),
                Expression::NotEqual(device),
                Expression::Masquerade {
                    flags: nft::RANDOM_PORTS,
                },
            ],
        };
        Ok(Table {
            name: &self.table,
            chains: vec![chain],
            rules: vec![rule],
        })
    }
}

/// Names a failed request.
fn failed(attempt: &'static str) -> impl FnOnce(NetlinkError) -> MasqueradeError {
    move |source| match source.errno() {
        Some(libc::EPERM) => MasqueradeError::Permission { attempt },
        errno if lacks_nf_tables(errno) => MasqueradeError::NotSupported { attempt, source },
        _ => MasqueradeError::Other { attempt, source },
    }
}

/// Why the masquerade rule is not in place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MasqueradeError {
    /// The kernel would not take the name: 1 to 15 bytes, no slash, colon or white space.
    #[error("{device:?} is not a device name")]
    DeviceName {
        /// As configured.
        device: String,
    },
    /// The kernel accepted the rule, and reading back shows something else.
    #[error("the kernel accepted the masquerade rule, and table {table} does not show it")]
    NotInPlace {
        /// The table.
        table: String,
    },
    /// The kernel lacks nf_tables, its `nat` chains in the inet family, or `masquerade`.
    #[error("{attempt}: this kernel lacks nf_tables with NAT (nft_chain_nat, nft_masq)")]
    NotSupported {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// Anything else the kernel or the socket said.
    #[error("{attempt}")]
    Other {
        /// What was attempted.
        attempt: &'static str,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// The process lacks `CAP_NET_ADMIN` in this network namespace.
    #[error("{attempt} needs CAP_NET_ADMIN")]
    Permission {
        /// What was attempted.
        attempt: &'static str,
    },
}

impl MasqueradeError {
    /// A label from a closed set, for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::DeviceName { .. } => "device_name",
            Self::NotInPlace { .. } => "not_in_place",
            Self::NotSupported { .. } => "not_supported",
            Self::Other { .. } => "other",
            Self::Permission { .. } => "permission",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_no_kernel_takes_is_refused_before_anything_is_touched() {
        let refused = Masquerade::new("rhizome", "a-name-far-too-long")
            .remove()
            .await;
        assert_eq!(refused.unwrap_err().reason(), "device_name");
    }

    #[test]
    fn a_kernel_without_nat_is_told_apart() {
        let reason = |errno| {
            let detail = String::new();
            failed("testing")(NetlinkError::Refused { errno, detail }).reason()
        };

        assert_eq!(reason(libc::ENOENT), "not_supported");
        assert_eq!(reason(libc::EOPNOTSUPP), "not_supported");
        assert_eq!(reason(libc::EPERM), "permission");
        assert_eq!(reason(libc::ENOMEM), "other");
    }
}
