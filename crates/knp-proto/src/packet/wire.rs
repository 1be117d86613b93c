//! The messages as they travel, with upstream's field numbers and our two additions.
//!
//! Written by hand: seven messages do not pay for a code generator. Fields that no program sets or
//! reads (`Data.error`) are left out; protobuf skips them.

use bytes::Bytes;

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Packet {
    #[prost(int32, tag = "1")]
    pub(super) packet_type: i32,
    #[prost(oneof = "Payload", tags = "2, 3, 4, 5, 6, 7, 8, 64, 65")]
    pub(super) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Payload {
    #[prost(message, tag = "2")]
    DialRequest(DialRequest),
    #[prost(message, tag = "3")]
    DialResponse(DialResponse),
    #[prost(message, tag = "4")]
    Data(Data),
    #[prost(message, tag = "5")]
    CloseRequest(ConnectionOnly),
    #[prost(message, tag = "6")]
    CloseResponse(CloseResponse),
    #[prost(message, tag = "7")]
    CloseDial(CloseDial),
    #[prost(message, tag = "8")]
    Drain(()),
    #[prost(message, tag = "64")]
    Credit(Credit),
    #[prost(message, tag = "65")]
    Fin(ConnectionOnly),
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DialRequest {
    #[prost(string, tag = "1")]
    pub(super) protocol: String,
    #[prost(string, tag = "2")]
    pub(super) address: String,
    #[prost(int64, tag = "3")]
    pub(super) random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DialResponse {
    #[prost(string, tag = "1")]
    pub(super) error: String,
    #[prost(int64, tag = "2")]
    pub(super) connect_id: i64,
    #[prost(int64, tag = "3")]
    pub(super) random: i64,
}

/// `CloseRequest` and our `Fin`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct ConnectionOnly {
    #[prost(int64, tag = "1")]
    pub(super) connect_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CloseResponse {
    #[prost(string, tag = "1")]
    pub(super) error: String,
    #[prost(int64, tag = "2")]
    pub(super) connect_id: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct CloseDial {
    #[prost(int64, tag = "1")]
    pub(super) random: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Data {
    #[prost(int64, tag = "1")]
    pub(super) connect_id: i64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) data: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct Credit {
    #[prost(int64, tag = "1")]
    pub(super) connect_id: i64,
    #[prost(uint64, tag = "2")]
    pub(super) bytes: u64,
}
