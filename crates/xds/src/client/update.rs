//! Decoded responses: what they set and remove, or why they are refused.
//!
//! Both variants yield the same value, so that the rest does not depend on the variant.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::decode::{Decoded, MAX_RESOURCES, decode, resource_name};
use crate::grpc::MORE_FOLLOWS;
use crate::proto::discovery::{DeltaDiscoveryResponse, DiscoveryResponse};
use crate::resource::ResourceType;

/// A response as it came.
#[derive(Clone, Debug)]
pub(super) enum Response {
    Delta(DeltaDiscoveryResponse),
    Full(DiscoveryResponse),
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
    pub(super) set: Vec<Item>,
    /// Names of resources that were not understood; empty where even that was not.
    pub(super) unread: Vec<Arc<str>>,
    pub(super) removed: Vec<Arc<str>>,
    /// Whether what is not in it does not exist.
    pub(super) listed: bool,
    /// Why it is refused.
    pub(super) fault: Option<String>,
}

/// A resource with all that is kept of it.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) name: Arc<str>,
    pub(super) version: String,
    /// A copy, so that it does not hold the whole response that it came in.
    pub(super) body: Bytes,
    pub(super) decoded: Decoded,
}

impl Response {
    /// How many bytes it has when it travels.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Delta(delta) => delta.encoded_len(),
            Self::Full(full) => full.encoded_len(),
        }
    }

    fn type_url(&self) -> &str {
        match self {
            Self::Delta(delta) => &delta.type_url,
            Self::Full(full) => &full.type_url,
        }
    }
}

/// Decodes a response; `None` when its type was not subscribed. Other tasks on the same
/// thread run every [`YIELD_INTERVAL`] resources.
pub(super) async fn decode_response(response: Response) -> Option<Update> {
    let kind = ResourceType::from_type_url(response.type_url())?;
    let mut update = Update {
        kind,
        nonce: String::new(),
        version: String::new(),
        more_follows: false,
        set: Vec::new(),
        unread: Vec::new(),
        removed: Vec::new(),
        listed: false,
        fault: None,
    };
    let bodies = update.take(response);
    update.more_follows = update.nonce.ends_with(MORE_FOLLOWS);
    if bodies.len() + update.removed.len() > MAX_RESOURCES {
        update.removed.clear();
        update.unread.push("".into());
        update.refuse(&format!("more than {MAX_RESOURCES} resources"));
        return Some(update);
    }
    for (count, travelling) in bodies.into_iter().enumerate() {
        if count % YIELD_INTERVAL == YIELD_INTERVAL - 1 {
            tokio::task::yield_now().await;
        }
        let name = travelling.name.clone();
        match travelling.decode_response(kind) {
            Ok(item) => update.set.push(item),
            Err(why) => {
                update.unread.push(name.unwrap_or_default().into());
                update.refuse(&why);
            }
        }
    }
    update.refuse_ambiguous();
    Some(update)
}

/// Resources decoded between two yields: about a millisecond.
const YIELD_INTERVAL: usize = 256;

/// A resource before it is understood.
struct RawResource {
    type_url: String,
    name: Option<String>,
    version: String,
    body: Bytes,
}

impl RawResource {
    fn decode_response(self, kind: ResourceType) -> Result<Item, String> {
        if self.type_url != kind.type_url() {
            return Err(format!(
                "a resource of type {} in a response of type {}",
                self.type_url,
                kind.type_url()
            ));
        }
        let name = match self.name {
            Some(name) => name,
            None => resource_name(kind, &self.body).map_err(|error| error.to_string())?,
        };
        let decoded = decode(kind, &name, &self.body).map_err(|error| error.to_string())?;
        Ok(Item {
            name: name.into(),
            version: self.version,
            body: Bytes::copy_from_slice(&self.body),
            decoded,
        })
    }
}

impl Update {
    /// Reads the response's own fields, and returns the resources in it.
    fn take(&mut self, response: Response) -> Vec<RawResource> {
        match response {
            Response::Delta(delta) => {
                self.nonce = delta.nonce;
                self.version = delta.system_version_info;
                self.removed = delta
                    .removed_resources
                    .into_iter()
                    .map(Into::into)
                    .collect();
                let resources = delta.resources.into_iter().map(|one| {
                    let any = one.resource.unwrap_or_default();
                    RawResource {
                        type_url: any.type_url,
                        name: Some(one.name).filter(|name| !name.is_empty()),
                        version: one.version,
                        body: any.value,
                    }
                });
                resources.collect()
            }
            Response::Full(full) => {
                self.nonce = full.nonce;
                self.listed = self.kind.is_root();
                let resources = full.resources.into_iter().map(|any| RawResource {
                    type_url: any.type_url,
                    name: None,
                    version: full.version_info.clone(),
                    body: any.value,
                });
                let resources = resources.collect();
                self.version = full.version_info;
                resources
            }
        }
    }

    /// Refuses what says different things of one resource.
    fn refuse_ambiguous(&mut self) {
        let mut seen = BTreeSet::new();
        let names = self.set.iter().map(|item| &item.name).chain(&self.removed);
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
            let end = (0..MAX_FAULT_BYTES)
                .rev()
                .find(|&at| why.is_char_boundary(at));
            fault.push_str(&why[..end.unwrap_or(0)]);
        }
    }
}

/// What a refusal says at most, bytes.
const MAX_FAULT_BYTES: usize = 2048;
