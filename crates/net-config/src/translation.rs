//! Whether something in this network namespace translates destinations.
//!
//! ```text
//!   nf_tables: any rule with dnat, redirect or netmap, iptables-nft's included   (netlink)
//!   iptables-legacy: its nat table is there; its rules cannot be read by netlink  (/proc)
//!   IPVS: any virtual server                                                     (/proc)
//! ```
//!
//! Which address a rule translates to is not looked at: it may stand in a map, a range or a target
//! of iptables, and a wrong guess breaks connections. So "some" is the answer for any of them.

use std::{fmt, fs, io};

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::{
    error::{NetlinkError, NftablesError},
    netlink::Connection,
    nft::ruleset,
};

/// Names of the legacy tables that are in use in this namespace, by family.
const LEGACY: [&str; 2] = [
    "/proc/thread-self/net/ip_tables_names",
    "/proc/thread-self/net/ip6_tables_names",
];
const IPVS: &str = "/proc/thread-self/net/ip_vs";

/// What translates destinations, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DestinationNat {
    /// The nat table of iptables-legacy is in use.
    IptablesLegacy,
    /// IPVS has a virtual server.
    Ipvs,
    /// A rule of nf_tables.
    Rule {
        /// The family of its table.
        family: &'static str,
        /// Its table.
        table: String,
        /// Its chain.
        chain: String,
    },
    /// A file that would tell cannot be read.
    Unreadable {
        /// The file.
        file: &'static str,
    },
}

impl fmt::Display for DestinationNat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IptablesLegacy => f.write_str("the nat table of iptables-legacy"),
            Self::Ipvs => f.write_str("IPVS"),
            Self::Rule {
                family,
                table,
                chain,
            } => write!(f, "chain {chain} of the nftables table {family} {table}"),
            Self::Unreadable { file } => write!(f, "unknown, since {file} cannot be read"),
        }
    }
}

/// Looks for destination NAT; cheap while the ruleset does not change.
///
/// What was found once counts for good: connections that were translated outlive the rules.
#[derive(Debug, Default)]
pub struct NatWatch {
    found: Option<DestinationNat>,
    /// The generation of the ruleset in which nothing was found.
    clean: Option<u32>,
}

impl NatWatch {
    /// Returns an error if there is destination NAT in this network namespace, or was at an
    /// earlier check.
    ///
    /// # Errors
    /// `Translated`; `NotSupported`, `Permission` and `Other` when the ruleset cannot be read.
    pub async fn check(&mut self) -> Result<(), NftablesError> {
        if self.found.is_none() {
            let found = self.look().await;
            self.found = found
                .map_err(|source| NftablesError::netlink("looking for destination NAT", source))?;
        }
        match &self.found {
            Some(by) => Err(NftablesError::Translated { by: by.clone() }),
            None => Ok(()),
        }
    }

    async fn look(&mut self) -> Result<Option<DestinationNat>, NetlinkError> {
        if let Some(found) = outside_nf_tables(fs::read_to_string) {
            return Ok(Some(found));
        }
        let mut connection = Connection::open(NETLINK_NETFILTER, 0)?;
        // Before the rules: what changes while they are read is a generation of its own.
        let generation = ruleset::generation(&mut connection).await?;
        if generation.is_some() && generation == self.clean {
            return Ok(None);
        }
        let found = ruleset::destination_nat(&mut connection).await?;
        if found.is_none() {
            self.clean = generation;
        }
        Ok(found)
    }
}

/// What is no rule of nf_tables, told by files of the kernel.
fn outside_nf_tables(read: impl Fn(&'static str) -> io::Result<String>) -> Option<DestinationNat> {
    let says = |file, line: fn(&str) -> bool, found| match read(file) {
        Ok(text) => text.lines().any(line).then_some(found),
        // The kernel part that would write it is not loaded.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(_) => Some(DestinationNat::Unreadable { file }),
    };
    let is_nat = |line: &str| line == "nat";
    // After three lines of titles, "TCP  644001:01BB rr" and so on: ip_vs_info_seq_show.
    let is_server = |line: &str| {
        let protocol = line.split_whitespace().next();
        matches!(protocol, Some("TCP" | "UDP" | "SCTP" | "FWM"))
    };
    LEGACY
        .iter()
        .find_map(|file| says(file, is_nat, DestinationNat::IptablesLegacy))
        .or_else(|| says(IPVS, is_server, DestinationNat::Ipvs))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `cat /proc/net/ip_vs` shows it (`ip_vs_info_seq_show` in net/netfilter/ipvs/ip_vs_ctl.c).
    const TITLES: &str = "IP Virtual Server version 1.2.1 (size=4096)\n\
        Prot LocalAddress:Port Scheduler Flags\n\
        \x20 -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n";

    fn files(written: &[(&'static str, &str)]) -> Option<DestinationNat> {
        outside_nf_tables(|file| {
            let found = written.iter().find(|(name, _)| *name == file);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            found
                .map(|(_, text)| (*text).to_owned())
                .ok_or_else(missing)
        })
    }

    #[test]
    fn legacy_nat_table_counts_in_either_family() {
        assert_eq!(files(&[]), None);
        assert_eq!(files(&[(LEGACY[0], "filter\nmangle\n")]), None);
        for file in LEGACY {
            let found = files(&[(file, "filter\nnat\n")]);
            assert_eq!(found, Some(DestinationNat::IptablesLegacy));
        }
    }

    #[test]
    fn ipvs_counts_once_it_has_a_server() {
        assert_eq!(files(&[(IPVS, TITLES)]), None);
        let server = format!("{TITLES}TCP  64400001:01BB rr\n  -> 0A010203:01BB Masq 1 0 0\n");
        assert_eq!(files(&[(IPVS, &server)]), Some(DestinationNat::Ipvs));
    }

    #[test]
    fn unreadable_file_counts_as_nat() {
        let found = outside_nf_tables(|_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(found, Some(DestinationNat::Unreadable { file: LEGACY[0] }));
    }
}
