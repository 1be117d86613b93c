//! Label selectors as Kubernetes defines them (`metav1.LabelSelector`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Labels, has_labels};

/// Selects by labels; an empty one selects everything.
#[derive(
    Clone, Debug, Default, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must be there with these values.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub match_labels: Labels,
    /// Further conditions; all must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on one label.
#[derive(Clone, Debug, Deserialize, Eq, JsonSchema, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// The condition.
    pub operator: Operator,
    /// Values of `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

telemetry::labels! {
    /// How a label is compared.
    #[derive(Deserialize, JsonSchema, Serialize)]
    pub enum Operator {
        /// It is not there.
        DoesNotExist = "DoesNotExist",
        /// It is there.
        Exists = "Exists",
        /// It has one of the values.
        In = "In",
        /// It has none of the values, or is not there.
        NotIn = "NotIn",
    }
}

impl LabelSelector {
    /// Selects what has all of these labels.
    pub fn of_labels(labels: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            match_labels: labels.into_iter().collect(),
            match_expressions: Vec::new(),
        }
    }

    /// Returns whether an object with these labels is selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        has_labels(labels, &self.match_labels)
            && self.match_expressions.iter().all(|one| one.matches(labels))
    }

    /// Reads a JSON list of selectors, as an annotation has it. `null` is an empty list, and
    /// selects everything as an item.
    ///
    /// # Errors
    /// What is wrong, and at which column or in which item.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, String> {
        parse_items(text, Self::parse)
    }

    fn parse(mut item: Value) -> Result<Self, String> {
        if let Value::Object(fields) = &mut item {
            fields.retain(|_, value| !value.is_null());
        }
        let selector: Option<Self> = serde_json::from_value(item).map_err(|e| e.to_string())?;
        let selector = selector.unwrap_or_default();
        selector.check().map(|()| selector)
    }

    /// Validates it as the API server would: keys and values have the syntax of
    /// labels, `In` and `NotIn` need values, the others take none.
    ///
    /// # Errors
    /// The key and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for (key, value) in &self.match_labels {
            check_label(key, value)?;
        }
        for one in &self.match_expressions {
            let wants = matches!(one.operator, Operator::In | Operator::NotIn);
            if wants == one.values.is_empty() {
                let word = if wants { "needs" } else { "takes no" };
                return Err(format!("{:?} of {} {word} values", one.operator, one.key));
            }
            check_label(&one.key, "")?;
            for value in &one.values {
                check_label(&one.key, value)?;
            }
        }
        Ok(())
    }
}

/// Reads a JSON list of objects, as an annotation has it; `null` is an empty one.
///
/// # Errors
/// What is wrong, and at which column or in which item.
pub(crate) fn parse_items<T>(
    text: &str,
    parse: impl Fn(Value) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let items = match serde_json::from_str(text) {
        Ok(Value::Array(items)) => items,
        Ok(Value::Null) => Vec::new(),
        Ok(_) => return Err("not a list".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    let parsed = items.into_iter().zip(1..).map(|(item, number)| {
        // serde would also fill a struct from a list.
        let parsed = match item {
            item if item.is_object() || item.is_null() => parse(item),
            _ => Err("not an object".to_owned()),
        };
        parsed.map_err(|error| format!("item {number}: {error}"))
    });
    parsed.collect()
}

fn check_label(key: &str, value: &str) -> Result<(), String> {
    if !is_label_key(key) {
        return Err(format!("{key:?} is not a label key"));
    }
    if !value.is_empty() && !is_label_name(value) {
        return Err(format!("{value:?} of {key} is not a label value"));
    }
    Ok(())
}

/// Returns whether a label may have this key: a name, with a DNS name and a slash in front or not.
pub fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_name(name),
        None => is_label_name(key),
    }
}

