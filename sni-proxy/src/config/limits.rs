//! Bounds of connections and datagrams.

use std::ops::RangeInclusive;
use std::time::Duration;

use route::Route;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settings::{ByteSize, ConfigErrors, HumanDuration};
use udp::BufferSizes;

/// Bounds of a preamble: the smallest still takes any PROXY header and an ordinary ClientHello.
const PREAMBLE_BYTES: RangeInclusive<u64> = 1024..=16 * 1024 * 1024;

/// Upper bound of flows; each takes about a kilobyte.
const MAX_FLOWS: u32 = 16 * 1024 * 1024;

/// Bounds of how long a silent client may still be sent something.
const FLOW_IDLE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Upper bound of networks told apart; each takes 96 bytes per worker.
const MAX_SLOTS: u32 = 1024 * 1024;

/// Bounds of the kernel's buffers: one batch, and what no kernel grants.
const BUFFER: RangeInclusive<u64> = 64 * 1024..=1024 * 1024 * 1024;

/// Bounds in number, size and time.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "LimitsFile")]
pub(crate) struct Limits {
    /// Connections of the process; above it new ones are refused and counted. Lowered at start,
    /// with a warning, to what the descriptor limit carries.
    pub(crate) connections: u64,
    /// Connections of one client, an IPv4 address or an IPv6 /64; 0 for no limit.
    pub(crate) connections_per_source: u32,
    /// By when the preamble must be complete.
    pub(crate) preamble_timeout: HumanDuration,
    /// Bytes each part of a preamble may have.
    pub(crate) preamble_bytes: ByteSize,
    /// Longest time without a byte either way; 0 for no limit.
    pub(crate) idle_timeout: HumanDuration,
    /// Age at which a connection is cut; 0 for no limit.
    pub(crate) max_connection_age: HumanDuration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 750_000,
            connections_per_source: 0,
            preamble_timeout: HumanDuration(Duration::from_secs(10)),
            preamble_bytes: ByteSize(64 * 1024),
            idle_timeout: HumanDuration(Duration::ZERO),
            max_connection_age: HumanDuration(Duration::ZERO),
        }
    }
}

impl Limits {
    pub(super) fn validate(&self, errors: &mut ConfigErrors) {
        if self.connections == 0 {
            errors.add("limits.connections", "0 would refuse every connection");
        }
        if self.preamble_timeout.0.is_zero() {
            errors.add("limits.preambleTimeout", "0 would refuse every connection");
        }
        if !PREAMBLE_BYTES.contains(&self.preamble_bytes.0) {
            let (min, max) = (*PREAMBLE_BYTES.start(), *PREAMBLE_BYTES.end());
            let why = format!("not between {} and {}", ByteSize(min), ByteSize(max));
            errors.add("limits.preambleBytes", why);
        }
    }

    /// Returns the limits in time of a connection by `route`, whose own go before the general ones: how long
    /// nothing may be relayed, and the age.
    pub(crate) fn of(&self, route: Option<&Route>) -> [Option<Duration>; 2] {
        let idle = route.and_then(Route::idle_timeout);
        let age = route.and_then(Route::max_connection_age);
        [(idle, self.idle_timeout), (age, self.max_connection_age)].map(|(own, general)| {
            let limit = own.or_else(|| general.non_zero());
            limit.filter(|limit| !limit.is_zero())
        })
    }
}

/// Bounds of the listeners that take WireGuard.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
#[schemars(rename = "WireGuardLimitsFile")]
pub(crate) struct WireGuardLimits {
    /// Flows of the process that a server has answered: clients by their address, counted for each
    /// server they use. Others have a quarter as many places. A full table evicts.
    pub(crate) flows: u32,
    /// Silence of a client after which its flow ends, and nothing is sent to it any more.
    pub(crate) flow_idle: HumanDuration,
    /// Datagrams per second, of one network (IPv4 /24, IPv6 /56) and worker, that belong to no
    /// proven flow; counted apart are as many handshakes whose sender knows the server's key, and 16
    /// times as many keys tried.
    pub(crate) source_rate: u32,
    /// How many of those may come at once.
    pub(crate) source_burst: u32,
    /// Networks that are told apart, per worker; beyond that they share.
    pub(crate) source_slots: u32,
    /// Public keys tried per second, for handshakes that name no route.
    pub(crate) scan_rate: u32,
    /// How many of those may be tried at once.
    pub(crate) scan_burst: u32,
    /// Bytes that may wait to be received, for each socket.
    pub(crate) receive_buffer: ByteSize,
    /// Bytes that may wait to be sent, for each socket.
    pub(crate) send_buffer: ByteSize,
}

impl Default for WireGuardLimits {
    fn default() -> Self {
        Self {
            flows: 65_536,
            flow_idle: HumanDuration(Duration::from_secs(180)),
            source_rate: 500,
            source_burst: 1000,
            source_slots: 8192,
            scan_rate: 200_000,
            scan_burst: 100_000,
            receive_buffer: ByteSize(4 * 1024 * 1024),
            send_buffer: ByteSize(4 * 1024 * 1024),
        }
    }
}

impl WireGuardLimits {
    pub(super) fn validate(&self, errors: &mut ConfigErrors) {
        let zero = [
            ("flows", self.flows),
            ("sourceRate", self.source_rate),
            ("sourceBurst", self.source_burst),
            ("sourceSlots", self.source_slots),
        ];
        for (key, value) in zero {
            if value == 0 {
                errors.add(format!("wireguard.{key}"), "0 would refuse every client");
            }
        }
        for (key, value, max) in [
            ("flows", self.flows, MAX_FLOWS),
            ("sourceSlots", self.source_slots, MAX_SLOTS),
        ] {
            if value > max {
                errors.add(format!("wireguard.{key}"), format!("more than {max}"));
            }
        }
        if !FLOW_IDLE.contains(&self.flow_idle.0) {
            errors.add("wireguard.flowIdle", "not between 1s and 1h");
        }
        for (key, value) in [
            ("receiveBuffer", self.receive_buffer),
            ("sendBuffer", self.send_buffer),
        ] {
            if !BUFFER.contains(&value.0) {
                let (min, max) = (ByteSize(*BUFFER.start()), ByteSize(*BUFFER.end()));
                let why = format!("not between {min} and {max}");
                errors.add(format!("wireguard.{key}"), why);
            }
        }
    }

    /// Returns the kernel's buffers of each socket.
    pub(crate) fn buffers(&self) -> BufferSizes {
        BufferSizes {
            receive: self.receive_buffer.as_usize(),
            send: self.send_buffer.as_usize(),
        }
    }
}
