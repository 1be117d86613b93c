//! The configuration in effect as text, without its secrets.
//!
//! ```text
//!   T ──serde──▶ JSON value ──redact──▶ `/config`, the log
//!                                  └──▶ effective_yaml: `--check`
//! ```
//!
//! Keys come out in alphabetical order, so that two outputs can be compared.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::ser::Error as _;
use serde_json::Value;

/// What stands in place of a secret.
const REDACTED: &str = "[redacted]";

/// Keys whose values are secrets, or end in such a word: compared without case, `-` and `_`.
const SECRET_WORDS: [&str; 5] = ["password", "passwd", "token", "secret", "presharedkey"];

/// Returns `value` as JSON with secrets replaced: whatever stands under a key named (or ending in)
/// password, token, secret or presharedKey, and user and password in URLs. Empty text stays: that
/// nothing is set is no secret.
///
/// # Errors
/// When `value` has no JSON form (a map with keys that are not text).
pub fn redact<T: Serialize + ?Sized>(value: &T) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::to_value(value)?;
    hide(&mut value, false);
    value.sort_all_objects();
    Ok(value)
}

/// Returns a configuration in effect as JSON, without secrets.
pub fn effective<T: Serialize + ?Sized>(config: &T) -> Value {
    redact(config).unwrap_or_default()
}

/// Returns the keys of the top level whose values differ between two configurations in effect.
#[must_use]
pub fn changed_keys(before: &Value, after: &Value) -> Vec<String> {
    let keys = |value: &Value| -> BTreeSet<String> {
        let entries = value.as_object().into_iter().flatten();
        entries.map(|(key, _)| key.clone()).collect()
    };
    let all = &keys(before) | &keys(after);
    let changed = |key: &String| before.get(key) != after.get(key);
    all.into_iter().filter(changed).collect()
}

/// Returns the redacted `value` as YAML with a closing newline; [`crate::yaml`] reads it back.
///
/// # Errors
/// As [`redact`].
pub fn effective_yaml<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    crate::yaml::to_string(&redact(value)?).map_err(serde_json::Error::custom)
}

fn hide(value: &mut Value, secret: bool) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| hide(item, secret)),
        Value::Object(entries) => {
            for (key, value) in entries.iter_mut() {
                hide(value, secret || is_secret(key));
            }
        }
        Value::String(text) if text.is_empty() => {}
        Value::String(text) if secret => REDACTED.clone_into(text),
        Value::String(text) => hide_userinfo(text),
        Value::Number(_) if secret => *value = Value::String(REDACTED.to_owned()),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn is_secret(key: &str) -> bool {
    let plain = |c: &char| !matches!(c, '-' | '_');
    let key: String = key
        .chars()
        .filter(plain)
        .flat_map(char::to_lowercase)
        .collect();
    SECRET_WORDS.iter().any(|word| key.ends_with(word))
}

/// Replaces the userinfo of a URL (RFC 3986, section 3.2.1), wherever in the text one begins.
fn hide_userinfo(text: &mut String) {
    let mut from = 0;
    while let Some(found) = text.get(from..).and_then(|rest| rest.find("://")) {
        let start = from + found + "://".len();
        let rest = text.get(start..).unwrap_or_default();
        let end = rest.find(['/', '?', '#', ' ']).unwrap_or(rest.len());
        let userinfo = rest.get(..end).and_then(|authority| authority.rfind('@'));
        from = start;
        if let Some(at) = userinfo {
            text.replace_range(start..start + at, REDACTED);
            from += REDACTED.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_replaced_and_the_rest_is_kept() {
        for (key, value, shown) in [
            (
                "server",
                json!("https://user:pa:ss@example.com:15010/x?y=a@b"),
                json!("https://[redacted]@example.com:15010/x?y=a@b"),
            ),
            (
                "plain",
                json!("https://example.com/@me"),
                json!("https://example.com/@me"),
            ),
            (
                "urls",
                json!("a://x@h, b://y:z@h/p c://h"),
                json!("a://[redacted]@h, b://[redacted]@h/p c://h"),
            ),
            ("key", json!("tls.key"), json!("tls.key")),
            ("Password", json!("x"), json!(REDACTED)),
            ("client_secret", json!("x"), json!(REDACTED)),
            ("bearer-token", json!("x"), json!(REDACTED)),
            ("presharedKey", json!("psk"), json!(REDACTED)),
            ("token", json!(""), json!("")),
            (
                "secret",
                json!({ "user": "u", "pins": [1, "b"], "on": true }),
                json!({ "user": REDACTED, "pins": [REDACTED, REDACTED], "on": true }),
            ),
        ] {
            assert_eq!(
                redact(&json!({ key: value })).unwrap(),
                json!({ key: shown })
            );
        }
    }

    #[test]
    fn yaml_is_shown_as_a_person_would_write_it() {
        let text = effective_yaml(&json!({
            "listeners": [
                { "name": "tls", "address": "[::]:443", "tags": ["off", "true"], "tcp": { "keepaliveProbes": 3 } },
                {},
            ],
            "workers": 0, "none": [], "cache": null, "nested": [[1, 2], []],
        }));
        assert_eq!(
            text.unwrap(),
            "cache: null\n\
             listeners:\n\
             - address: \"[::]:443\"\n  \
               name: tls\n  \
               tags:\n  \
               - \"off\"\n  \
               - \"true\"\n  \
               tcp:\n    \
                 keepaliveProbes: 3\n\
             - {}\n\
             nested:\n\
             - - 1\n  \
               - 2\n\
             - []\n\
             none: []\n\
             workers: 0\n"
        );
    }

    #[test]
    fn changed_keys_are_those_of_either_side() {
        let before = json!({ "a": 1, "b": { "c": 1 }, "d": [1], "same": [{ "x": 1 }] });
        let after = json!({ "b": { "c": 2 }, "d": [1, 2], "e": null, "same": [{ "x": 1 }] });
        assert_eq!(changed_keys(&before, &after), ["a", "b", "d", "e"]);
        assert!(changed_keys(&after, &after).is_empty());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            "[a-z0-9:#,' \\-\\[\\]{}\n\t\"]{0,12}".prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z0-9: ]{0,6}|.{0,6}", inner, 0..4).prop_map(
                    |map| Value::from(map.into_iter().collect::<serde_json::Map<_, _>>())
                ),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_yaml_shown_reads_back_as_the_same(value in any_json()) {
            let shown = redact(&value).unwrap();
            let text = effective_yaml(&value).unwrap();
            // A file that holds nothing is refused, whatever the type.
            prop_assume!(!shown.is_null());
            let read: Value = crate::yaml::from_str(&text, "a.yaml".as_ref()).unwrap();
            prop_assert_eq!(read, shown, "{}", text);
        }
    }
}
