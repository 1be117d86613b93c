//! The rules of an RBAC filter, and which clients they admit.
//!
//! Rules are kept as the tree that they are, and worked out for one way in at a time: what a
//! CONNECT request asks for, the server name, or a node proxy's destination decides which of the
//! addresses count. So "not this shoot, or one of these ranges" comes out right for each shoot.
//! What cannot be worked out is an error, never a guess.

use std::collections::BTreeSet;
use std::sync::Arc;

use route::IpPrefix;
use serde_json::Value;

use super::Patterns;
use super::matcher::Matcher;
use super::read::{check_fields, list, prefix};
use super::sources::{Sources, covers};

/// Most address ranges in one filter: what is compared with each other stays small.
const MAX_RANGES: usize = 1024;

/// Fields of an RBAC filter that are known; those of shadow rules have no effect.
const FILTER_FIELDS: [&str; 11] = [
    "@type",
    "stat_prefix",
    "rules",
    "rules_stat_prefix",
    "shadow_rules",
    "shadow_rules_stat_prefix",
    "shadow_matcher",
    "enforcement_type",
    "track_per_rule_stats",
    "delay_deny",
    "audit_logging_options",
];

/// The clients that an RBAC filter admits.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Access(Rule);

/// A way in, as rules see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Visit<'a> {
    /// The server name: a name, or a pattern that stands for several.
    pub server_name: Option<&'a str>,
    /// What a CONNECT request asks for.
    pub value: Option<&'a str>,
    /// The destination in a node proxy's header, with its port if that counts.
    pub destination: Option<(IpPrefix, Option<u16>)>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Rule {
    All(Vec<Self>),
    Any(Vec<Self>),
    Destination(IpPrefix),
    Not(Box<Self>),
    Port(u64),
    ServerName(Matcher),
    Source(IpPrefix),
    Value(Matcher),
}

/// Namespaces that the headers in rules spell out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Named {
    pub(super) namespaces: BTreeSet<Arc<str>>,
    /// No header matches values of other namespaces.
    pub(super) alone: bool,
}

impl Access {
    /// Reads the configuration of a filter; `None` when it admits all clients.
    pub(super) fn read(config: &Value, patterns: &Patterns) -> Result<Option<Self>, String> {
        check_fields(config, &FILTER_FIELDS)?;
        let Some(rules) = config.get("rules") else {
            return Ok(None);
        };
        check_fields(rules, &["action", "policies", "audit_logging_options"])?;
        match rules
            .get("action")
            .map(|action| (action.as_str(), action.as_u64()))
        {
            None | Some((Some("ALLOW"), _) | (_, Some(0))) => {}
            Some((Some("LOG"), _) | (_, Some(2))) => return Ok(None),
            Some(_) => return Err("those that it denies".to_owned()),
        }
        let policies = rules["policies"].as_object().into_iter().flatten();
        let policies = policies.map(|(_, own)| policy(own, patterns));
        let rule = Rule::Any(policies.collect::<Result<_, _>>()?);
        if rule.ranges() > MAX_RANGES {
            return Err(format!("more than {MAX_RANGES} ranges"));
        }
        Ok(Some(Self(rule)))
    }

    /// Returns the addresses from which a way in is open.
    ///
    /// # Errors
    /// What the rules look at that is not known of this way in, or not for all of it.
    pub fn allowed(&self, visit: &Visit<'_>) -> Result<Sources, String> {
        self.0.allowed(visit)
    }
}

impl Named {
    /// Searches the configuration of a filter, supported or not.
    pub(super) fn find(config: &Value) -> Self {
        let mut named = Self {
            namespaces: BTreeSet::new(),
            alone: true,
        };
        named.look(&config["rules"]);
        named.alone &= !named.namespaces.is_empty();
        named
    }

