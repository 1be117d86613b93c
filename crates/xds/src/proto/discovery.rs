//! The messages of the discovery service itself: `envoy.service.discovery.v3`, what they need of
//! `envoy.config.core.v3`, and `google.rpc.Status`.
//!
//! By hand, because these few are all that travels beside the resources. Fields that are not
//! listed are skipped when read, as protobuf has it. The numbers are those of Envoy's
//! `discovery.proto` and `base.proto`.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;

use super::known::{Kind, messages};

/// Without the value, which may be a secret.
impl fmt::Debug for Any {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &mut f.debug_struct("Any");
        shown.field("type_url", &self.type_url);
        shown.field("bytes", &self.value.len()).finish()
    }
}

messages! {
    /// `google.protobuf.Any`, with a value that is shared and not copied.
    #[derive(Eq)]
    #[prost(skip_debug)]
    struct Any {
        1 type_url: String [string];
        2 value: Bytes [bytes = "bytes"] = Kind::Value;
    }

    /// `google.rpc.Status`: why a response was refused.
    #[derive(Eq)]
    struct RpcStatus {
        /// One of gRPC's codes.
        1 code: i32 [int32];
        2 message: String [string];
    }

    /// `envoy.config.core.v3.Node`: who asks.
    #[derive(Eq)]
    struct Node {
        1 id: String [string];
        2 cluster: String [string];
        6 user_agent_name: String [string];
        7 user_agent_version: String [string];
        10 client_features: Vec<String> [string, repeated];
    }

    /// A request of the state-of-the-world variant.
    #[derive(Eq)]
    struct DiscoveryRequest {
        1 version_info: String [string];
        2 node: Option<Node> [message];
        3 resource_names: Vec<String> [string, repeated];
        4 type_url: String [string];
        5 response_nonce: String [string];
        6 error_detail: Option<RpcStatus> [message];
    }

    /// A response of the state-of-the-world variant.
    #[derive(Eq)]
    struct DiscoveryResponse {
        1 version_info: String [string];
        2 resources: Vec<Any> [message, repeated];
        4 type_url: String [string];
        5 nonce: String [string];
    }

    /// A request of the incremental variant.
    #[derive(Eq)]
    struct DeltaDiscoveryRequest {
        1 node: Option<Node> [message];
        2 type_url: String [string];
        3 resource_names_subscribe: Vec<String> [string, repeated];
        4 resource_names_unsubscribe: Vec<String> [string, repeated];
        /// What the client has from an earlier stream: versions by name.
        5 initial_resource_versions: BTreeMap<String, String>
            [btree_map = "string, string"] = Kind::Value;
        6 response_nonce: String [string];
        7 error_detail: Option<RpcStatus> [message];
    }

    /// A response of the incremental variant.
    #[derive(Eq)]
    struct DeltaDiscoveryResponse {
        1 system_version_info: String [string];
        2 resources: Vec<NamedResource> [message, repeated];
        4 type_url: String [string];
        5 nonce: String [string];
        6 removed_resources: Vec<String> [string, repeated];
    }

    /// `envoy.service.discovery.v3.Resource`: a resource with its name and version.
    #[derive(Eq)]
    struct NamedResource {
        1 version: String [string];
        2 resource: Option<Any> [message];
        3 name: String [string];
    }

    /// The first field of every resource that is understood: its name.
    #[derive(Eq)]
    struct NameOnly {
        1 name: String [string];
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

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
