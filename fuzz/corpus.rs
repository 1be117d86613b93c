//! The committed corpora, for tests that replay them on the stable toolchain: part of such a test by `#[path]`.
//! Looks for nothing new.

use std::path::Path;

/// Returns name and bytes of each file of a target's corpus, sorted, and prints the name when it is taken: what
/// a test prints is shown when it fails.
///
/// # Panics
/// There are five or fewer, or one cannot be read.
#[allow(
    clippy::print_stdout,
    reason = "not each crate that this is part of has the lint"
)]
pub(crate) fn files(target: &str) -> impl Iterator<Item = (String, Vec<u8>)> {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let corpora = folders.find_map(|folder| {
        let corpora = folder.join("fuzz/corpora");
        corpora.is_dir().then_some(corpora)
    });
    let corpus = corpora.expect("no fuzz/corpora").join(target);
    let files = std::fs::read_dir(&corpus);
    let files = files.unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut names: Vec<String> = files
        .map(|entry| {
            entry
                .expect("a file")
                .file_name()
                .into_string()
                .expect("UTF-8")
        })
        .collect();
    names.sort();
    assert!(names.len() > 5, "{target} has {} files", names.len());
    names.into_iter().map(move |name| {
        let input = std::fs::read(corpus.join(&name));
        let input = input.unwrap_or_else(|error| panic!("{name}: {error}"));
        println!("{name}: {} bytes", input.len());
        (name, input)
    })
}
