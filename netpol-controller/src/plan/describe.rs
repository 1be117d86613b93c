//! The sentences that say what a policy is for, byte for byte as Gardener and its document write
//! them.

use super::Compatibility;
use super::ports::Port;
use super::service::{Grant, Origin};
use crate::state::{LabelSelector, ObjectKey, Requirement};

pub(super) fn ingress(mode: Compatibility, service: &ObjectKey, grant: &Grant<'_>) -> String {
    let (protocol, port) = (protocol(grant), &grant.port);
    let clients = clients(mode, grant, "ingress controller pods");
    format!(
        "Allows ingress {protocol} traffic to port {port} for pods selected by the {service} \
         service selector from {clients}."
    )
}

pub(super) fn egress(mode: Compatibility, service: &ObjectKey, grant: &Grant<'_>) -> String {
    let (protocol, port) = (protocol(grant), &grant.port);
    let clients = clients(mode, grant, "pods");
    format!(
        "Allows egress {protocol} traffic to port {port} from {clients} to pods selected by the \
         {service} service selector."
    )
}

pub(super) fn from_world(service: &ObjectKey, ports: &[Port]) -> String {
    let one = |port: &Port| match port.protocol {
        Some(protocol) => format!("{}/{port}", protocol.as_str()),
        None => port.to_string(),
    };
    let list: Vec<_> = ports.iter().map(one).collect();
    format!(
        "Allows ingress traffic from everywhere to ports [{}] for pods selected by the {service} \
         service selector.",
        list.join(" ")
    )
}

/// Things listed one by one, before the others are only counted.
const SHOWN: usize = 3;

pub(super) fn list(things: impl Iterator<Item = String>, total: usize) -> String {
    let mut reported: Vec<_> = things.take(SHOWN).collect();
    if total > reported.len() {
        reported.push(format!("and {} more", total - reported.len()));
    }
    reported.join(", ")
}

fn protocol(grant: &Grant<'_>) -> &'static str {
    grant.port.protocol.unwrap_or_default().as_str()
}

fn clients(mode: Compatibility, grant: &Grant<'_>, controller: &str) -> String {
    let labels = selector(mode, &grant.clients);
    let namespace = &grant.namespace;
    match (mode, &grant.origin) {
        (Compatibility::Document, Origin::IngressController) => {
            format!("{controller} running in the {namespace} namespace labeled with {labels}")
        }
        (Compatibility::Document, Origin::Gateway | Origin::Label { .. })
        | (Compatibility::Upstream, _) => {
            format!("pods running in namespace {namespace} labeled with {labels}")
        }
    }
}

/// Writes a selector as the `fmt` package of Go prints its parts; the document knows labels alone.
fn selector(mode: Compatibility, selector: &LabelSelector) -> String {
    let labels = selector.match_labels.iter();
    let labels: Vec<_> = labels
        .map(|(key, value)| format!("{key}:{value}"))
        .collect();
    let labels = format!("map[{}]", labels.join(" "));
    let expressions = selector.match_expressions.iter().map(expression);
    let expressions: Vec<_> = expressions.collect();
    match mode {
        Compatibility::Document if expressions.is_empty() => labels,
        Compatibility::Document => format!("{labels} [{}]", expressions.join(" ")),
        Compatibility::Upstream => format!("{{{labels} [{}]}}", expressions.join(" ")),
    }
}

fn expression(one: &Requirement) -> String {
    let (operator, values) = (one.operator.as_str(), one.values.join(" "));
    format!("{{{} {operator} [{values}]}}", one.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_printed_as_each_mode_does() {
        let labels = LabelSelector::of_labels([
            ("b".to_owned(), "2".to_owned()),
            ("a".to_owned(), "1".to_owned()),
        ]);
        let text = r#"{"matchLabels":{"a":"1"},"matchExpressions":[{"key":"k","operator":"In","values":["x","y"]},{"key":"l","operator":"Exists"}]}"#;
        let both: LabelSelector = serde_json::from_str(text).unwrap();
        for (mode, chosen, expected) in [
            (Compatibility::Document, &labels, "map[a:1 b:2]"),
            (Compatibility::Upstream, &labels, "{map[a:1 b:2] []}"),
            (
                Compatibility::Document,
                &both,
                "map[a:1] [{k In [x y]} {l Exists []}]",
            ),
            (
                Compatibility::Upstream,
                &both,
                "{map[a:1] [{k In [x y]} {l Exists []}]}",
            ),
        ] {
            assert_eq!(selector(mode, chosen), expected);
        }
    }

    #[test]
    fn world_description_lists_ports() {
        let service = ObjectKey::new("a", "b");
        for (list, expected) in [
            ("[]", "[]"),
            (
                r#"[{"port":"10250","protocol":"TCP"},{"port":"testport","protocol":"UDP"}]"#,
                "[TCP/10250 UDP/testport]",
            ),
            (
                r#"[{"port":80},{},{"protocol":"UDP"}]"#,
                "[80 <nil> UDP/<nil>]",
            ),
            (
                r#"[{"port":1,"endPort":9},{"port":5,"endPort":5}]"#,
                "[1-9 5]",
            ),
        ] {
            let ports = super::super::ports::parse_list(list).unwrap();
            assert_eq!(
                from_world(&service, &ports),
                format!(
                    "Allows ingress traffic from everywhere to ports {expected} for pods selected \
                     by the a/b service selector."
                )
            );
        }
    }
}
