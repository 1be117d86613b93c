//! Decoded responses: what they set and remove, or why they are refused.
//!
//! Both variants yield the same value, so that the rest does not depend on the variant.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use crate::decode::{Decoded, MAX_RESOURCES, OwnListener, Received, decode_for, resource_name};
use crate::grpc::MORE_FOLLOWS;
use crate::proto::discovery::{DeltaDiscoveryResponse, DiscoveryResponse, NamedResource};
use crate::resource::ResourceType;

/// A response of either variant, in the form of the incremental one.
#[derive(Clone, Debug)]
pub(super) struct Response {
    delta: DeltaDiscoveryResponse,
    /// Whether it is of the state-of-the-world variant, in which resources have no names of their
    /// own and all the version of the whole.
    full: bool,
}

impl From<DeltaDiscoveryResponse> for Response {
    fn from(delta: DeltaDiscoveryResponse) -> Self {
        Self { delta, full: false }
    }
}

impl From<DiscoveryResponse> for Response {
    fn from(full: DiscoveryResponse) -> Self {
        let resources = full.resources.into_iter().map(|any| NamedResource {
            version: full.version_info.clone(),
            resource: Some(any),
            name: String::new(),
        });
        let delta = DeltaDiscoveryResponse {
            resources: resources.collect(),
            system_version_info: full.version_info,
            type_url: full.type_url,
            nonce: full.nonce,
            removed_resources: Vec::new(),
        };
        Self { delta, full: true }
    }
}

/// A response that was understood, or not.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) kind: ResourceType,
    pub(super) nonce: String,
    /// State of the world: the version of the whole.
    pub(super) version: String,
    /// Whether the server says that it is a part of what it has to say.
    pub(super) more_follows: bool,
    pub(super) set: Vec<(Arc<str>, Arc<Decoded>)>,
    /// Names of resources that were not understood; empty where even that was not.
    pub(super) unread: Vec<Arc<str>>,
    pub(super) removed: Vec<Arc<str>>,
    /// Whether what is not in it does not exist.
    pub(super) listed: bool,
    /// Why it is refused.
    pub(super) fault: Option<String>,
}

/// Decodes a response for these listeners; `None` when its type was not subscribed. Other tasks on the same
/// thread run every [`YIELD_INTERVAL`] resources.
pub(super) async fn decode_response(response: Response, own: &[OwnListener]) -> Option<Update> {
    let Response { delta, full } = response;
    let kind = ResourceType::from_type_url(&delta.type_url)?;
    let mut update = Update {
        kind,
        more_follows: delta.nonce.ends_with(MORE_FOLLOWS),
        nonce: delta.nonce,
        version: delta.system_version_info,
        set: Vec::new(),
        unread: Vec::new(),
        removed: delta
            .removed_resources
            .into_iter()
            .map(Into::into)
            .collect(),
        listed: full && kind.is_root(),
        fault: None,
    };
    if delta.resources.len() + update.removed.len() > MAX_RESOURCES {
        update.removed.clear();
        update.unread.push("".into());
        update.refuse(&format!("more than {MAX_RESOURCES} resources"));
        return Some(update);
    }
    for (count, resource) in delta.resources.into_iter().enumerate() {
        if count % YIELD_INTERVAL == YIELD_INTERVAL - 1 {
            tokio::task::yield_now().await;
        }
        let name = resource.name.clone();
        match decode_resource(kind, resource, own) {
            Ok(item) => update.set.push(item),
            Err(why) => {
                update.unread.push(name.into());
                update.refuse(&why);
            }
        }
    }
    update.refuse_ambiguous();
    Some(update)
}

/// Resources decoded between two yields: about a millisecond.
const YIELD_INTERVAL: usize = 256;

fn decode_resource(
    kind: ResourceType,
    resource: NamedResource,
    own: &[OwnListener],
) -> Result<(Arc<str>, Arc<Decoded>), String> {
    let any = resource.resource.unwrap_or_default();
    if any.type_url != kind.type_url() {
        return Err(format!(
            "a resource of type {} in a response of type {}",
            any.type_url,
            kind.type_url()
        ));
    }
    let name = if resource.name.is_empty() {
        resource_name(kind, &any.value).map_err(|error| error.to_string())?
    } else {
        resource.name
    };
    let decoded = decode_for(own, kind, &name, &any.value);
    let mut decoded = decoded.map_err(|error| error.to_string())?;
    decoded.received = Some(Received {
        version: resource.version,
        body: match kind {
            // Nothing but what was decoded of it is kept.
            ResourceType::Secret => Bytes::new(),
            // A copy, so that it does not hold the whole response that it came in.
            ResourceType::Cluster
            | ResourceType::ClusterLoadAssignment
            | ResourceType::Listener
            | ResourceType::RouteConfiguration
            | ResourceType::WireGuardRoute => Bytes::copy_from_slice(&any.value),
        },
    });
    Ok((name.into(), decoded.into()))
}

impl Update {
    /// Refuses what says different things of one resource.
    fn refuse_ambiguous(&mut self) {
        let mut seen = BTreeSet::new();
        let names = self.set.iter().map(|(name, _)| name).chain(&self.removed);
        let twice = names.into_iter().find(|name| !seen.insert(&***name));
        if let Some(name) = twice.cloned() {
            self.refuse(&format!("it says two things of the resource {name:?}"));
        }
    }

    /// Refuses it, for this reason and those already found, of which the first few are listed.
    fn refuse(&mut self, why: &str) {
        let fault = self.fault.get_or_insert_default();
        if fault.len() + why.len() < MAX_FAULT_BYTES {
            if !fault.is_empty() {
                fault.push_str("; ");
            }
            fault.push_str(why);
        } else if fault.is_empty() {
            fault.push_str(&why[..why.floor_char_boundary(MAX_FAULT_BYTES)]);
        }
    }
}

/// What a refusal says at most, bytes.
const MAX_FAULT_BYTES: usize = 2048;
