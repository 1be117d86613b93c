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
    let Some(stale) = out_of_date(path, generated) else {
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

/// Tells how the document at `path` differs from what it should be; `None` when it does not.
fn out_of_date(path: &Path, generated: &str) -> Option<String> {
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    (committed != generated).then(|| stale(path, &committed, generated))
}

fn stale(path: &Path, committed: &str, generated: &str) -> String {
    let (mut old, mut new) = (committed.lines(), generated.lines());
    let mut line = 1;
    let (is, should) = loop {
        match (old.next(), new.next()) {
            (Some(is), Some(should)) if is == should => line += 1,
            (is, should) => break (is, should),
        }
    };
    let or_end = |line: Option<&str>| line.unwrap_or("(the end)").to_owned();
    format!(
        "{path} is out of date at line {line}\n  is:     {}\n  should: {}\nrun the test again with UPDATE_DOCS=1 and commit the result",
        or_end(is),
        or_end(should),
        path = path.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DrainSettings, TcpSettings};

    #[test]
    fn a_schema_has_its_frame_and_refuses_unknown_keys() {
        let text = schema::<DrainSettings>();

        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            value["$schema"],
            "https://json-schema.org/draft/2020-12/schema"
        );
        assert_eq!(value["title"], "DrainSettings");
        assert_eq!(value["additionalProperties"], false);
        assert_eq!(value["properties"]["delay"]["default"], "5s");
        assert!(text.starts_with("{\n") && text.ends_with("}\n"));
        assert_eq!(text, schema::<DrainSettings>());
    }

    #[test]
    fn keys_are_in_order() {
        let text = schema::<TcpSettings>();
        let places: Vec<_> = [
            "\"congestion\"",
            "\"keepalive\"",
            "\"notsentLowat\"",
            "\"userTimeout\"",
        ]
        .iter()
        .map(|key| text.find(key).unwrap())
        .collect();
        assert!(places.is_sorted());
    }

    #[test]
    fn a_stale_document_is_named_with_its_line() {
        let text = stale(
            "docs/a.json".as_ref(),
            "{\n  \"a\": 1\n}\n",
            "{\n  \"a\": 2\n}\n",
        );
        assert_eq!(
            text,
            "docs/a.json is out of date at line 2\n  is:       \"a\": 1\n  should:   \"a\": 2\nrun the test again with UPDATE_DOCS=1 and commit the result"
        );
        assert!(stale("a".as_ref(), "x", "x\ny").contains("line 2\n  is:     (the end)"));
    }

    #[test]
    fn a_missing_document_is_out_of_date() {
        let text = out_of_date("/nonexistent/a.json".as_ref(), "{}\n").unwrap();
        assert!(text.contains("is out of date at line 1"), "{text}");
    }
}
