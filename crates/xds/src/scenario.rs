//! Scenarios of tests: commands as text, one per step, so that a case is a few lines.
//!
//! What commands there are is the tests' own.

use std::sync::Arc;

use crate::resource::{Audience, Resource, ResourceType};

/// A command of a scenario.
pub(crate) struct Command<'s> {
    /// Which one it is, for messages.
    pub(crate) at: String,
    pub(crate) verb: &'s str,
    pub(crate) words: Vec<&'s str>,
}

/// Splits a scenario into commands, which are separated by `;` or line breaks; `#` begins a
/// comment.
pub(crate) fn commands(script: &str) -> impl Iterator<Item = Command<'_>> {
    let lines = script.lines().map(|line| line.split('#').next().unwrap());
    let commands = lines.flat_map(|line| line.split(';'));
    commands.filter_map(move |command| {
        let mut words = command.split_whitespace();
        Some(Command {
            at: format!("`{}` of {script}", command.trim()),
            verb: words.next()?,
            words: words.collect(),
        })
    })
}

/// What is set in a store and what is removed from it.
type Change = (Vec<Resource>, Vec<(ResourceType, Audience, Arc<str>)>);

/// Parses one change: `C/a=1` sets, `parts:C/a=1` sets for one audience, `-C/a` removes, and
/// `parts:-C/a` removes for one audience.
pub(crate) fn change(words: &[&str]) -> Change {
    let (mut set, mut removed) = (Vec::new(), Vec::new());
    for word in words {
        let (audience, item) = match word.split_once(':') {
            Some(("parts", item)) => (Audience::Parts, item),
            Some(("whole", item)) => (Audience::Whole, item),
            _ => (Audience::All, *word),
        };
        let (kind, rest) = item.split_once('/').unwrap();
        if let Some(kind) = kind.strip_prefix('-') {
            removed.push((kind_of(kind), audience, rest.into()));
        } else {
            let (name, body) = rest.split_once('=').unwrap();
            set.push(resource(audience, kind_of(kind), name, body));
        }
    }
    (set, removed)
}

pub(crate) fn resource(audience: Audience, kind: ResourceType, name: &str, body: &str) -> Resource {
    Resource {
        kind,
        name: name.into(),
        body: body.as_bytes().to_vec().into(),
        audience,
    }
}

/// The letters that types are named by in scenarios.
const LETTERS: [(&str, ResourceType); 6] = [
    ("A", ResourceType::ClusterLoadAssignment),
    ("C", ResourceType::Cluster),
    ("L", ResourceType::Listener),
    ("R", ResourceType::RouteConfiguration),
    ("S", ResourceType::Secret),
    ("W", ResourceType::WireGuardRoute),
];

pub(crate) fn kind_of(letter: &str) -> ResourceType {
    let mut letters = LETTERS.into_iter();
    letters.find(|(known, _)| *known == letter).expect(letter).1
}

pub(crate) fn letter_of(kind: ResourceType) -> &'static str {
    LETTERS.iter().find(|(_, known)| *known == kind).unwrap().0
}
