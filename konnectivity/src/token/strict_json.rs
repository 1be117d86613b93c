//! JSON in which no object has a key twice: two readers could take it for two different things.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads a value, at most 128 levels deep; `None` when it is none or has a key twice.
pub(super) fn parse(bytes: &[u8]) -> Option<Value> {
    let Strict(value) = serde_json::from_slice(bytes).ok()?;
    Some(value)
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without a key twice")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = seq.next_element()? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
            if values.insert(key, value).is_some() {
                return Err(A::Error::custom("a key twice"));
            }
        }
        Ok(values.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_read_as_they_are() {
        let text = br#"{"a":[1,-2,1.5,true,null,"s"],"b":{"a":{}}}"#;
        let value = json!({"a": [1, -2, 1.5, true, null, "s"], "b": {"a": {}}});
        assert_eq!(parse(text), Some(value));
    }

    #[test]
    fn keys_twice_and_what_is_no_json_are_refused() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":[{"b":1,"c":2,"b":3}]}"#,
            // The same key escaped.
            r#"{"a":1,"\u0061":1}"#,
            "{} x",
            &"[".repeat(100_000),
        ] {
            assert_eq!(parse(text.as_bytes()), None);
        }
    }
}
