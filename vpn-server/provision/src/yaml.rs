//! Writes values as YAML that people read and that every reader understands alike.
//!
//! ```text
//!   { "a": ["x"], "b": 1 }  ─▶  a:
//!                               - x
//!                               b: 1
//! ```
//!
//! Text is quoted wherever YAML 1.1, which kubectl reads, or 1.2 might take it for something else.
//! `settings` shows configurations without their secrets; here they are the point.

use serde_json::Value;

/// Returns `value` as YAML with a closing newline.
pub(super) fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    block(value, 0, &mut text);
    text
}

/// Writes from the first column of a line that is indented already, to the end of a line.
fn block(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            for (place, (key, value)) in entries.iter().enumerate() {
                if place > 0 {
                    pad(indent, out);
                }
                out.push_str(&scalar(key));
                out.push(':');
                match value {
                    Value::Object(inner) if !inner.is_empty() => below(value, indent + 2, out),
                    Value::Array(inner) if !inner.is_empty() => below(value, indent, out),
                    Value::Array(_)
                    | Value::Bool(_)
                    | Value::Null
                    | Value::Number(_)
                    | Value::Object(_)
                    | Value::String(_) => {
                        out.push(' ');
                        block(value, indent, out);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (place, item) in items.iter().enumerate() {
                if place > 0 {
                    pad(indent, out);
                }
                out.push_str("- ");
                block(item, indent + 2, out);
            }
        }
        Value::String(text) => {
            out.push_str(&scalar(text));
            out.push('\n');
        }
        Value::Array(_) | Value::Bool(_) | Value::Null | Value::Number(_) | Value::Object(_) => {
            out.push_str(&value.to_string());
            out.push('\n');
        }
    }
}

fn below(value: &Value, indent: usize, out: &mut String) {
    out.push('\n');
    pad(indent, out);
    block(value, indent, out);
}

fn pad(indent: usize, out: &mut String) {
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Text as it is where it can be nothing but text, else as JSON writes it, which YAML reads.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    let word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain);
    let taken = WORDS.iter().any(|other| other.eq_ignore_ascii_case(text));
    if word && !taken {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

/// What is no text in some version of YAML.
const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn written_yaml_reads_back() {
        let value = json!({
            "apiVersion": "v1",
            "empty": {}, "none": [], "nothing": null, "yes": true,
            "words": ["off", "no", "1", "0x1f", "a b", "a: b", "", "~", "- x", "é\n", "plain-word"],
            "nested": [{ "a": 1, "b": { "c": ["x"] } }, [["deep"], []], "y"],
            "address": "fd8f:6d53:b97a:1::1/96",
        });
        let text = to_yaml(&value);
        let read: Value = settings::yaml::from_str(&text, "x".as_ref()).unwrap();
        assert_eq!(read, value, "{text}");
    }

    #[test]
    fn yaml_is_readable() {
        let value = json!({ "peers": [{ "addresses": ["10.0.0.1"], "name": "vpn-shoot-0" }] });
        let expected = "peers:\n- addresses:\n  - \"10.0.0.1\"\n  name: vpn-shoot-0\n";
        assert_eq!(to_yaml(&value), expected);
    }
}
