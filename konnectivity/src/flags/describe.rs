//! What flags there are: name, kind, default and help, taken from the types that hold them.
//!
//! ```text
//!   struct with doc comments ──JsonSchema──▶ describe() ─┬─▶ command line and `--help`
//!                            └─Default─────▶             └─▶ table in the README
//! ```
//!
//! So a flag is declared once, and neither its help nor the schema of the file can differ from what
//! is read. Knows nothing of what flags mean.

use schemars::{JsonSchema, generate::SchemaSettings};
use serde::Serialize;
use serde_json::{Map, Value};

/// What the text of a flag stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bool,
    Duration,
    Integer,
    List,
    Number,
    Path,
    Size,
    Text,
    /// One of these.
    Word(Vec<String>),
}

/// One flag, which is one key of the file as well.
#[derive(Clone, Debug)]
pub(crate) struct Flag {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) default: Value,
    pub(crate) help: String,
    pub(crate) hidden: bool,
}

impl Flag {
    /// The default as it would be written; empty for none.
    pub(crate) fn default_text(&self) -> String {
        text(&self.default)
    }

    /// What stands for the value in help.
    pub(crate) fn value_name(&self) -> String {
        match &self.kind {
            Kind::Bool => "BOOL".to_owned(),
            Kind::Duration => "DURATION".to_owned(),
            Kind::Integer | Kind::Number => "N".to_owned(),
            Kind::List => "LIST".to_owned(),
            Kind::Path => "FILE".to_owned(),
            Kind::Size => "SIZE".to_owned(),
            Kind::Text => "TEXT".to_owned(),
            Kind::Word(words) => words.join("|"),
        }
    }
}

/// A value as a flag would be given it.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// Returns the flags that are the fields of `S`, by name.
pub(crate) fn describe<S: JsonSchema + Default + Serialize>() -> Vec<Flag> {
    let schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<S>()
        .to_value();
    let defaults = serde_json::to_value(S::default()).unwrap_or_default();
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object);
    let mut flags: Vec<_> = properties
        .unwrap_or(&empty)
        .iter()
        .map(|(name, property)| Flag {
            name: name.clone(),
            kind: kind(property, &schema),
            default: defaults.get(name).cloned().unwrap_or_default(),
            help: one_line(property),
            hidden: property.get("deprecated") == Some(&Value::Bool(true)),
        })
        .collect();
    flags.sort_by(|left, right| left.name.cmp(&right.name));
    flags
}

/// Doc comments are wrapped; help is not.
fn one_line(property: &Value) -> String {
    let text = property.get("description").and_then(Value::as_str);
    let words: Vec<_> = text.unwrap_or_default().split_whitespace().collect();
    words.join(" ")
}

fn kind(property: &Value, schema: &Value) -> Kind {
    let referred = property.get("$ref").and_then(Value::as_str);
    let Some(name) = referred.and_then(|name| name.strip_prefix("#/$defs/")) else {
        return match property.get("type").and_then(Value::as_str) {
            Some("array") => Kind::List,
            Some("boolean") => Kind::Bool,
            Some("integer") => Kind::Integer,
            Some("number") => Kind::Number,
            _ => Kind::Text,
        };
    };
    match name {
        "ByteSize" => Kind::Size,
        "Duration" => Kind::Duration,
        "RelPath" => Kind::Path,
        name => Kind::Word(words(schema.get("$defs").and_then(|all| all.get(name)))),
    }
}

/// The words of an enumeration, whose variants have descriptions.
fn words(definition: Option<&Value>) -> Vec<String> {
    let variants = definition.and_then(|own| own.get("oneOf")?.as_array());
    let variants = variants.map(Vec::as_slice).unwrap_or_default();
    let word = |variant: &Value| Some(variant.get("const")?.as_str()?.to_owned());
    variants.iter().filter_map(word).collect()
}

/// Returns a table of the flags that are the fields of `S`, for the README.
pub(crate) fn table<S: JsonSchema + Default + Serialize>() -> String {
    let mut out = String::from("| flag | default | |\n|---|---|---|\n");
    for flag in describe::<S>().iter().filter(|flag| !flag.hidden) {
        let default = match flag.default_text() {
            text if text.is_empty() => text,
            text => format!("`{text}`"),
        };
        let name = match &flag.kind {
            Kind::Bool => format!("`--{}`", flag.name),
            Kind::Word(words) => format!("`--{} {}`", flag.name, words.join("\\|")),
            Kind::Duration
            | Kind::Integer
            | Kind::List
            | Kind::Number
            | Kind::Path
            | Kind::Size
            | Kind::Text => format!("`--{} {}`", flag.name, flag.value_name()),
        };
        out += &format!(
            "| {name} | {default} | {} |\n",
            flag.help.replace('|', "\\|")
        );
    }
    out
}
