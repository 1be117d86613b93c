//! What is in each program, as a CycloneDX list (1.5, JSON), made by `cargo-cyclonedx`.
//!
//! A list names every crate that cargo resolves for the program's package on this machine's target,
//! procedural macros included, with version, license and checksum. Neither the standard library nor
//! the C library is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::command;

use super::Image;
use crate::console::Console;
use crate::tools;
use crate::workspace;

/// Lists of the programs of the workspace, where the tool leaves them: beside the manifests.
pub(super) struct Lists(Vec<PathBuf>);

impl Lists {
    /// Has the lists of all programs of the workspace made, which takes some seconds.
    pub(super) fn make(console: &Console) -> Result<Self> {
        let mut tool = tools::CYCLONEDX.command(console)?;
        tool.args(["--format=json", "--spec-version=1.5", "--describe=binaries"]);
        tool.args(["--no-build-deps", "--target", &workspace::host()?]);
        // The same program has the same list.
        command::run(tool.env("SOURCE_DATE_EPOCH", "0"))?;
        let mut metadata = workspace::cargo();
        metadata.args(["metadata", "--no-deps", "--format-version=1"]);
        let metadata: Value = serde_json::from_str(&command::run(&mut metadata)?)?;
        let packages = metadata["packages"].as_array().context("no packages")?;
        let mut found = Vec::new();
        for package in packages {
            let manifest = package["manifest_path"].as_str().context("no manifest")?;
            let dir = Path::new(manifest).parent().context("no directory")?;
            let files = fs::read_dir(dir).context("listing a package")?.flatten();
            let files = files.map(|file| file.path());
            found.extend(files.filter(|file| file.to_string_lossy().ends_with(SUFFIX)));
        }
        Ok(Self(found))
    }

    /// Writes the list of `program` to `path`, with the program's checksum and without the place of
    /// the workspace on this machine; returns how many components it names.
    pub(super) fn write(&self, image: &Image, program: &Path, path: &Path) -> Result<usize> {
        let file = format!("{}{SUFFIX}", image.name);
        let list = self.0.iter().find(|list| list.ends_with(&file));
        let list = list.with_context(|| format!("no list {file}"))?;
        let text = fs::read_to_string(list)?;
        let text = text.replace(&format!("{}/", workspace::root().display()), "");
        let mut list: Value = serde_json::from_str(&text)?;
        let sum = command::run(Command::new("sha256sum").arg(program))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        list["metadata"]["component"]["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        fs::write(path, format!("{list:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(list["components"].as_array().map_or(0, Vec::len))
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        for list in &self.0 {
            let _ = fs::remove_file(list);
        }
    }
}

const SUFFIX: &str = "_bin.cdx.json";

#[cfg(test)]
mod tests {
    use super::super::IMAGES;
    use super::*;

    #[test]
    fn list_names_what_a_program_links() {
        let lists = Lists::make(&Console::new()).unwrap();
        let dir = testkit::tempdir::TempDir::new("sbom").unwrap();
        let program = std::env::current_exe().unwrap();
        let listed = |name: &str| {
            let image = IMAGES.iter().find(|image| image.name == name).unwrap();
            let path = dir.path().join("list.json");
            assert!(lists.write(image, &program, &path).unwrap() > 50);
            let text = fs::read_to_string(path).unwrap();
            assert!(!text.contains(&workspace::root().display().to_string()));
            let list: Value = serde_json::from_str(&text).unwrap();
            let components = list["components"].as_array().unwrap();
            let names = components.iter().map(|one| one["name"].as_str().unwrap());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        let gateway = listed("sni-proxy");
        assert!(has(&gateway, "tokio") && !has(&gateway, "kube"));
        let controller = listed("netpol-controller");
        assert!(has(&controller, "kube") && !has(&controller, "testkit"));
        assert!(!has(&controller, "proptest"));
    }
}
