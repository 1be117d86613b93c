//! Kinds and fields that kube-apiserver v1.20 does not know, as the API's reference documents them.
//!
//! | | since |
//! |---|---|
//! | `policy/v1` PodDisruptionBudget | 1.21; `unhealthyPodEvictionPolicy` 1.26 |
//! | `autoscaling/v2` HorizontalPodAutoscaler | 1.23 |
//! | `trafficDistribution` of a Service | 1.30; `PreferSameZone` 1.34 |
//! | `maxSurge` of a DaemonSet | 1.22; `maxUnavailable` may be 0 beside it |
//!
//! The schemas are a subset: what the manifests have no use for is refused.

use serde_json::{Value, json};

/// Fields that are taken out of what the server is given: kind, and where in it.
const FIELDS: [(&str, &str); 2] = [
    ("DaemonSet", "/spec/updateStrategy/rollingUpdate"),
    ("Service", "/spec/trafficDistribution"),
];

/// An object for the server, without what it does not know.
pub(crate) struct Known {
    pub(crate) object: Option<Value>,
    /// What was checked here instead, in words.
    pub(crate) checked: Vec<String>,
}

/// Checks what the server does not know, `serves` being the kinds it does, and returns the rest.
///
/// # Panics
/// When it is not as documented.
pub(crate) fn check(mut object: Value, serves: impl Fn(&str, &str) -> bool) -> Known {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let name = text(&object["metadata"]["name"]);
    if !serves(&version, &kind) {
        let spec =
            schema(&kind).unwrap_or_else(|| panic!("{version} {kind} is not documented here"));
        assert_eq!(spec.0, version, "{kind} {name}");
        fits(&format!("{kind} {name}: spec"), &object["spec"], &spec.1);
        let checked = vec![format!("{version} {kind} {name}")];
        return Known {
            object: None,
            checked,
        };
    }
    let mut checked = Vec::new();
    for (_, path) in FIELDS.iter().filter(|(own, _)| *own == kind) {
        let Some(value) = object.pointer(path) else {
            continue;
        };
        fits(&format!("{kind} {name}: {path}"), value, &field(&kind));
        checked.push(format!("{kind} {name}, {path}"));
        let (parent, field) = path.rsplit_once('/').unwrap();
        object
            .pointer_mut(parent)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove(field);
    }
    Known {
        object: Some(object),
        checked,
    }
}

/// Returns the schema of the field of a kind that the server does not know.
fn field(kind: &str) -> Value {
    match kind {
        "DaemonSet" => json!({ "maxSurge": "intOrString", "maxUnavailable": "intOrString" }),
        _ => json!(["PreferClose", "PreferSameZone"]),
    }
}

/// Returns version and specification of a kind. A schema is the name of a type; a list, of words that
/// are allowed; `{ "each": schema }`, for lists; `{ "values": schema }`, for maps; or an object of
/// fields, those that must be there with a `!` behind their name.
fn schema(kind: &str) -> Option<(&'static str, Value)> {
    let selector = json!({ "matchLabels": { "values": "string" } });
    let scaling = |tell: Value| {
        json!({
            "stabilizationWindowSeconds": "integer",
            "selectPolicy": ["Max", "Min", "Disabled"],
            "policies": { "each": {
                "type!": ["Pods", "Percent"], "value!": "integer", "periodSeconds!": "integer",
            } },
            "tolerance": tell,
        })
    };
    match kind {
        "PodDisruptionBudget" => Some((
            "policy/v1",
            json!({
                "minAvailable": "intOrString",
                "maxUnavailable": "intOrString",
                "selector": selector,
                "unhealthyPodEvictionPolicy": ["IfHealthyBudget", "AlwaysAllow"],
            }),
        )),
        "HorizontalPodAutoscaler" => Some((
            "autoscaling/v2",
            json!({
                "scaleTargetRef!": { "apiVersion": "string", "kind!": "string", "name!": "string" },
                "minReplicas": "integer",
                "maxReplicas!": "integer",
                "metrics": { "each": {
                    "type!": ["Resource"],
                    "resource": {
                        "name!": ["cpu", "memory"],
                        "target!": {
                            "type!": ["Utilization", "AverageValue"],
                            "averageValue": "quantity",
                            "averageUtilization": "integer",
                        },
                    },
                } },
                "behavior": { "scaleUp": scaling(json!("quantity")), "scaleDown": scaling(json!("quantity")) },
            }),
        )),
        _ => None,
    }
}

/// Fails unless a value is what a schema says.
fn fits(place: &str, value: &Value, schema: &Value) {
    match schema {
        Value::String(kind) => assert!(is(value, kind), "{place}: {value} is no {kind}"),
        Value::Array(words) => assert!(
            words.contains(value),
            "{place}: {value} is none of {words:?}"
        ),
        Value::Object(fields) if fields.contains_key("each") => {
            let list = value
                .as_array()
                .unwrap_or_else(|| panic!("{place}: {value} is no list"));
            for (number, item) in list.iter().enumerate() {
                fits(&format!("{place}[{number}]"), item, &fields["each"]);
            }
        }
        Value::Object(fields) if fields.contains_key("values") => {
            for (key, own) in object(place, value) {
                fits(&format!("{place}.{key}"), own, &fields["values"]);
            }
        }
        Value::Object(fields) => {
            let own = object(place, value);
            for (key, value) in own {
                let named = fields.get(key).or_else(|| fields.get(&format!("{key}!")));
                let schema = named.unwrap_or_else(|| panic!("{place}: no field {key}"));
                fits(&format!("{place}.{key}"), value, schema);
            }
            for key in fields.keys().filter_map(|key| key.strip_suffix('!')) {
                assert!(own.contains_key(key), "{place}: {key} is missing");
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => panic!("{schema} is no schema"),
    }
}

fn object<'a>(place: &str, value: &'a Value) -> &'a serde_json::Map<String, Value> {
    value
        .as_object()
        .unwrap_or_else(|| panic!("{place}: {value} is no object"))
}

fn is(value: &Value, kind: &str) -> bool {
    match kind {
        "integer" => value.is_u64(),
        "intOrString" => value.is_u64() || value.is_string(),
        "quantity" => {
            let text = value.as_str().unwrap_or_default();
            text.starts_with(|first: char| first.is_ascii_digit())
        }
        "string" => value.is_string(),
        other => panic!("no type {other}"),
    }
}

#[test]
#[should_panic(expected = "no field minAvailabel")]
fn a_field_that_is_not_documented_is_found() {
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "own" }, "spec": { "minAvailabel": 1 },
    });
    check(budget, |_, _| false);
}

#[test]
#[should_panic(expected = "maxReplicas is missing")]
fn a_field_that_must_be_there_is_missed() {
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "own" },
        "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "own" } },
    });
    check(scaler, |_, _| false);
}
