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

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    address::is_device_name,
    error::{NetlinkError, lacks_nf_tables},
    netlink::Connection,
    nft::{self, Chain, ChainKind, Expression, Hook, Rule},
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
    /// A rule for what comes in by `device`, in the inet table `table`, which belongs to this
    /// caller alone. Nothing is touched yet, and the device need not exist.
    pub fn new(table: impl Into<String>, device: impl Into<String>) -> Self {
        Self {
            table: table.into(),
            device: device.into(),
        }
    }

    /// Makes the table hold exactly this rule, in one atomic step, and reads it back; calling it
    /// again is harmless.
    ///
    /// Dropping the future does not undo the batch, which the kernel has or has not taken whole.
    ///
    /// # Errors
    /// `NotSupported` on a kernel without nf_tables, its `nat` chains or its `masquerade`;
    /// `Permission` without `CAP_NET_ADMIN`; `DeviceName`, `TableName`; `NotInPlace`; `Other`.
    pub async fn install(&self) -> Result<(), MasqueradeError> {
        const ATTEMPT: &str = "installing the masquerade rule";
        self.check()?;
        let mut connection = connect(ATTEMPT)?;
        let request = connection.request();
        let request = nft::replace_table(request, &self.table, &[chain()], &[self.rule()]);
        let answer = connection.acknowledged(&request).await;
        answer.map_err(|source| MasqueradeError::netlink(ATTEMPT, source))?;
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
        const ATTEMPT: &str = "reading the masquerade rule";
        self.check()?;
        let mut connection = connect(ATTEMPT)?;
        let (chains, rules) = nft::read_table(&mut connection, &self.table)
            .await
            .map_err(|source| MasqueradeError::netlink(ATTEMPT, source))?;
        Ok(chains == [chain()] && rules == [self.rule()])
    }

    /// Removes the table. That there is none, or no nf_tables at all, is success. Connections that
    /// are masqueraded stay so.
    ///
    /// # Errors
    /// `Permission`, `DeviceName`, `TableName`, `Other`.
    pub async fn remove(&self) -> Result<(), MasqueradeError> {
        self.check()?;
        match self.delete().await {
            Err(MasqueradeError::NotSupported { .. }) => Ok(()),
            other => other,
        }
    }

    async fn delete(&self) -> Result<(), MasqueradeError> {
        const ATTEMPT: &str = "removing the masquerade rule";
        let mut connection = connect(ATTEMPT)?;
        let request = nft::delete_table(connection.request(), &self.table);
        let answer = connection.acknowledged(&request).await;
        answer.map_err(|source| MasqueradeError::netlink(ATTEMPT, source))
    }

    fn rule(&self) -> Rule {
        let device = nft::device_name(&self.device);
        Rule {
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
        }
    }

    fn check(&self) -> Result<(), MasqueradeError> {
        if !nft::is_table_name(&self.table) {
            return Err(MasqueradeError::TableName {
                table: self.table.clone(),
            });
        }
        if !is_device_name(&self.device) {
            return Err(MasqueradeError::DeviceName {
                device: self.device.clone(),
            });
        }
        Ok(())
    }
}

fn connect(attempt: &'static str) -> Result<Connection, MasqueradeError> {
    Connection::open(NETLINK_NETFILTER, 0)
        .map_err(|source| MasqueradeError::netlink(attempt, source))
}

fn chain() -> Chain {
    Chain {
        name: CHAIN.to_owned(),
        kind: ChainKind::Nat,
        hook: HOOK,
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
    /// The kernel would not take the name: 1 to 255 bytes, no zero byte.
    #[error("{table:?} is not a table name")]
    TableName {
        /// As configured.
        table: String,
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
            Self::TableName { .. } => "table_name",
        }
    }

    fn netlink(attempt: &'static str, source: NetlinkError) -> Self {
        match source.errno() {
            Some(libc::EPERM) => Self::Permission { attempt },
            errno if lacks_nf_tables(errno) => Self::NotSupported { attempt, source },
            _ => Self::Other { attempt, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_no_kernel_takes_are_refused_before_anything_is_touched() {
        let refused = Masquerade::new("", "rhizome0").install().await;
        assert_eq!(refused.unwrap_err().reason(), "table_name");

        let refused = Masquerade::new("rhizome", "a-name-far-too-long")
            .remove()
            .await;
        assert_eq!(refused.unwrap_err().reason(), "device_name");
    }

    #[test]
    fn a_kernel_without_nat_is_told_apart() {
        let reason = |errno| {
            let detail = String::new();
            MasqueradeError::netlink("testing", NetlinkError::Refused { errno, detail }).reason()
        };

        assert_eq!(reason(libc::ENOENT), "not_supported");
        assert_eq!(reason(libc::EOPNOTSUPP), "not_supported");
        assert_eq!(reason(libc::EPERM), "permission");
        assert_eq!(reason(libc::ENOMEM), "other");
    }
}