/// Returns whether an object may have this name: DNS labels in lower case joined by dots, at most
/// 253 bytes (RFC 1123).
pub fn is_subdomain(name: &str) -> bool {
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(inner)
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn is_label_name(name: &str) -> bool {
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 63
        && ends(name.bytes().next())
        && ends(name.bytes().last())
        && name.bytes().all(inner)
}

impl Requirement {
    fn matches(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::DoesNotExist => value.is_none(),
            Operator::Exists => value.is_some(),
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).unwrap()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> LabelSelector {
        let one = json!({"key": key, "operator": operator, "values": values});
        selector(&json!({"matchExpressions": [one]}).to_string())
    }

    #[test]
    fn operators_mean_what_kubernetes_says() {
        let labels: Labels = [("a".to_owned(), "1".to_owned())].into();
        for (selector, expected) in [
            (selector("{}"), true),
            (selector(r#"{"matchLabels":{"a":"1"}}"#), true),
            (selector(r#"{"matchLabels":{"a":"2"}}"#), false),
            (expression("a", "In", &["1", "2"]), true),
            (expression("b", "In", &["1"]), false),
            (expression("a", "NotIn", &["1"]), false),
            (expression("b", "NotIn", &["1"]), true),
            (expression("b", "Exists", &[]), false),
            (expression("b", "DoesNotExist", &[]), true),
        ] {
            assert_eq!(selector.matches(&labels), expected, "{selector:?}");
        }
    }

    #[test]
    fn values_go_with_the_operators_that_want_them() {
        assert!(expression("a", "In", &[]).check().is_err());
        assert!(expression("a", "Exists", &["x"]).check().is_err());
        assert!(selector(r#"{"matchLabels":{"a":""}}"#).check().is_ok());
    }

    #[test]
    fn keys_and_values_have_the_syntax_of_labels() {
        let check = |key: &str, value: &str| {
            LabelSelector::of_labels([(key.to_owned(), value.to_owned())]).check()
        };
        for (key, value) in [("a", "b"), ("x.io/a_b.c", "B-1"), ("A", "")] {
            assert_eq!(check(key, value), Ok(()), "{key}={value}");
        }
        for (key, value) in [
            ("", "b"),
            ("a b", ""),
            ("X.io/a", ""),
            ("x.io/", ""),
            ("-a", ""),
            ("a", "b-"),
            ("a", "b c"),
        ] {
            assert!(check(key, value).is_err(), "{key}={value}");
        }
        assert!(check(&"a".repeat(64), "").is_err());
        assert!(expression("a b", "Exists", &[]).check().is_err());
    }

    #[test]
    fn a_list_is_read_with_the_item_that_is_wrong() {
        let parse = |text| LabelSelector::parse_list(text);
        let everything = LabelSelector::default();
        assert_eq!(parse("null"), Ok(vec![]));
        assert_eq!(parse("[]"), Ok(vec![]));
        assert_eq!(
            parse(r#"[{},null,{"matchLabels":null}]"#),
            Ok(vec![everything.clone(), everything.clone(), everything])
        );
        for (text, reported) in [
            ("", "column 0"),
            ("[{},", "column 4"),
            ("{}", "not a list"),
            ("[{},7]", "item 2"),
            ("[[]]", "item 1: not an object"),
            (r#"[{"matchlabels":{}}]"#, "item 1: unknown field"),
            (
                r#"[{"matchExpressions":[{"key":"a","operator":"Like"}]}]"#,
                "item 1: unknown variant",
            ),
            (r#"[{},{"matchLabels":{"a b":""}}]"#, "item 2"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(reported), "{text}: {error}");
        }
    }

    #[test]
    fn the_api_gets_nothing_where_there_is_nothing() {
        assert_eq!(json!(LabelSelector::default()), json!({}));
        let text = r#"{"matchExpressions":[{"key":"b","operator":"Exists"},{"key":"a","operator":"In","values":["2","1"]}],"matchLabels":{"c":"d"}}"#;
        assert_eq!(json!(selector(text)).to_string(), text);
    }
}
