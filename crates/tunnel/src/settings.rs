//! What the configuration files of both ends have in common: networks, inner addresses, the queue,
//! offloads, options of TCP sockets.
//!
//! ```text
//!   file ──serde──▶ Networks, TunnelAddress, … ──▶ tunnel::Params, net_config, sockets
//!   Environment ──▶ the same types, by FromStr and the functions of `transfer`
//! ```
//!
//! Values that are read are well-formed; whether they go together is checked by `validate`. Reads
//! no file and no environment.

mod address;
mod checks;
mod environment;
mod transfer;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use ::settings::{ByteSize, ConfigErrors, HumanDuration, TcpOverrides, TcpSettings};
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tunnel_proto::codel;

pub use address::{AddressError, Cidr, DeviceName, TunnelAddress};
pub use checks::{
    default_mtu, route_id, validate_addresses, validate_mtu, validate_name, validate_private_keys,
};
pub use environment::Environment;
pub use transfer::{End, TransferError, trailing_number, transfer_address, transfer_addresses};

/// The shoot's networks, by what they hold. Of a list that is empty or absent, the environment's
/// is used: `SHOOT_POD_NETWORKS`, `SHOOT_SERVICE_NETWORKS`, `SHOOT_NODE_NETWORKS`, with commas
/// between.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Networks {
    /// Of pods.
    pub pods: Vec<Cidr>,
    /// Of services.
    pub services: Vec<Cidr>,
    /// Of nodes.
    pub nodes: Vec<Cidr>,
}

/// Returns whether two networks have an address in common.
#[must_use]
pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

impl Networks {
    /// Returns all of them in order, each once: ranges of nodes and pods may be the same.
    #[must_use]
    pub fn all(&self) -> Vec<IpNet> {
        let lists = [&self.pods, &self.services, &self.nodes];
        let all: BTreeSet<IpNet> = lists.into_iter().flatten().map(|cidr| cidr.0).collect();
        all.into_iter().collect()
    }

    /// Adds to `errors` what no shoot has. `key` is the path of this block.
    pub fn validate(&self, key: &str, errors: &mut ConfigErrors) {
        if self.all().is_empty() {
            errors.add(key, "at least one network of the shoot is needed");
        }
        let lists = [
            ("pods", &self.pods),
            ("services", &self.services),
            ("nodes", &self.nodes),
        ];
        for (name, list) in lists {
            for (index, cidr) in list.iter().enumerate() {
                if let Some(problem) = cidr.problem() {
                    errors.add(format_args!("{key}.{name}[{index}]"), problem);
                }
            }
        }
    }
}

/// Counters behind the newest that the far end still takes (boringtun). A probe overtakes what waits, so
/// of a full queue it takes the oldest few no more.
const REPLAY_WINDOW: usize = 1024;

/// The send queue of a tunnel over TCP (CoDel, RFC 8289). It drops rather than delays.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Queue {
    /// Delay that is always acceptable.
    pub target: HumanDuration,
    /// For how long the delay may stay above it.
    pub interval: HumanDuration,
    /// Packets held at most.
    pub packets: usize,
    /// Bytes held at most.
    pub bytes: ByteSize,
}

impl Default for Queue {
    fn default() -> Self {
        let params = codel::Params::default();
        Self {
            target: HumanDuration(params.target),
            interval: HumanDuration(params.interval),
            packets: params.max_packets,
            bytes: ByteSize(params.max_bytes as u64),
        }
    }
}

impl Queue {
    /// Adds to `errors` what cannot work. `key` is the path of this block.
    pub fn validate(&self, key: &str, errors: &mut ConfigErrors) {
        if self.target.0.is_zero() {
            errors.add(format_args!("{key}.target"), "0 would drop everything");
        }
        if self.interval < self.target {
            errors.add(
                format_args!("{key}.interval"),
                "must be at least the target",
            );
        }
        if !(16..=REPLAY_WINDOW).contains(&self.packets) {
            errors.add(
                format_args!("{key}.packets"),
                "must be from 16 to 1024, the far end's replay window",
            );
        }
        if !((64 << 10)..=(1 << 30)).contains(&self.bytes.0) {
            errors.add(format_args!("{key}.bytes"), "must be from 64KiB to 1GiB");
        }
    }

    /// Returns it as the queue takes it.
    #[must_use]
    pub fn params(&self) -> codel::Params {
        codel::Params {
            target: self.target.0,
            interval: self.interval.0,
            max_packets: self.packets,
            max_bytes: usize::try_from(self.bytes.0).unwrap_or(usize::MAX),
            ..codel::Params::default()
        }
    }
}

/// Bytes that the kernel may hold of datagrams, for each UDP socket.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "BuffersFile")]
pub struct Buffers {
    /// Received and not yet read.
    pub receive: ByteSize,
    /// Sent and still in this host.
    pub send: ByteSize,
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            receive: ByteSize(4 << 20),
            send: ByteSize(4 << 20),
        }
    }
}

impl Buffers {
    /// One batch, and what no kernel grants.
    const BOUNDS: RangeInclusive<u64> = (64 << 10)..=(1 << 30);

    /// Adds to `errors` what no kernel grants.
    pub fn validate(&self, errors: &mut ConfigErrors) {
        for (key, size) in [("receive", self.receive), ("send", self.send)] {
            if !Self::BOUNDS.contains(&size.0) {
                let (least, most) = (Self::BOUNDS.start(), Self::BOUNDS.end());
                let (least, most) = (ByteSize(*least), ByteSize(*most));
                let why = format_args!("not between {least} and {most}");
                errors.add(format_args!("buffers.{key}"), why);
            }
        }
    }

    /// Returns it as sockets take it.
    #[must_use]
    pub fn sizes(&self) -> udp::BufferSizes {
        udp::BufferSizes {
            receive: self.receive.as_usize(),
            send: self.send.as_usize(),
        }
    }
}

/// What the kernel does for packets in batches, where it can; `false` switches it off, for kernels
/// and devices that get it wrong.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Offloads {
    /// Segmentation and checksums on the TUN device.
    pub device: bool,
    /// Datagrams sent and received in batches.
    pub udp: bool,
}

impl Offloads {
    /// Returns it as UDP sockets take it.
    #[must_use]
    pub fn of_udp(&self) -> udp::Offloads {
        udp::Offloads {
            gso: self.udp,
            gro: self.udp,
        }
    }
}

impl Default for Offloads {
    fn default() -> Self {
        Self {
            device: true,
            udp: true,
        }
    }
}

/// Returns the `tcp` block that is in effect for a tunnel's streams: `overrides` over our defaults
/// for them, which are `congestion: auto`, `notsentLowat: 64KiB`, `userTimeout: 10s` and no keepalive,
/// since probes go through the tunnel. Nothing is checked yet.
#[must_use]
pub fn tcp(overrides: &TcpOverrides) -> TcpSettings {
    let defaults = TcpSettings {
        keepalive: HumanDuration::default(),
        user_timeout: HumanDuration::from_secs(10),
        congestion: TcpSettings::AUTO.to_owned(),
        notsent_lowat: ByteSize(64 << 10),
        ..TcpSettings::default()
    };
    overrides.over(&defaults)
}

#[cfg(test)]
mod tests;
