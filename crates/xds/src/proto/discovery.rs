//! The messages of the discovery service itself: `envoy.service.discovery.v3`, what they need of
//! `envoy.config.core.v3`, and `google.rpc.Status`.
//!
//! By hand, because these few are all that travels beside the resources. Fields that are not
//! listed are skipped when read, as protobuf has it. The numbers are those of Envoy's
//! `discovery.proto` and `base.proto`.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

/// `google.protobuf.Any`, with a value that is shared and not copied.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct Any {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// `google.rpc.Status`: why a response was refused.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct RpcStatus {
    /// One of gRPC's codes.
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// `envoy.config.core.v3.Node`: who asks.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct Node {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) cluster: String,
    #[prost(string, tag = "6")]
    pub(crate) user_agent_name: String,
    #[prost(string, tag = "7")]
    pub(crate) user_agent_version: String,
    #[prost(string, repeated, tag = "10")]
    pub(crate) client_features: Vec<String>,
}

/// A request of the state-of-the-world variant.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<Node>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) resource_names: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(crate) error_detail: Option<RpcStatus>,
}

/// A response of the state-of-the-world variant.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<Any>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
}

/// A request of the incremental variant.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct DeltaDiscoveryRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<Node>,
    #[prost(string, tag = "2")]
    pub(crate) type_url: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) resource_names_subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) resource_names_unsubscribe: Vec<String>,
    /// What the client has from an earlier stream: versions by name.
    #[prost(btree_map = "string, string", tag = "5")]
    pub(crate) initial_resource_versions: BTreeMap<String, String>,
    #[prost(string, tag = "6")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) error_detail: Option<RpcStatus>,
}

/// A response of the incremental variant.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(crate) system_version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<NamedResource>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed_resources: Vec<String>,
}

/// `envoy.service.discovery.v3.Resource`: a resource with its name and version.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct NamedResource {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resource: Option<Any>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// The first field of every resource that is understood: its name.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct NameOnly {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written down from the definitions by hand: field numbers and wire types, one each.
    #[test]
    fn delta_messages_match_the_definitions() {
        let request = DeltaDiscoveryRequest {
            node: Some(Node {
                id: "n".into(),
                cluster: "c".into(),
                client_features: vec!["f".into()],
                ..Node::default()
            }),
            type_url: "t".into(),
            resource_names_subscribe: vec!["s".into()],
            resource_names_unsubscribe: vec!["u".into()],
            initial_resource_versions: [("k".into(), "v".into())].into(),
            response_nonce: "r".into(),
            error_detail: Some(RpcStatus {
                code: 3,
                message: "m".into(),
            }),
        };
        let expected = b"\x0a\x09\x0a\x01n\x12\x01c\x52\x01f\x12\x01t\x1a\x01s\x22\x01u\
            \x2a\x06\x0a\x01k\x12\x01v\x32\x01r\x3a\x05\x08\x03\x12\x01m";
        assert_eq!(request.encode_to_vec(), expected);

        let response = DeltaDiscoveryResponse {
            system_version_info: "y".into(),
            resources: vec![NamedResource {
                version: "v".into(),
                resource: Some(Any {
                    type_url: "t".into(),
                    value: Bytes::from_static(b"b"),
                }),
                name: "n".into(),
            }],
            type_url: "t".into(),
            nonce: "o".into(),
            removed_resources: vec!["x".into()],
        };
        let expected = b"\x0a\x01y\x12\x0e\x0a\x01v\x12\x06\x0a\x01t\x12\x01b\x1a\x01n\
            \x22\x01t\x2a\x01o\x32\x01x";
        assert_eq!(response.encode_to_vec(), expected);
    }

    #[test]
    fn full_messages_match_the_definitions() {
        let request = DiscoveryRequest {
            version_info: "v".into(),
            node: None,
            resource_names: vec!["a".into()],
            type_url: "t".into(),
            response_nonce: "r".into(),
            error_detail: None,
        };
        assert_eq!(
            request.encode_to_vec(),
            b"\x0a\x01v\x1a\x01a\x22\x01t\x2a\x01r"
        );
        let response = DiscoveryResponse {
            version_info: "v".into(),
            resources: vec![Any::default()],
            type_url: "t".into(),
            nonce: "n".into(),
        };
        assert_eq!(
            response.encode_to_vec(),
            b"\x0a\x01v\x12\x00\x22\x01t\x2a\x01n"
        );
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let mut wire = DiscoveryRequest::default().encode_to_vec();
        wire.extend_from_slice(b"\x3a\x02\x0a\x00\x22\x01t");
        let request = DiscoveryRequest::decode(&wire[..]).unwrap();
        assert_eq!(request.type_url, "t");
    }
}
