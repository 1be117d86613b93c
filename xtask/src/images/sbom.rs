//! What is in a program, as a CycloneDX list (1.5, JSON): every crate that is linked into it, with
//! version, license and checksum, and the C library.
//!
//! ```text
//!     cargo tree, of what images are built of ─▶ edges ─┐
//!     cargo metadata ─▶ licenses, sources ──────────────┼─▶ NAME.cdx.json
//!     Cargo.lock ─▶ checksums ──────────────────────────┘
//! ```
//!
//! The tree is that of the target and the features that images are built with: no build scripts, no
//! macros, nothing of tests, and nothing that only another program of the workspace uses. Where it
//! says that a crate depends on another, the linker may have kept little of it, or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testkit::command;

use crate::workspace;

use super::Image;

/// A crate by name and version, as `name@version`.
type Id = String;

/// Everything that is linked into any image.
pub(super) struct Linked {
    edges: BTreeMap<Id, BTreeSet<Id>>,
    /// License and source, from the manifests.
    packages: BTreeMap<Id, Value>,
    checksums: BTreeMap<Id, String>,
    /// The C library and its version.
    libc: (String, String),
    compiler: String,
}

impl Linked {
    /// Asks cargo about the packages that images are built of.
    ///
    /// # Errors
    /// When cargo or the system does not answer.
    pub(super) fn read(packages: &[&str]) -> Result<Self> {
        let target = workspace::host()?;
        let mut tree = workspace::cargo();
        tree.args(["tree", "--locked", "--prefix=depth", "--format={p}"]);
        tree.args(["--edges=normal,no-proc-macro", "--target", &target]);
        for package in packages {
            tree.args(["--package", package]);
        }
        let edges = edges(&command::run(&mut tree)?)?;
        let mut metadata = workspace::cargo();
        metadata.args(["metadata", "--locked", "--format-version=1"]);
        metadata.args(["--filter-platform", &target]);
        let metadata: Value = serde_json::from_str(&command::run(&mut metadata)?)?;
        let packages = metadata["packages"].as_array().context("no packages")?;
        let packages = packages.iter().map(|one| {
            let text = |key: &str| one[key].as_str().unwrap_or_default();
            (format!("{}@{}", text("name"), text("version")), one.clone())
        });
        let lock = fs::read_to_string(workspace::root().join("Cargo.lock"))?;
        let mut getconf = Command::new("getconf");
        let libc = command::run(getconf.arg("GNU_LIBC_VERSION"))?;
        let libc = libc.trim().split_once(' ').context("no glibc")?;
        let mut rustc = Command::new("rustc");
        let compiler = command::run(rustc.current_dir(workspace::root()).arg("--version"))?;
        Ok(Self {
            edges,
            packages: packages.collect(),
            checksums: checksums(&lock),
            libc: (libc.0.to_owned(), libc.1.to_owned()),
            compiler: compiler.trim().to_owned(),
        })
    }

    /// Writes the list of `program` to `path`; returns how many components it names.
    ///
    /// # Errors
    /// When something about a crate is not known, or the file cannot be written.
    pub(super) fn write(&self, image: &Image, program: &Path, path: &Path) -> Result<usize> {
        let (name, version) = (image.name, env!("CARGO_PKG_VERSION"));
        let root = format!("{}@{version}", image.package);
        let all = self.below(&root, image.without);
        ensure!(all.len() > 1, "{root} depends on nothing");
        let mut hash = Command::new("sha256sum");
        let hash = command::run(hash.arg(program))?;
        let hash = hash.split_whitespace().next().unwrap_or_default();
        let crates = all.iter().filter(|id| **id != root);
        let mut components = crates
            .map(|id| self.component(id))
            .collect::<Result<Vec<_>>>()?;
        components.push(self.standard_library());
        components.push(self.c_library());
        let count = components.len();
        let edges = all.iter().map(|id| {
            let on = self.edges.get(id).into_iter().flatten();
            let on: Vec<_> = on.filter(|on| all.contains(*on)).collect();
            json!({ "ref": id, "dependsOn": on })
        });
        let list = json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
                "hashes": [{ "alg": "SHA-256", "content": hash }],
            } },
            "components": components,
            "dependencies": edges.collect::<Vec<_>>(),
        });
        fs::write(path, format!("{list:#}\n"))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(count)
    }

    /// Returns a crate and everything that it needs, but what only those of its own dependencies
    /// need that are named `without`.
    fn below(&self, root: &str, without: &[&str]) -> BTreeSet<Id> {
        let mut found = BTreeSet::from([root.to_owned()]);
        let direct = self.edges.get(root).into_iter().flatten();
        let name = |id: &Id| id.split('@').next().unwrap_or_default().to_owned();
        let direct = direct.filter(|id| !without.contains(&name(id).as_str()));
        let mut open: Vec<Id> = direct.cloned().collect();
        while let Some(id) = open.pop() {
            if found.insert(id.clone()) {
                open.extend(self.edges.get(&id).into_iter().flatten().cloned());
            }
        }
        found
    }

    fn component(&self, id: &str) -> Result<Value> {
        let package = self.packages.get(id);
        let package = package.with_context(|| format!("cargo metadata does not know {id}"))?;
        let (name, version) = id.split_once('@').context("a crate without a version")?;
        let mut component = json!({
            "type": "library", "bom-ref": id, "name": name, "version": version,
        });
        if let Some(license) = package["license"].as_str() {
            // As old manifests write it.
            let license = license.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": license }]);
        }
        // A crate of the workspace comes from nowhere else.
        if package["source"].is_string() {
            component["purl"] = json!(format!("pkg:cargo/{id}"));
            let sum = self.checksums.get(id);
            let sum = sum.with_context(|| format!("Cargo.lock has no checksum of {id}"))?;
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        Ok(component)
    }

    fn standard_library(&self) -> Value {
        let version = self.compiler.split(' ').nth(1).unwrap_or_default();
        json!({
            "type": "library", "bom-ref": "rust-std", "name": "rust-std", "version": version,
            "licenses": [{ "expression": "MIT OR Apache-2.0" }],
        })
    }

    fn c_library(&self) -> Value {
        let (name, version) = &self.libc;
        json!({
            "type": "library", "bom-ref": name, "name": name, "version": version,
            "licenses": [{ "expression": "LGPL-2.1-or-later" }],
        })
    }
}

