//! Linux network configuration over netlink: what is wanted is compared with what is there by a
//! pure function, and only the difference is applied. No helper program is ever started.
//!
//! ```text
//!   AddressParams ──▶ plan (pure) ◀── links, addresses   (dumps)
//!                        │
//!                        ▼
//!                    [Change] ──▶ apply ──▶ Changes, Observer
//!                        ▲
//!   kernel events ───────┴── AddressKeeper::run: look again, paced
//!
//!   Rules ──▶ one nf_tables batch: table, chains, rules
//! ```
//!
//! The two ends of a tunnel set up what is around their TUN device: [`TunnelDevice`],
//! [`TunnelRoutes`], [`SourceChecks`], [`Forwarding`] and [`Rules::masquerade`], each read back.
//!
//! [`AddressKeeper`] keeps host addresses on a device of the node; [`Rules::no_track`] keeps
//! connection tracking away from them; [`conntrack_active`] tells whether that is worth doing, [`NatWatch`]
//! whether it would break translated connections.
//!
//! Links, addresses, routes and rules are messages of `rtnetlink`, except what is read of links
//! (`rtnl::link`, `rtnl::device`), over the socket of nf_tables, which is encoded here: `rustables` is GPL-3.0, `nftnl` binds a C library, and `nftables` runs the `nft` program,
//! which an image of one static binary does not have.
//!
//! Not here: the TUN device itself and its packets, and no metrics: an [`Observer`] counts.
#![forbid(unsafe_code)]

mod address;
mod attributes;
mod conntrack;
mod error;
mod kind;
mod masquerade;
mod netlink;
mod nft;
mod notrack;
mod pace;
mod plan;
mod rtnl;
mod translation;
mod tunnel;
mod watch;

pub use address::{AddressKeeper, AddressParams, Changes, Observer};
pub use conntrack::conntrack_active;
pub use error::{NetConfigError, NetlinkError, NftablesError};
pub use kind::DeviceKind;
pub use nft::Rules;
pub use plan::Change;
pub use translation::{DestinationNat, NatWatch};
pub use tunnel::{
    Forwarded, Forwarding, ReversePath, SourceChecks, TunnelDevice, TunnelRoutes,
    ipv6_forwarding_enabled, setup_ipv6_forwarding,
};
