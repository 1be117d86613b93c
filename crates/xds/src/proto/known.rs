//! Messages by their fields: what is read, what has no effect, and what is refused.
//!
//! ```text
//!   messages! { struct Listener { 1 name: String [string]; … } ignored { 6 metadata, … } refused { … } }
//!       ├─▶ struct Listener for prost: the fields that are read or written
//!       └─▶ Listener::known(): every field of the API, by number
//! ```
//!
//! Decoding alone would silently drop fields that have no place in the struct, so a resource is
//! first walked along these tables.

/// What a message may hold; each list is in the order of the numbers.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) fields: &'static [Field],
    /// Fields that change neither where a connection goes nor which clients may connect.
    pub(crate) ignored: &'static [u32],
    /// Fields that are not supported: a resource that has one is refused.
    pub(crate) refused: &'static [(u32, &'static str)],
}

/// Returns the table of a message.
pub(crate) type Table = fn() -> &'static Message;

/// A field: its number, its name, and how it is read.
pub(crate) type Field = (u32, &'static str, Kind);

/// How a field is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// One of these messages, by full name, inside an `Any`; `None` = its fields do not matter.
    Any(&'static [(&'static str, Option<Table>)]),
    /// Any number of messages.
    Each(Table),
    /// It is written for Envoy and has no effect when read.
    Ignored,
    /// One message.
    One(Table),
    /// A scalar, or a well-known type that wraps one.
    Value,
}

/// A message whose fields are known.
pub(crate) trait Known {
    fn known() -> &'static Message;
}

/// How a field of this type is read.
pub(crate) trait Shape {
    const KIND: Kind;
}

impl<T: Known> Shape for Option<T> {
    const KIND: Kind = Kind::One(T::known);
}

impl<T: Known> Shape for Vec<T> {
    const KIND: Kind = Kind::Each(T::known);
}

macro_rules! values {
    ($($type:ty),*) => { $(impl Shape for $type { const KIND: Kind = Kind::Value; })* };
}

values!(
    bool,
    f64,
    i32,
    i64,
    u32,
    String,
    Vec<String>,
    Vec<Vec<u8>>,
    Vec<u8>
);
values!(
    Option<bool>,
    Option<u32>,
    Option<u64>,
    Option<String>,
    Option<prost_types::Duration>
);

/// Defines messages: `number name: type [prost's kind]`, then `as` the API's name where that is a
/// keyword, and `= Kind` where the type does not say how a field is read. A `field` is of the table
/// alone.
macro_rules! messages {
    ($(
        $(#[$meta:meta])*
        struct $name:ident {
            $(
                $(#[$about:meta])*
                $tag:literal $field:ident: $type:ty [$($prost:tt)+]
                    $(as $wire:literal)? $(= $known:expr)?;
            )*
            $(oneof $oneof:ident: $of:ty [$($either:tt)+];)*
            $(field $number:literal: $label:literal => $kind:expr;)*
        } $(ignored { $($ignored:literal $no_effect:ident),* $(,)? })?
          $(refused { $($refused:literal $unsupported:ident),* $(,)? })?
    )*) => { $(
        #[derive(Clone, PartialEq, prost::Message)]
        $(#[$meta])*
        pub(crate) struct $name {
            $(
                $(#[$about])*
                #[prost($($prost)+, tag($tag))]
                pub(crate) $field: $type,
            )*
            $(
                #[prost($($either)+)]
                pub(crate) $oneof: $of,
            )*
        }

        impl $crate::proto::known::Known for $name {
            fn known() -> &'static $crate::proto::known::Message {
                static KNOWN: $crate::proto::known::Message = $crate::proto::known::Message {
                    fields: &[
                        $(($tag, $crate::proto::known::part!(@name $field $($wire)?),
                           $crate::proto::known::part!(@kind $type $(, $known)?)),)*
                        $(($number, $label, $kind),)*
                    ],
                    ignored: &[$($($ignored),*)?],
                    refused: &[$($(($refused, stringify!($unsupported))),*)?],
                };
                &KNOWN
            }
        }
    )* };
}

/// The name or the kind of a field.
macro_rules! part {
    (@name $field:ident) => {
        stringify!($field)
    };
    (@name $field:ident $wire:literal) => {
        $wire
    };
    (@kind $type:ty) => {
        <$type as $crate::proto::known::Shape>::KIND
    };
    (@kind $type:ty, $known:expr) => {
        $known
    };
}

pub(crate) use {messages, part};