/// Reads lines such as `2serde v1.0.228 (*)`: a depth, a crate, and remarks.
fn edges(tree: &str) -> Result<BTreeMap<Id, BTreeSet<Id>>> {
    let mut edges: BTreeMap<Id, BTreeSet<Id>> = BTreeMap::new();
    let mut path: Vec<Id> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let digits = line.chars().take_while(char::is_ascii_digit).count();
        let (depth, crate_) = line.split_at(digits);
        let depth: usize = depth.parse().with_context(|| format!("no depth: {line}"))?;
        let mut words = crate_.split(' ');
        let (name, version) = (words.next().unwrap_or_default(), words.next());
        let version = version.and_then(|version| version.strip_prefix('v'));
        let version = version.with_context(|| format!("no version: {line}"))?;
        let id = format!("{name}@{version}");
        path.truncate(depth);
        if let Some(above) = path.last() {
            edges.entry(above.clone()).or_default().insert(id.clone());
        }
        path.push(id.clone());
        edges.entry(id).or_default();
    }
    Ok(edges)
}

/// Reads the checksums of a lock file.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let value = |block: &str, key: &str| -> Option<String> {
        let start = format!("{key} = \"");
        let line = block.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(line.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]").filter_map(|block| {
        let (name, version) = (value(block, "name")?, value(block, "version")?);
        Some((format!("{name}@{version}"), value(block, "checksum")?))
    });
    blocks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0a v0.1.0 (/x/a)\n1b v1.0.0\n2c v2.0.0\n1c v2.0.0 (*)\n\n0d v0.1.0 (/x/d)\n1b v1.0.0 (*)\n";

    #[test]
    fn a_program_has_what_is_below_it_and_nothing_else() {
        let linked = Linked {
            edges: edges(TREE).unwrap(),
            packages: BTreeMap::new(),
            checksums: BTreeMap::new(),
            libc: Default::default(),
            compiler: String::new(),
        };
        let below = |root: &str| linked.below(root, &[]).into_iter().collect::<Vec<_>>();
        assert_eq!(below("a@0.1.0"), ["a@0.1.0", "b@1.0.0", "c@2.0.0"]);
        let without = linked.below("a@0.1.0", &["b"]);
        assert_eq!(
            without,
            BTreeSet::from(["a@0.1.0", "c@2.0.0"].map(str::to_owned))
        );
        // What was printed once is not printed again.
        assert_eq!(below("d@0.1.0"), ["b@1.0.0", "c@2.0.0", "d@0.1.0"]);
    }

    #[test]
    fn checksums_belong_to_one_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\n";
        let expected = BTreeMap::from([("a@1.0.0".to_owned(), "00".to_owned())]);
        assert_eq!(checksums(lock), expected);
    }

    #[test]
    fn the_gateway_links_tokio_and_no_client_of_kubernetes() {
        let linked = Linked::read(&["sni-proxy", "netpol-controller"]).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let has = |root: &str, name: &str| {
            let all = linked.below(&format!("{root}@{version}"), &[]);
            all.iter().any(|id| id.starts_with(&format!("{name}@")))
        };
        assert!(has("sni-proxy", "tokio") && !has("sni-proxy", "kube"));
        assert!(has("netpol-controller", "kube"));
        // Of tests, of build scripts and of macros.
        for absent in ["testkit", "syn", "proptest"] {
            assert!(!has("netpol-controller", absent), "{absent}");
        }
        for id in linked.below(&format!("netpol-controller@{version}"), &[]) {
            linked.component(&id).unwrap();
        }
    }
}
