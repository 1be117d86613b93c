//! Packets and errors of one direction of one kind of stream, as upstream counts them.
//!
//! A series appears when it is first counted, as with upstream: packets of a type that never came
//! are not exposed.

use std::sync::{Arc, OnceLock};

use knp_proto::PacketKind;
use telemetry::Registry;
use telemetry::metrics::{Counter, CounterFamily};

use super::GrpcCode;

/// The two families that server and agent have under names of their own.
#[derive(Clone, Debug)]
pub(super) struct StreamFamilies {
    packets: CounterFamily,
    errors: CounterFamily,
}

impl StreamFamilies {
    pub(super) fn new(registry: &Registry, packets: &'static str, errors: &'static str) -> Self {
        Self {
            packets: registry.counter(
                packets,
                "Packets of gRPC streams, by direction and type.",
                &["segment", "packet_type"],
            ),
            errors: registry.counter(
                errors,
                "Errors of gRPC streams, by direction, status code and type of the packet; Unknown when none was at hand.",
                &["segment", "code", "packet_type"],
            ),
        }
    }

    pub(super) fn segment(&self, segment: &'static str) -> Arc<StreamCounters> {
        Arc::new(StreamCounters {
            segment,
            families: self.clone(),
            packets: Default::default(),
        })
    }
}

/// Counters of one segment.
#[derive(Debug)]
pub(crate) struct StreamCounters {
    segment: &'static str,
    families: StreamFamilies,
    packets: [OnceLock<Counter>; KINDS],
}

impl StreamCounters {
    /// Counts one packet.
    pub(crate) fn packet(&self, kind: PacketKind) {
        let series = || {
            let labels = [self.segment, kind.as_str()];
            self.families.packets.with(&labels)
        };
        match self.packets.get(kind as usize) {
            Some(counter) => counter.get_or_init(series).inc(),
            None => series().inc(),
        }
    }

    /// Counts an error of the stream, with the type of the packet that was to be sent, or nothing
    /// for one that was to be received. The plain end of a stream is none.
    pub(crate) fn error(&self, code: GrpcCode, kind: Option<PacketKind>) {
        let kind = kind.unwrap_or(PacketKind::Unknown);
        let labels = [self.segment, code.as_str(), kind.as_str()];
        self.families.errors.with(&labels).inc();
    }
}

/// How many kinds of packets there are; one beyond is counted all the same, only slower.
const KINDS: usize = PacketKind::Unknown as usize + 1;