    fn look(&mut self, value: &Value) {
        match value {
            Value::Array(all) => all.iter().for_each(|one| self.look(one)),
            Value::Object(fields) => {
                for (name, inner) in fields {
                    if name == "header" {
                        self.header(inner);
                    } else {
                        self.look(inner);
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    fn header(&mut self, header: &Value) {
        // A regular expression spells out no namespace.
        let matcher = Matcher::header(header, &Patterns::none()).ok();
        match matcher.and_then(|(matcher, _)| matcher.namespace()) {
            None => self.alone = false,
            Some((name, alone)) => {
                self.alone &= alone;
                self.namespaces.insert(name.into());
            }
        }
    }
}

impl Rule {
    fn not(self) -> Self {
        Self::Not(Box::new(self))
    }

    fn ranges(&self) -> usize {
        match self {
            Self::All(rules) | Self::Any(rules) => rules.iter().map(Self::ranges).sum(),
            Self::Not(rule) => rule.ranges(),
            Self::Source(_) => 1,
            Self::Destination(_) | Self::Port(_) | Self::ServerName(_) | Self::Value(_) => 0,
        }
    }

    fn allowed(&self, visit: &Visit<'_>) -> Result<Sources, String> {
        let holds = match self {
            Self::All(rules) => {
                return combined(rules, visit, Sources::All, Sources::and, &Sources::none());
            }
            Self::Any(rules) => {
                return combined(rules, visit, Sources::none(), Sources::or, &Sources::All);
            }
            Self::Not(rule) => match rule.allowed(visit)? {
                Sources::All => false,
                inner if inner.is_none() => true,
                Sources::Only(_) => return Err("addresses that may not connect".to_owned()),
            },
            Self::Source(range) => return Ok((*range).into()),
            Self::Destination(range) => {
                let (own, _) = visit.destination.ok_or("the destination's address")?;
                if !covers(range, &own) && covers(&own, range) {
                    return Err(format!("it concerns a part of {own} only"));
                }
                covers(range, &own)
            }
            Self::Port(own) => {
                let (_, port) = visit.destination.ok_or("the destination's port")?;
                *own == u64::from(port.ok_or("the destination's port")?)
            }
            Self::ServerName(matcher) => {
                matcher.matches_names(visit.server_name.ok_or("the server name")?)?
            }
            Self::Value(matcher) => {
                matcher.matches(visit.value.ok_or("a header, which is inside TLS here")?)
            }
        };
        Ok(if holds { Sources::All } else { Sources::none() })
    }
}

/// Returns what several rules allow together. An unknown rule does not matter where the others
/// come to what no further rule changes.
fn combined(
    rules: &[Rule],
    visit: &Visit<'_>,
    start: Sources,
    join: fn(Sources, Sources) -> Sources,
    last: &Sources,
) -> Result<Sources, String> {
    let mut joined = start;
    let mut unknown = None;
    for rule in rules {
        match rule.allowed(visit) {
            Ok(own) => joined = join(joined, own),
            Err(why) => unknown = Some(why),
        }
    }
    match unknown {
        Some(why) if joined != *last => Err(why),
        Some(_) | None => Ok(joined),
    }
}

fn policy(policy: &Value, patterns: &Patterns) -> Result<Rule, String> {
    check_fields(policy, &["permissions", "principals"])?;
    let rule = |message| rule(message, patterns);
    let permissions = list(policy, "permissions").map(rule);
    let principals = list(policy, "principals").map(rule);
    Ok(Rule::All(vec![
        Rule::Any(permissions.collect::<Result<_, _>>()?),
        Rule::Any(principals.collect::<Result<_, _>>()?),
    ]))
}

/// Reads a permission or a principal, a message that has one of many fields.
fn rule(message: &Value, patterns: &Patterns) -> Result<Rule, String> {
    let mut fields = message.as_object().into_iter().flatten();
    let (Some((name, value)), None) = (fields.next(), fields.next()) else {
        return Err("a rule of other than one part".to_owned());
    };
    let rule = |message| rule(message, patterns);
    let inner = |name: &str| list(value, name).map(rule).collect::<Result<_, _>>();
    match name.as_str() {
        "any" => Ok(Rule::All(Vec::new())),
        "and_rules" => inner("rules").map(Rule::All),
        "and_ids" => inner("ids").map(Rule::All),
        "or_rules" => inner("rules").map(Rule::Any),
        "or_ids" => inner("ids").map(Rule::Any),
        "not_rule" | "not_id" => rule(value).map(Rule::not),
        "header" => {
            let (matcher, inverted) = Matcher::header(value, patterns)?;
            let rule = Rule::Value(matcher);
            Ok(if inverted { rule.not() } else { rule })
        }
        "requested_server_name" => Matcher::string(value, patterns).map(Rule::ServerName),
        "destination_ip" => prefix(value).map(Rule::Destination),
        "destination_port" => {
            let port = value.as_u64().ok_or("a port that is no number")?;
            Ok(Rule::Port(port))
        }
        "source_ip" | "remote_ip" | "direct_remote_ip" => prefix(value).map(Rule::Source),
        _ => Err(format!("{name} of a permission or principal")),
    }
}
