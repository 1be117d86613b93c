//! Documents that are generated and committed: schemas of the files, tables of the flags.

use std::path::{Path, PathBuf};

use konnectivity::flags::{AgentFlags, ServerFlags};

fn document(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_schemas_of_both_files_are_up_to_date() {
    let server = settings::schema::<ServerFlags>();
    settings::check_doc(
        &document("../docs/schema/konnectivity-server.json"),
        &server,
    );
    let agent = settings::schema::<AgentFlags>();
    settings::check_doc(&document("../docs/schema/konnectivity-agent.json"), &agent);
}

#[test]
fn the_readme_lists_the_flags_there_are() {
    let path = document("README.md");
    let mut readme = std::fs::read_to_string(&path).unwrap();
    for (program, table) in [
        ("konnectivity-server", ServerFlags::table()),
        ("konnectivity-agent", AgentFlags::table()),
    ] {
        let begin = format!("<!-- flags of {program} -->\n");
        let start = readme.find(&begin).unwrap() + begin.len();
        let length = readme[start..].find("<!-- end -->").unwrap();
        readme.replace_range(start..start + length, &table);
    }
    settings::check_doc(&path, &readme);
}

#[test]
fn the_readme_names_exit_codes() {
    let readme = std::fs::read_to_string(document("README.md")).unwrap();
    for code in ["| 0 |", "| 64 |", "| 1 |"] {
        assert!(readme.contains(code), "{code}");
    }
}
