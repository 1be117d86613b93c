//! serde's view of [`Events`]: one node, the entries of a mapping, the elements of a list.
//!
//! Where a scalar is asked for by type, the type decides (`deserialize_str` takes `10` as text);
//! where it is not (`deserialize_any`), the core schema does.

use std::{borrow::Cow, collections::BTreeSet, marker::PhantomData};

use granit_parser::Marker;
use serde::{
    Deserializer,
    de::{
        DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
        VariantAccess, Visitor,
    },
    forward_to_deserialize_any,
};

use super::{
    events::{Events, Item},
    fault::{Fault, Step},
    scalar::Scalar,
};

/// Reads the next node of `events`.
pub(super) fn read<T: DeserializeOwned>(events: &mut Events<'_>) -> Result<T, Fault> {
    read_seed(events, PhantomData)
}

fn read_seed<'de, T: DeserializeSeed<'de>>(
    events: &mut Events<'_>,
    seed: T,
) -> Result<T::Value, Fault> {
    let at = events.peek()?.1;
    seed.deserialize(Node { events })
        .map_err(|fault| fault.or_at(at))
}

/// The node that begins with the next event.
struct Node<'e, 'a> {
    events: &'e mut Events<'a>,
}

impl<'a> Node<'_, 'a> {
    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let (item, at) = self.events.next()?;
        match item {
            Item::Scalar(scalar) => scalar.visit(visitor).map_err(|fault| fault.or_at(at)),
            Item::SeqStart => self.visit_list(visitor, at),
            Item::MapStart => self.visit_mapping(visitor, at),
            Item::SeqEnd | Item::MapEnd => Err(Fault::new("expected a value", at)),
        }
    }

    fn visit_list<'de, V: Visitor<'de>>(self, visitor: V, at: Marker) -> Result<V::Value, Fault> {
        let mut list = List {
            events: self.events,
            index: 0,
        };
        let value = visitor
            .visit_seq(&mut list)
            .map_err(|fault| fault.or_at(at))?;
        match list.events.next()? {
            (Item::SeqEnd, _) => Ok(value),
            (_, at) => Err(Fault::new(format!("expected {} elements", list.index), at)),
        }
    }

    fn visit_mapping<'de, V: Visitor<'de>>(
        self,
        visitor: V,
        at: Marker,
    ) -> Result<V::Value, Fault> {
        let mut mapping = Mapping {
            events: self.events,
            key: None,
            seen: SeenKeys::default(),
        };
        let value = visitor
            .visit_map(&mut mapping)
            .map_err(|fault| fault.or_at(at))?;
        match mapping.events.next()? {
            (Item::MapEnd, _) => Ok(value),
            (_, at) => Err(Fault::new("expected no further key", at)),
        }
    }

    /// The next event when it is a scalar that holds something; anything else is refused.
    fn next_scalar(&mut self, expected: &str) -> Result<(Scalar<'a>, Marker), Fault> {
        match self.events.next()? {
            (Item::Scalar(scalar), at) if !scalar.is_null() => Ok((scalar, at)),
            (item, at) => Err(unexpected(expected, &item, at)),
        }
    }
}

impl<'de> Deserializer<'de> for Node<'_, '_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Fault> {
        let (scalar, at) = self.next_scalar("text")?;
        scalar.visit_text(visitor).map_err(|fault| fault.or_at(at))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        if matches!(self.events.peek()?, (Item::Scalar(scalar), _) if scalar.is_null()) {
            self.events.next()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.events.next()? {
            (Item::SeqStart, at) => self.visit_list(visitor, at),
            (item, at) => Err(unexpected("a list", &item, at)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.events.next()? {
            (Item::MapStart, at) => self.visit_mapping(visitor, at),
            (item, at) => Err(unexpected("a mapping", &item, at)),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if matches!(self.events.peek()?, (Item::MapStart, _)) {
            let at = self.events.next()?.1;
            let value = visitor.visit_enum(Choice {
                events: &mut *self.events,
            });
            let value = value.map_err(|fault| fault.or_at(at))?;
            return match self.events.next()? {
                (Item::MapEnd, _) => Ok(value),
                (_, at) => Err(Fault::new("expected a single key", at)),
            };
        }
        let (scalar, at) = self.next_scalar("a word")?;
        let word = IntoDeserializer::<Fault>::into_deserializer(&*scalar.text);
        visitor.visit_enum(word).map_err(|fault| fault.or_at(at))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 bytes byte_buf unit unit_struct
    }
}

fn unexpected(expected: &str, found: &Item<'_>, at: Marker) -> Fault {
    let found = match found {
        Item::Scalar(scalar) if scalar.is_null() => "nothing".to_owned(),
        Item::Scalar(scalar) if scalar.text.is_empty() => "empty text".to_owned(),
        Item::Scalar(scalar) => format!("`{}`", scalar.text),
        Item::SeqStart | Item::SeqEnd => "a list".to_owned(),
        Item::MapStart | Item::MapEnd => "a mapping".to_owned(),
    };
    Fault::new(format!("expected {expected}, found {found}"), at)
}

/// The elements of a list.
struct List<'e, 'a> {
    events: &'e mut Events<'a>,
    index: usize,
}

impl<'de> SeqAccess<'de> for List<'_, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let index = self.index;
        self.next_element(seed)
            .map_err(|fault| fault.under(Step::Index(index)))
    }
}

impl List<'_, '_> {
    fn next_element<'de, T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        if matches!(self.events.peek()?, (Item::SeqEnd, _)) {
            return Ok(None);
        }
        self.index += 1;
        read_seed(self.events, seed).map(Some)
    }
}

