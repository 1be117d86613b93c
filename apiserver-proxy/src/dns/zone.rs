//! The zone: one name, its addresses, and nothing below it.
//!
//! Knows no sockets. The SOA and NS records are those of the zone file that Gardener's "API server via
//! SNI" proposal puts beside the proxy, so that either can be exchanged for the other.

use std::net::IpAddr;

use hickory_server::proto::op::{LowerQuery, Message, ResponseCode};
use hickory_server::proto::rr::rdata::{NS, SOA};
use hickory_server::proto::rr::{LowerName, Name, RData, Record, RecordType};

/// Life of every record, in seconds; also how long a denial may be kept (RFC 2308 §5).
const TTL: u32 = 30;

/// Serial number of the one version there is.
const SERIAL: u32 = 2_017_042_745;

/// Refresh, retry and expire of a zone that is never transferred: two weeks, in seconds.
const TWO_WEEKS: i32 = 1_209_600;

/// An authoritative zone whose only name is its apex.
#[derive(Debug)]
pub(super) struct Zone {
    origin: LowerName,
    soa: Record,
    ns: RData,
    addresses: Vec<RData>,
}

impl Zone {
    /// Makes the zone `origin`, whose apex has `addresses`.
    pub(super) fn new(origin: &Name, addresses: &[IpAddr]) -> Self {
        let mut origin = origin.clone();
        origin.set_fqdn(true);
        let host = Name::from_labels([b"local".as_slice()]).expect("a short word is a label");
        let soa = SOA::new(
            host.clone(),
            host.clone(),
            SERIAL,
            TWO_WEEKS,
            TWO_WEEKS,
            TWO_WEEKS,
            TTL,
        );
        Self {
            soa: Record::from_rdata(origin.clone(), TTL, RData::SOA(soa)),
            ns: RData::NS(NS(host)),
            addresses: addresses.iter().copied().map(RData::from).collect(),
            origin: LowerName::from(origin),
        }
    }

    /// Tells whether `name` is the apex or lies below it.
    pub(super) fn contains(&self, name: &LowerName) -> bool {
        self.origin.zone_of(name)
    }

    /// Answers a question about a name of this zone, class IN.
    pub(super) fn answer(&self, query: &LowerQuery, reply: &mut Message) {
        // The owner is spelled as in the question: resolvers that mix case against forgers compare it.
        let owner = query.original().name();
        let record = |data: &RData| Record::from_rdata(owner.clone(), TTL, data.clone());
        let asked = query.query_type();
        if *query.name() != self.origin {
            reply.metadata.response_code = ResponseCode::NXDomain;
        } else if asked == RecordType::SOA {
            reply.answers.push(record(&self.soa.data));
        } else if asked == RecordType::NS {
            reply.answers.push(record(&self.ns));
        } else {
            // For ANY one set is enough (RFC 8482 §4.1): the one that matters.
            let wanted = |data: &&RData| asked == RecordType::ANY || data.record_type() == asked;
            let addresses = self.addresses.iter().filter(wanted);
            reply.answers.extend(addresses.map(record));
        }
        if reply.answers.is_empty() {
            // A denial.
            reply.authorities.push(self.soa.clone());
        }
    }
}
