//! What documents show of the flags: the table in the README and the schema of the file.

use serde_json::Value;

use super::read::{Flags, command, defaults, help};

/// Returns a table of all flags that are not hidden, for the README.
pub(crate) fn table<S: Flags>() -> String {
    let (mut out, keys) = (
        String::from("| flag | default | |\n|---|---|---|\n"),
        defaults::<S>(),
    );
    let mut heading = None;
    for arg in command::<S>().get_arguments() {
        let name = arg.get_long().unwrap_or_default();
        if arg.is_hide_set() || !keys.contains_key(name) {
            continue;
        }
        if heading != arg.get_help_heading() {
            heading = arg.get_help_heading();
            out += &format!("| **{}** | | |\n", heading.unwrap_or_default());
        }
        let values = arg.get_value_names().unwrap_or_default().join(" ");
        let name = match values.as_str() {
            "BOOL" => format!("`--{name}`"),
            values => format!("`--{name} {values}`"),
        };
        let default = match arg.get_default_values() {
            [text] if !text.is_empty() => format!("`{}`", text.to_string_lossy()),
            _ => String::new(),
        };
        let [name, help] = [name, help(arg)].map(|text| text.replace('|', "\\|"));
        out += &format!("| {name} | {default} | {help} |\n");
    }
    out
}

/// Returns the JSON schema of the file: that of `S`, with the defaults that clap has.
pub(crate) fn schema<S: Flags>() -> String {
    let text = settings::schema::<S>();
    let mut schema: Value = serde_json::from_str(&text).unwrap_or_default();
    let (defaults, command) = (defaults::<S>(), command::<S>());
    for (key, default) in defaults {
        let property = &mut schema["properties"][&key];
        property["default"] = default;
        let hidden = command.get_arguments().filter(|arg| arg.is_hide_set());
        if hidden
            .filter_map(clap::Arg::get_long)
            .any(|flag| flag == key)
        {
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
