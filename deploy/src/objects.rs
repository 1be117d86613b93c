//! Kubernetes objects as `kubectl kustomize` prints them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;
use testkit::command;

/// Objects in the order of their file.
#[derive(Clone, Debug, Default)]
pub struct Objects(Vec<Value>);

impl Objects {
    /// Builds the kustomization in `directory`, relative to [`root`].
    pub fn build(directory: &str) -> Result<Self> {
        let directory = root().join(directory);
        let mut kubectl = Command::new(command::require("kubectl")?);
        let text = command::run(kubectl.arg("kustomize").arg(&directory))?;
        Self::parse(&text, &directory)
    }

    /// Reads the objects of a file, relative to [`root`].
    pub fn read(file: &str) -> Result<Self> {
        let path = root().join(file);
        let text = std::fs::read_to_string(&path);
        Self::parse(&text.with_context(|| format!("reading {file}"))?, &path)
    }

    /// Reads documents of YAML, with `---` between them; `origin` is what errors call them.
    pub fn parse(text: &str, origin: &Path) -> Result<Self> {
        let mut documents = vec![String::new()];
        for line in text.lines() {
            match documents.last_mut() {
                Some(document) if line != "---" => document.extend([line, "\n"]),
                _ => documents.push(String::new()),
            }
        }
        let written = documents.iter().filter(|text| !text.trim().is_empty());
        let parsed = written.map(|text| settings::yaml::from_str(text, origin));
        let all: Result<Vec<Value>, _> = parsed.collect();
        Ok(Self(all?))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.0.iter()
    }

    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    pub fn get(&self, kind: &str, name: &str) -> Result<&Value> {
        let all = self.of_kind(kind);
        let mut found = all.filter(|object| object["metadata"]["name"] == name);
        match (found.next(), found.next()) {
            (Some(object), None) => Ok(object),
            (None, _) => bail!("no {kind} {name}"),
            (Some(_), Some(_)) => bail!("several {kind} {name}"),
        }
    }

    pub fn files(&self, kind: &str, name: &str) -> Result<BTreeMap<String, String>> {
        let object = self.get(kind, name)?;
        let entries = |key: &str| object[key].as_object().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut files = BTreeMap::new();
        for (file, value) in entries("data") {
            let value = match kind {
                "Secret" => decoded(&text(value)),
                _ => Ok(text(value)),
            };
            let value = value.with_context(|| format!("{kind} {name}: {file}"))?;
            files.insert(file.clone(), value);
        }
        files.extend(entries("stringData").map(|(file, value)| (file.clone(), text(value))));
        Ok(files)
    }

    pub fn extend(&mut self, more: impl IntoIterator<Item = Value>) {
        self.0.extend(more);
    }
}

impl IntoIterator for Objects {
    type Item = Value;
    type IntoIter = std::vec::IntoIter<Value>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

fn decoded(text: &str) -> Result<String> {
    let bytes = BASE64_STANDARD.decode(text).map_err(anyhow::Error::msg)?;
    String::from_utf8(bytes).context("no text")
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every directory below [`root`] with a kustomization to apply, relative to it and sorted: one without
/// a namespace is only a base of others.
pub fn kustomizations() -> Result<Vec<String>> {
    let (mut waiting, mut found) = (vec![PathBuf::new()], Vec::new());
    while let Some(relative) = waiting.pop() {
        let directory = root().join(&relative);
        let entries = std::fs::read_dir(&directory);
        for entry in entries.with_context(|| format!("reading {}", directory.display()))? {
            let entry = entry.context("reading a directory")?;
            if entry.path().is_dir() {
                waiting.push(relative.join(entry.file_name()));
            } else if entry.file_name() == "kustomization.yaml" && is_applied(&entry.path())? {
                found.push(relative.display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_applied(file: &Path) -> Result<bool> {
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("reading {}", file.display()))?;
    let says = |key| text.lines().any(|line: &str| line.starts_with(key));
    Ok(says("namespace:") || says("bases:"))
}
