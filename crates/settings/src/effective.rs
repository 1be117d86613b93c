//! The configuration in effect as text, without its secrets.
//!
//! ```text
//!   T ──serde──▶ JSON value ──redact──▶ effective_yaml: `--check`, the log
//!                                  └──▶ effective_json: `/config`
//! ```
//!
//! Keys come out in alphabetical order, so that two outputs can be compared.

use serde::Serialize;
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

/// Returns the redacted `value` as indented JSON with a closing newline.
///
/// # Errors
/// As [`redact`].
pub fn effective_json<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    Ok(format!("{:#}\n", redact(value)?))
}

/// Returns the redacted `value` as YAML with a closing newline; [`crate::yaml`] reads it back.
///
/// # Errors
/// As [`redact`].
pub fn effective_yaml<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    let mut out = String::new();
    write_block(&redact(value)?, 0, &mut out);
    Ok(out)
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

/// Writes `value` at `indent` spaces, beginning in the first column and ending with a newline.
fn write_block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (key, value) in entries {
                out.push_str(&" ".repeat(indent));
                write_entry(key, value, indent, out);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push('-');
                write_item(item, indent, out);
            }
        }
        Value::String(text) => {
            write_text(text, out);
            out.push('\n');
        }
        Value::Array(_) | Value::Bool(_) | Value::Null | Value::Number(_) | Value::Object(_) => {
            out.push_str(&value.to_string());
            out.push('\n');
        }
    }
}

/// Writes `key: value`; the line's indentation is there already.
fn write_entry(key: &str, value: &Value, indent: usize, out: &mut String) {
    write_text(key, out);
    out.push(':');
    if is_leaf(value) {
        out.push(' ');
        write_block(value, 0, out);
    } else {
        out.push('\n');
        write_block(value, indent + 2, out);
    }
}

/// Writes what follows the dash of a list's item: a mapping begins on the same line.
fn write_item(item: &Value, indent: usize, out: &mut String) {
    if is_leaf(item) {
        out.push(' ');
        write_block(item, 0, out);
    } else if let Value::Object(entries) = item {
        out.push(' ');
        for (place, (key, value)) in entries.iter().enumerate() {
            if place > 0 {
                out.push_str(&" ".repeat(indent + 2));
            }
            write_entry(key, value, indent + 2, out);
        }
    } else {
        out.push('\n');
        write_block(item, indent + 2, out);
    }
}

fn is_leaf(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// A word that can be nothing but text stands as it is; anything else in JSON's quotes, which are
/// YAML's too.
fn write_text(text: &str, out: &mut String) {
    let inside =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/' | b'.');
    let reserved = ["true", "false", "null"]
        .iter()
        .any(|word| text.eq_ignore_ascii_case(word));
    let begins_as_word = text.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins_as_word && !reserved && text.bytes().all(inside) {
        out.push_str(text);
    } else {
        write_quoted(text, out);
    }
}

/// JSON leaves characters as they are that YAML 1.2.2 does not (section 5.1); the same escape
/// serves for both. All of them lie below U+10000.
fn write_quoted(text: &str, out: &mut String) {
    for c in Value::from(text).to_string().chars() {
        match c {
            '\u{7f}'..='\u{9f}'
            | '\u{2028}'
            | '\u{2029}'
            | '\u{feff}'
            | '\u{fffe}'
            | '\u{ffff}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            _ => out.push(c),
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
        let shown = redact(&json!({
            "server": "https://user:pa:ss@example.com:15010/x?y=a@b",
            "plain": "https://example.com/@me",
            "key": "tls.key",
            "Password": "x",
            "client_secret": "x",
            "bearer-token": "x",
            "presharedKey": "psk",
            "token": "",
            "secret": { "user": "u", "pins": [1, "b"], "on": true },
        }));
        assert_eq!(
            shown.unwrap(),
            json!({
                "server": "https://[redacted]@example.com:15010/x?y=a@b",
                "plain": "https://example.com/@me",
                "key": "tls.key",
                "Password": REDACTED,
                "client_secret": REDACTED,
                "bearer-token": REDACTED,
                "presharedKey": REDACTED,
                "token": "",
                "secret": { "user": REDACTED, "pins": [REDACTED, REDACTED], "on": true },
            })
        );
    }

    #[test]
    fn every_url_of_a_text_is_cleaned() {
        let mut text = "a://x@h, b://y:z@h/p c://h".to_owned();
        hide_userinfo(&mut text);
        assert_eq!(text, "a://[redacted]@h, b://[redacted]@h/p c://h");
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
             listeners:\n  \
             - address: \"[::]:443\"\n    \
               name: tls\n    \
               tags:\n      \
                 - off\n      \
                 - \"true\"\n    \
               tcp:\n      \
                 keepaliveProbes: 3\n  \
             - {}\n\
             nested:\n  \
             -\n    \
               - 1\n    \
               - 2\n  \
             - []\n\
             none: []\n\
             workers: 0\n"
        );
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
