//! What documents show of the flags: the lists in the README and the schema of the file.

use serde_json::Value;

use super::read::{Flags, command, defaults, help};

/// A flag as the README shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    heading: String,
    /// With its value's name and its default.
    name: String,
    help: String,
}

/// Returns lists of all flags that are not hidden, for the README: those of `A` alone, of `B`
/// alone, and of both.
pub(crate) fn lists<A: Flags, B: Flags>() -> [String; 3] {
    let (of_a, of_b) = (shown::<A>(), shown::<B>());
    let (both, only_a): (Vec<_>, Vec<_>) = of_a.into_iter().partition(|flag| of_b.contains(flag));
    let only_b = of_b.into_iter().filter(|flag| !both.contains(flag));
    [list(only_a), list(only_b.collect()), list(both)]
}

fn shown<S: Flags>() -> Vec<Shown> {
    let keys = defaults::<S>();
    let mut flags = Vec::new();
    for arg in command::<S>().get_arguments() {
        let name = arg.get_long().unwrap_or_default();
        if arg.is_hide_set() || !keys.contains_key(name) {
            continue;
        }
        let values = arg.get_value_names().unwrap_or_default().join(" ");
        let name = match values.as_str() {
            "BOOL" => format!("`--{name}`"),
            values => format!("`--{name} {values}`"),
        };
        let default = match arg.get_default_values() {
            [text] if !text.is_empty() => format!(" (`{}`)", text.to_string_lossy()),
            _ => String::new(),
        };
        flags.push(Shown {
            heading: arg.get_help_heading().unwrap_or_default().to_owned(),
            name: name + &default,
            help: help(arg),
        });
    }
    flags
}

/// Lists flags below their headings, in a line those of a heading with the same help.
fn list(mut flags: Vec<Shown>) -> String {
    let mut out = String::new();
    while let Some(heading) = flags.first().map(|flag| flag.heading.clone()) {
        let (mut under, others) = flags.into_iter().partition(|flag| flag.heading == heading);
        flags = others;
        out += &format!("\n**{heading}**\n\n");
        while let Some(help) = under.first().map(|flag: &Shown| flag.help.clone()) {
            let (same, others): (Vec<_>, Vec<_>) =
                under.into_iter().partition(|flag| flag.help == help);
            under = others;
            let names: Vec<_> = same.into_iter().map(|flag| flag.name).collect();
            // The heading says it already.
            let help = help.trim_start_matches("Accepted, has no effect: ");
            out += &format!("- {}: {help}\n", names.join(", "));
        }
    }
    out + "\n"
}

/// Returns the JSON schema of the file: that of `S`, with the defaults that clap has.
pub(crate) fn schema<S: Flags>() -> String {
    let text = settings::schema::<S>();
    let mut schema: Value = serde_json::from_str(&text).unwrap_or_default();
    let (defaults, command) = (defaults::<S>(), command::<S>());
    for (key, default) in defaults {
        let property = &mut schema["properties"][&key];
        property["default"] = default;
        let mut hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
        if hidden.any(|arg| arg.get_long() == Some(&*key)) {
            property["deprecated"] = true.into();
        }
    }
    if let Some(object) = schema.as_object_mut() {
        object.remove("required");
        object.insert("additionalProperties".to_owned(), false.into());
    }
    schema.sort_all_objects();
    format!("{schema:#}\n")
}
