//! WireGuard routes that are refused.

use prost::Message;

use super::*;
use crate::proto::WireGuardRoute;

#[test]
fn wireguard_faults_name_the_field() {
    let told = |keys: &[usize], route_id, cluster: &str| {
        let message = WireGuardRoute {
            name: "w".to_owned(),
            public_keys: keys.iter().map(|len| vec![7; *len]).collect(),
            route_id,
            cluster: cluster.to_owned(),
            ..WireGuardRoute::default()
        };
        let told = wrong(ResourceType::WireGuardRoute, "w", &message.encode_to_vec());
        told.strip_prefix("WireGuardRoute w: ").unwrap().to_owned()
    };
    assert_eq!(told(&[], 0, "c"), "it has neither a key nor a route id");
    assert_eq!(
        told(&[32, 31], 0, "c"),
        "public_keys[1]: it is not of 32 bytes"
    );
    assert_eq!(told(&[32, 32], 0, "c"), "public_keys[1]: it is there twice");
    assert_eq!(told(&[], 1 << 20, "c"), "route_id: it is more than 1048575");
    assert_eq!(told(&[], 1, ""), "cluster: it is empty");
}
