//! The bounds of WireGuard listeners: checked, and as the listeners take them.

use std::ops::RangeInclusive;
use std::time::Duration;

use settings::{ByteSize, ConfigErrors};
use udp::BufferSizes;

use super::file::WireGuardLimitsFile;
use crate::wireguard::{Limits, Params, ScanBudget};

/// Most flows; each takes about a kilobyte.
const MOST_FLOWS: u32 = 16 * 1024 * 1024;

/// Bounds of how long a silent client may still be sent something.
const FLOW_IDLE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Most networks told apart; each takes 64 bytes per worker.
const MOST_SLOTS: u32 = 1024 * 1024;

/// Bounds of the kernel's buffers: one batch, and what no kernel grants.
const BUFFER: RangeInclusive<u64> = 64 * 1024..=1024 * 1024 * 1024;

impl WireGuardLimitsFile {
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
        for (key, value, most) in [
            ("flows", self.flows, MOST_FLOWS),
            ("sourceSlots", self.source_slots, MOST_SLOTS),
        ] {
            if value > most {
                errors.add(format!("wireguard.{key}"), format!("more than {most}"));
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
                let (least, most) = (ByteSize(*BUFFER.start()), ByteSize(*BUFFER.end()));
                let why = format!("not between {least} and {most}");
                errors.add(format!("wireguard.{key}"), why);
            }
        }
    }

    pub(super) fn params(&self) -> Params {
        let size = |size: ByteSize| usize::try_from(size.0).unwrap_or(usize::MAX);
        let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        Params {
            flows: count(self.flows),
            limits: Limits {
                idle: self.flow_idle.0,
                source_rate: self.source_rate,
                source_burst: self.source_burst,
                source_slots: count(self.source_slots),
            },
            scan: ScanBudget {
                rate: self.scan_rate,
                burst: self.scan_burst,
            },
            buffers: BufferSizes {
                receive: size(self.receive_buffer),
                send: size(self.send_buffer),
            },
        }
    }
}
