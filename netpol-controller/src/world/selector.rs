//! Label selectors as Kubernetes defines them (`metav1.LabelSelector`).

use serde::{Deserialize, Serialize};

use super::Labels;

/// Selects by labels; an empty one selects everything.
#[derive(
    Clone,
    Debug,
    Default,
    Deserialize,
    Eq,
    Ord,
    PartialEq,
    PartialOrd,
    Serialize,
    schemars::JsonSchema,
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
#[derive(
    Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, schemars::JsonSchema,
)]
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

/// How a label is compared.
#[derive(
    Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize, schemars::JsonSchema,
)]
pub enum Operator {
    /// It is not there.
    DoesNotExist,
    /// It is there.
    Exists,
    /// It has one of the values.
    In,
    /// It has none of the values, or is not there.
    NotIn,
}

impl LabelSelector {
    /// Selects what has all of these labels.
    #[must_use]
    pub fn of_labels(labels: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            match_labels: labels.into_iter().collect(),
            match_expressions: Vec::new(),
        }
    }

    /// Tells whether an object with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &Labels) -> bool {
        let all = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.match_labels.iter().all(all)
            && self.match_expressions.iter().all(|one| one.matches(labels))
    }

    /// Tells what is wrong with it, as the API server would: `In` and `NotIn` need values, the
    /// others take none.
    ///
    /// # Errors
    /// The key of the condition and what is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        for one in &self.match_expressions {
            let wants = matches!(one.operator, Operator::In | Operator::NotIn);
            if wants == one.values.is_empty() {
                let word = if wants { "needs" } else { "takes no" };
                return Err(format!("{:?} of {} {word} values", one.operator, one.key));
            }
        }
        Ok(())
    }
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
    use super::*;

    fn selector(json: &str) -> LabelSelector {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn operators_mean_what_kubernetes_says() {
        let labels: Labels = [("a".to_owned(), "1".to_owned())].into();
        for (json, expected) in [
            ("{}", true),
            (r#"{"matchLabels":{"a":"1"}}"#, true),
            (r#"{"matchLabels":{"a":"2"}}"#, false),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"In","values":["1","2"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"b","operator":"In","values":["1"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"a","operator":"NotIn","values":["1"]}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"b","operator":"NotIn","values":["1"]}]}"#,
                true,
            ),
            (
                r#"{"matchExpressions":[{"key":"b","operator":"Exists"}]}"#,
                false,
            ),
            (
                r#"{"matchExpressions":[{"key":"b","operator":"DoesNotExist"}]}"#,
                true,
            ),
        ] {
            assert_eq!(selector(json).matches(&labels), expected, "{json}");
        }
    }

    #[test]
    fn values_go_with_the_operators_that_want_them() {
        assert!(
            selector(r#"{"matchExpressions":[{"key":"a","operator":"In"}]}"#)
                .check()
                .is_err()
        );
        let bad = r#"{"matchExpressions":[{"key":"a","operator":"Exists","values":["x"]}]}"#;
        assert!(selector(bad).check().is_err());
        assert!(selector(r#"{"matchLabels":{"a":""}}"#).check().is_ok());
    }
}
