//! Objects by key, and which of them mention a namespace or a gateway.
//!
//! ```text
//!   insert ──mentions──▶ Namespace("shoot--foo--bar") ─▶ { istio-system/shoot--foo--bar, … }
//! ```
//!
//! So that what one namespace's change affects is looked up instead of searched for. Does not know
//! what a mention means.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use super::ObjectKey;

/// What an object may mention.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Mention {
    /// A gateway object that it is bound to.
    Gateway(ObjectKey),
    /// A namespace that it leads into or is about.
    Namespace(Arc<str>),
    /// A server name, or a pattern of some, that it is about.
    ServerName(Arc<str>),
    /// A Service that it belongs to.
    Service(ObjectKey),
}

/// What an object mentions.
pub trait Mentions {
    /// Returns what the object called `own` mentions.
    fn mentions(&self, own: &ObjectKey) -> BTreeSet<Mention>;
}

/// Where objects of one kind are put.
pub(super) trait Objects<T> {
    fn find(&self, key: &ObjectKey) -> Option<&T>;

    fn put(&mut self, key: ObjectKey, object: T);
}

impl<T> Objects<T> for BTreeMap<ObjectKey, T> {
    fn find(&self, key: &ObjectKey) -> Option<&T> {
        self.get(key)
    }

    fn put(&mut self, key: ObjectKey, object: T) {
        self.insert(key, object);
    }
}

/// Of a kind without namespaces, by name.
impl<T> Objects<T> for BTreeMap<Arc<str>, T> {
    fn find(&self, key: &ObjectKey) -> Option<&T> {
        self.get(&key.name)
    }

    fn put(&mut self, key: ObjectKey, object: T) {
        self.insert(key.name, object);
    }
}

impl<T: Mentions> Objects<T> for Catalog<T> {
    fn find(&self, key: &ObjectKey) -> Option<&T> {
        self.get(key)
    }

    fn put(&mut self, key: ObjectKey, object: T) {
        self.insert(key, object);
    }
}

/// Objects of one kind; reads like a map.
#[derive(Debug)]
pub struct Catalog<T> {
    objects: BTreeMap<ObjectKey, T>,
    mentioned: BTreeMap<Mention, BTreeSet<ObjectKey>>,
}

impl<T> Default for Catalog<T> {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            mentioned: BTreeMap::new(),
        }
    }
}

impl<T> Deref for Catalog<T> {
    type Target = BTreeMap<ObjectKey, T>;

    fn deref(&self) -> &Self::Target {
        &self.objects
    }
}

impl<T: Mentions> Catalog<T> {
    /// Inserts an object and returns the previous one.
    pub fn insert(&mut self, key: ObjectKey, object: T) -> Option<T> {
        let before = self.remove(&key);
        for mention in object.mentions(&key) {
            let keys = self.mentioned.entry(mention).or_default();
            keys.insert(key.clone());
        }
        self.objects.insert(key, object);
        before
    }

    /// Forgets an object, and returns it.
    pub fn remove(&mut self, key: &ObjectKey) -> Option<T> {
        let object = self.objects.remove(key)?;
        for mention in object.mentions(key) {
            if let Some(keys) = self.mentioned.get_mut(&mention) {
                keys.remove(key);
                if keys.is_empty() {
                    self.mentioned.remove(&mention);
                }
            }
        }
        Some(object)
    }

    /// Returns the objects that mention this, in the order of their keys.
    pub fn mentioning<'a>(
        &'a self,
        mention: &Mention,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a T)> + use<'a, T> {
        let keys = self.mentioned.get(mention).into_iter().flatten();
        keys.filter_map(|key| self.objects.get_key_value(key))
    }

    /// Returns the namespaces that an object mentions.
    pub fn namespaces_of(&self, key: &ObjectKey) -> BTreeSet<Arc<str>> {
        let mentions = self.objects.get(key).map(|object| object.mentions(key));
        let names = mentions.into_iter().flatten();
        names
            .filter_map(|mention| match mention {
                Mention::Gateway(_) | Mention::ServerName(_) | Mention::Service(_) => None,
                Mention::Namespace(name) => Some(name),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Named(&'static str);

    impl Mentions for Named {
        fn mentions(&self, _: &ObjectKey) -> BTreeSet<Mention> {
            [Mention::Namespace(self.0.into())].into()
        }
    }

    #[test]
    fn mentions_follow_their_objects() {
        let mut catalog = Catalog::default();
        let key = ObjectKey::new("a", "x");
        let count = |catalog: &Catalog<Named>, name: &str| {
            let mention = Mention::Namespace(name.into());
            catalog.mentioning(&mention).count()
        };
        catalog.insert(key.clone(), Named("one"));
        catalog.insert(ObjectKey::new("b", "x"), Named("one"));
        assert_eq!(count(&catalog, "one"), 2);
        catalog.insert(key.clone(), Named("two"));
        assert_eq!((count(&catalog, "one"), count(&catalog, "two")), (1, 1));
        catalog.remove(&key);
        assert_eq!((count(&catalog, "two"), catalog.len()), (0, 1));
        assert!(
            !catalog
                .mentioned
                .contains_key(&Mention::Namespace("two".into()))
        );
    }
}
