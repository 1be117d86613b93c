//! Answers one message: from the zone, from others, or with the code that says why not.
//!
//! Parsing, encoding and truncating to what the asker takes are hickory's. Transfers, updates,
//! notifications and classes other than IN are refused, for the zone and for forwarding alike.

use std::sync::Arc;

use async_trait::async_trait;
use hickory_server::net::runtime::Time;
use hickory_server::net::xfer::Protocol;
use hickory_server::proto::op::{
    Edns, Header, HeaderCounts, LowerQuery, Message, Metadata, OpCode, ResponseCode,
};
use hickory_server::proto::rr::{DNSClass, RecordType};
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;

use super::exchange::PAYLOAD;
use super::forward::{Forwarder, Question};
use super::zone::Zone;

/// Smallest payload that every client accepts over UDP, in bytes (RFC 1035 §4.2.1, RFC 6891 §6.2.3).
const MIN_PAYLOAD: u16 = 512;

/// Answers messages. Clones share everything.
#[derive(Clone, Debug)]
pub(super) struct Handler {
    zone: Arc<Zone>,
    forwarder: Option<Arc<Forwarder>>,
}

impl Handler {
    /// Makes a handler; without a forwarder, foreign names are refused.
    pub(super) fn new(zone: Zone, forwarder: Option<Forwarder>) -> Self {
        Self {
            zone: Arc::new(zone),
            forwarder: forwarder.map(Arc::new),
        }
    }

    async fn reply(&self, request: &Request) -> Message {
        let bare = |code| self.bare(request, code);
        if request.metadata.op_code != OpCode::Query {
            return bare(ResponseCode::NotImp);
        }
        if request.version() > 0 {
            return bare(ResponseCode::BADVERS);
        }
        let Ok(info) = request.request_info() else {
            return bare(ResponseCode::FormErr);
        };
        let query = info.query;
        let transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
        if transfer || !matches!(query.query_class(), DNSClass::IN | DNSClass::ANY) {
            return bare(ResponseCode::Refused);
        }
        if self.zone.contains(query.name()) {
            return self.zone_reply(request, query);
        }
        let Some(forwarder) = &self.forwarder else {
            return bare(ResponseCode::Refused);
        };
        match forwarder.ask(&question(request, query)).await {
            Some(message) => self.forwarded_reply(request, message),
            None => bare(ResponseCode::ServFail),
        }
    }

    fn zone_reply(&self, request: &Request, query: &LowerQuery) -> Message {
        let mut reply = self.bare(request, ResponseCode::NoError);
        reply.metadata.authoritative = true;
        self.zone.answer(query, &mut reply);
        reply
    }

    fn forwarded_reply(&self, request: &Request, mut message: Message) -> Message {
        let forwarded = message.metadata;
        let own = &mut message.metadata;
        *own = self.bare(request, forwarded.response_code).metadata;
        own.authoritative = forwarded.authoritative;
        own.truncation = forwarded.truncation;
        own.recursion_available = forwarded.recursion_available;
        own.authentic_data = forwarded.authentic_data;
        message
    }

    /// Returns an answer without records; the question and the OPT record are added when it is sent.
    fn bare(&self, request: &Request, code: ResponseCode) -> Message {
        let mut reply = Message::response(request.metadata.id, request.metadata.op_code);
        reply.metadata = Metadata::response_from_request(&request.metadata);
        reply.metadata.recursion_available = self.forwarder.is_some();
        reply.metadata.response_code = code;
        reply
    }
}

#[async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut responses: R,
    ) -> ResponseInfo {
        let reply = self.reply(request).await;
        let edns = edns_for(request);
        let response = MessageResponseBuilder::new(&request.queries, edns.as_ref()).build(
            reply.metadata,
            &reply.answers,
            &reply.authorities,
            [],
            &reply.additionals,
        );
        responses
            .send_response(response)
            .await
            .unwrap_or_else(|error| {
                tracing::debug!(%error, asker = %request.src(), "sending a DNS answer");
                let counts = HeaderCounts::default();
                ResponseInfo::from(Header {
                    metadata: reply.metadata,
                    counts,
                })
            })
    }
}

/// What is to be asked of others: the question as it was spelt, and the wishes that travel with
/// it. EDNS options end here, they concern one hop (RFC 6891 §6.2.6).
fn question(request: &Request, query: &LowerQuery) -> Question {
    Question {
        asker: request.src().ip().to_canonical(),
        over_tcp: request.protocol() == Protocol::Tcp,
        query: query.original().clone(),
        recursion_desired: request.metadata.recursion_desired,
        authentic_data: request.metadata.authentic_data,
        checking_disabled: request.metadata.checking_disabled,
        dnssec_ok: request.edns.as_ref().map(|edns| edns.flags().dnssec_ok),
    }
}

/// The OPT record of an answer to a question that has one. hickory takes its payload for the size at which an
/// answer over UDP is truncated, so it is never more than the asker takes.
fn edns_for(request: &Request) -> Option<Edns> {
    let asked = request.edns.as_ref()?;
    let mut edns = Edns::new();
    edns.set_max_payload(asked.max_payload().clamp(MIN_PAYLOAD, PAYLOAD));
    edns.set_dnssec_ok(asked.flags().dnssec_ok);
    Some(edns)
}
