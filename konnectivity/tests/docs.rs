//! Documents that are generated and committed: schemas of the files, lists of the flags.

use std::path::{Path, PathBuf};

use konnectivity::flags;

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn schemas_are_up_to_date() {
    for (program, schema) in flags::schemas() {
        settings::check_doc(
            &document(&format!("../docs/schema/{program}.json")),
            &schema,
        );
    }
}

#[test]
fn readme_lists_all_flags() {
    let path = document("README.md");
    let mut readme = std::fs::read_to_string(&path).unwrap();
    for (program, list) in flags::lists() {
        let begin = format!("<!-- flags of {program} -->\n");
        let start = readme.find(&begin).unwrap() + begin.len();
        let length = readme[start..].find("<!-- end -->").unwrap();
        readme.replace_range(start..start + length, &list);
    }
    settings::check_doc(&path, &readme);
}

#[test]
fn readme_names_exit_codes() {
    let readme = std::fs::read_to_string(document("README.md")).unwrap();
    for code in ["| 0 |", "| 64 |", "| 1 |"] {
        assert!(readme.contains(code), "{code}");
    }
}
