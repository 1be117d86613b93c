//! JSON schemas of configuration files, and the check that committed documents are up to date.

use std::path::Path;

use schemars::{JsonSchema, generate::SchemaSettings};

/// Returns the JSON schema (draft 2020-12) of what `T` reads: indented, keys in a fixed order, with
/// `$schema` and `title`, and a closing newline.
pub fn schema<T: JsonSchema>() -> String {
    let schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<T>();
    let mut value = schema.to_value();
    value.sort_all_objects();
    // The alternate form of a JSON value is the indented one.
    format!("{value:#}\n")
}

/// Checks that the document at `path` says `generated`. For tests that keep generated documents
/// committed; not for use in a running process.
///
/// With `UPDATE_DOCS=1` in the environment it writes the document instead.
///
/// # Panics
/// When the document is missing or says something else, with the first line that differs and how to
/// bring it up to date.
pub fn check_doc(path: &Path, generated: &str) {
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let Some(stale) = stale(path, &committed, generated) else {
        return;
    };
    if std::env::var_os("UPDATE_DOCS").is_some_and(|value| value == "1") {
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(path, generated));
        if let Err(error) = written {
            panic!("writing {}: {error}", path.display());
        }
        return;
    }
    panic!("{stale}");
}

/// Tells how what is `committed` at `path` differs from what it should be; `None` when it does not.
fn stale(path: &Path, committed: &str, generated: &str) -> Option<String> {
    if committed == generated {
        return None;
    }
    let (mut old, mut new) = (committed.lines(), generated.lines());
    let mut line = 1;
    let (is, should) = loop {
        match (old.next(), new.next()) {
            (Some(is), Some(should)) if is == should => line += 1,
            (is, should) => break (is, should),
        }
    };
    Some(format!(
        "{} is out of date at line {line}\n  is:     {}\n  should: {}\n\
         run the test again with UPDATE_DOCS=1 and commit the result",
        path.display(),
        is.unwrap_or("(the end)"),
        should.unwrap_or("(the end)"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TcpSettings;

    #[test]
    fn schema_orders_keys_and_refuses_unknown() {
        let text = schema::<TcpSettings>();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let draft = "https://json-schema.org/draft/2020-12/schema";
        assert_eq!(value["$schema"], draft);
        assert_eq!(value["title"], "TcpSettings");
        assert_eq!(value["additionalProperties"], false);
        assert_eq!(value["properties"]["keepalive"]["default"], "55s");
        assert!(text.starts_with("{\n") && text.ends_with("}\n"));
        assert_eq!(text, schema::<TcpSettings>());
        let keys = ["congestion", "keepalive", "notsentLowat", "userTimeout"];
        assert!(keys.map(|key| text.find(&format!("\"{key}\""))).is_sorted());
    }

    #[test]
    fn stale_document_is_named_with_its_line() {
        let stale = |old, new| stale("docs/a.json".as_ref(), old, new);
        let head = "docs/a.json is out of date at line";
        let tail = "run the test again with UPDATE_DOCS=1 and commit the result";
        for (old, new, wanted) in [
            (
                "{\n  \"a\": 1\n}\n",
                "{\n  \"a\": 2\n}\n",
                "2\n  is:       \"a\": 1\n  should:   \"a\": 2",
            ),
            ("x", "x\ny", "2\n  is:     (the end)\n  should: y"),
            ("", "{}\n", "1\n  is:     (the end)\n  should: {}"), // no document
        ] {
            assert_eq!(stale(old, new), Some(format!("{head} {wanted}\n{tail}")));
        }
        assert_eq!(stale("x", "x"), None);
    }
}
