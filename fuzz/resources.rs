//! What decoding resources of a control plane must hold to, as a plain function that panics when it
//! does not.
//!
//! ```text
//! fuzz_targets/xds.rs ─────(exploring)────────┐
//! crates/xds/tests/replay.rs ─────────────────┼──▶ resource
//! crates/xds/tests/round_trip.rs ─(proptest)──┘
//! ```
//!
//! An input is one message, as it is inside the `Any` of a response; it is taken as each type.

use route::{Snapshot, TableSpec};
use xds::{
    DecodeError, Decoded, OwnListener, OwnProtocol, ResourceType, State, decode, resource_name,
};

/// Whatever is understood makes a table that can be built, or contradicts itself and says so; and
/// it is understood the same twice.
pub(crate) fn resource(input: &[u8]) {
    for kind in ResourceType::ALL {
        let name = resource_name(kind, input).unwrap_or_else(|_| "a".to_owned());
        let decoded = match understood(kind, &name, input) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        assert_eq!(decoded.kind(), kind);
        let mut state = State::default();
        state.set(name.as_str(), decoded);
        let first = table(&state, &name);
        state.set(
            name.as_str(),
            understood(kind, &name, input).expect("it was understood before"),
        );
        assert_eq!(table(&state, &name), first);
        state.remove(kind, &name);
        assert_eq!(table(&state, &name), Some(TableSpec::default()));
    }
}

fn understood(kind: ResourceType, name: &str, input: &[u8]) -> Result<Decoded, DecodeError> {
    decode(kind, name, input)
}

/// Makes the table of `state` for a gateway whose listeners all have the name of the resource, one
/// protocol after the other; all that come out must build.
fn table(state: &State, name: &str) -> Option<TableSpec> {
    let protocols = [
        OwnProtocol::Tls,
        OwnProtocol::Node,
        OwnProtocol::Connect,
        OwnProtocol::WireGuard,
    ];
    let mut last = None;
    for protocol in protocols {
        let own = [OwnListener {
            name: name.split('|').next().unwrap_or(name).to_owned(),
            port: 443,
            protocol,
        }];
        let Ok(table) = state.table(&own) else {
            return None;
        };
        if let Err(error) = Snapshot::build(table.spec.clone(), 1, None) {
            panic!("{error}");
        }
        last = Some(table.spec);
    }
    last
}