/// The entries of a mapping.
struct Mapping<'e, 'a> {
    events: &'e mut Events<'a>,
    /// Between a key and its value.
    key: Option<Scalar<'a>>,
    seen: SeenKeys<'a>,
}

impl<'de> MapAccess<'de> for Mapping<'_, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let (item, at) = self.events.peek()?;
        let at = *at;
        if matches!(item, Item::MapEnd) {
            return Ok(None);
        }
        let (Item::Scalar(scalar), _) = self.events.next()? else {
            return Err(Fault::new("a key must be a word", at));
        };
        if !self.seen.insert(scalar.text.clone()) {
            return Err(Fault::new(
                format!("key `{}` is given twice", scalar.text),
                at,
            ));
        }
        let key = seed
            .deserialize(Key(scalar.clone()))
            .map_err(|fault| fault.or_at(at))?;
        self.key = Some(scalar);
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        read_seed(self.events, seed).map_err(|fault| {
            let key = self
                .key
                .take()
                .map(|key| key.text.into_owned())
                .unwrap_or_default();
            fault.under(Step::Key(key))
        })
    }
}

/// The keys of one mapping so far. Small mappings, which are nearly all, are searched in order.
#[derive(Default)]
pub(super) struct SeenKeys<'a> {
    few: Vec<Cow<'a, str>>,
    many: BTreeSet<Cow<'a, str>>,
}

impl<'a> SeenKeys<'a> {
    /// Adds `key`; false when it was there.
    pub(super) fn insert(&mut self, key: Cow<'a, str>) -> bool {
        if self.many.is_empty() && self.few.len() < 16 {
            let new = !self.few.contains(&key);
            if new {
                self.few.push(key);
            }
            return new;
        }
        self.many.extend(self.few.drain(..));
        self.many.insert(key)
    }
}

/// A mapping's key: text, unless the map's key type asks for a number or a boolean.
struct Key<'a>(Scalar<'a>);

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit_text(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.0.visit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_enum(IntoDeserializer::<Fault>::into_deserializer(&*self.0.text))
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A choice written as a mapping of one key: the variant's name, and what it holds.
struct Choice<'e, 'a> {
    events: &'e mut Events<'a>,
}

impl<'de, 'e, 'a> EnumAccess<'de> for Choice<'e, 'a> {
    type Error = Fault;
    type Variant = Chosen<'e, 'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Fault> {
        let (item, at) = self.events.next()?;
        let Item::Scalar(scalar) = item else {
            return Err(unexpected("a key", &item, at));
        };
        let variant = seed
            .deserialize(Key(scalar.clone()))
            .map_err(|fault| fault.or_at(at))?;
        Ok((
            variant,
            Chosen {
                events: self.events,
                name: scalar.text.into_owned(),
            },
        ))
    }
}

struct Chosen<'e, 'a> {
    events: &'e mut Events<'a>,
    name: String,
}

impl<'de> VariantAccess<'de> for Chosen<'_, '_> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        self.newtype_variant_seed(PhantomData)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Fault> {
        read_seed(self.events, seed).map_err(|fault| fault.under(Step::Key(self.name)))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        let value = Node {
            events: self.events,
        }
        .deserialize_seq(visitor);
        value.map_err(|fault| fault.under(Step::Key(self.name)))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let value = Node {
            events: self.events,
        }
        .deserialize_map(visitor);
        value.map_err(|fault| fault.under(Step::Key(self.name)))
    }
}
