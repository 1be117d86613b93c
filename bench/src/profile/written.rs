//! Profiles as they are written: files of YAML, one of which may extend another.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::{Apply, Case, FileTemplate, Listener, Profile, Program};

macro_rules! embedded {
    ($($name:literal),*) => {
        &[$(($name, include_str!(concat!("../../profiles/", $name, ".yaml")))),*]
    };
}

/// The profiles that come with this program: file name and text.
pub(super) const EMBEDDED: &[(&str, &str)] = embedded![
    "direct",
    "copy-loop",
    "rhizome",
    "rhizome-copy",
    "rhizome-2",
    "rhizome-yaml",
    "envoy",
    "envoy-32k",
    "haproxy",
    "haproxy-splice",
    "haproxy-map",
    "nginx",
    "sniproxy"
];

/// A profile's file. What is not given comes from the one it extends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    extends: Option<String>,
    about: Option<String>,
    program: Option<Program>,
    version: Option<Vec<String>>,
    files: Option<Vec<FileTemplate>>,
    args: Option<Vec<String>>,
    ports: Option<Vec<String>>,
    #[serde(default)]
    values: BTreeMap<String, String>,
    listeners: Option<Vec<Listener>>,
    cases: Option<Vec<Case>>,
    apply: Option<Apply>,
    workers: Option<usize>,
    standard: Option<bool>,
}

/// Returns the profiles that come with this program, in the order in which they are measured.
pub(crate) fn embedded() -> Result<Vec<Profile>> {
    EMBEDDED
        .iter()
        .map(|(name, text)| {
            read(text, Path::new(name)).with_context(|| format!("reading the profile {name}"))
        })
        .collect()
}

/// Reads a user's profile, which may extend one of ours.
pub(crate) fn load(path: &Path) -> Result<Profile> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading the profile {}", path.display()))?;
    read(&text, path)
}

/// Reads a profile's text; `origin` is the name that errors give it.
pub(crate) fn read(text: &str, origin: &Path) -> Result<Profile> {
    let mut written: Written = settings::yaml::from_str(text, origin)?;
    if let Some(base) = written.extends.take() {
        let found = EMBEDDED.iter().find(|(name, _)| *name == base);
        let Some((name, text)) = found else {
            let name = &written.name;
            bail!("{name}: extends {base}, which is none of ours");
        };
        let base: Written = settings::yaml::from_str(text, Path::new(name))?;
        ensure!(
            base.extends.is_none(),
            "{}: extends {name}, which extends another itself",
            written.name
        );
        written = written.over(base);
    }
    written.finish()
}

impl Written {
    fn over(self, base: Self) -> Self {
        let mut values = base.values;
        values.extend(self.values);
        Self {
            name: self.name,
            extends: None,
            about: self.about.or(base.about),
            program: self.program.or(base.program),
            version: self.version.or(base.version),
            files: self.files.or(base.files),
            args: self.args.or(base.args),
            ports: self.ports.or(base.ports),
            values,
            listeners: self.listeners.or(base.listeners),
            cases: self.cases.or(base.cases),
            apply: self.apply.or(base.apply),
            workers: self.workers.or(base.workers),
            standard: self.standard.or(base.standard),
        }
    }

    fn finish(self) -> Result<Profile> {
        let name = self.name;
        ensure!(!name.is_empty(), "a profile without a name");
        if let Some(apply) = &self.apply {
            let files = self.files.as_deref().unwrap_or_default();
            for path in &apply.write {
                ensure!(
                    files.iter().any(|file| file.path == *path),
                    "{name}: apply.write: {path} is none of the files"
                );
            }
            ensure!(
                apply.socket.is_some() == apply.send.is_some(),
                "{name}: apply.socket and apply.send go together"
            );
        }
        Ok(Profile {
            about: self.about.unwrap_or_default(),
            listeners: self.listeners.unwrap_or_else(|| vec![Listener::Sni]),
            cases: self.cases.unwrap_or_else(|| ALL.to_vec()),
            standard: self.standard.unwrap_or(true),
            program: self.program,
            version: self.version.unwrap_or_default(),
            files: self.files.unwrap_or_default(),
            args: self.args.unwrap_or_default(),
            ports: self.ports.unwrap_or_default(),
            values: self.values,
            workers: self.workers.unwrap_or(1),
            apply: self.apply,
            running: None,
            name,
        })
    }
}

const ALL: [Case; 5] = [Case::Bulk, Case::Conns, Case::Idle, Case::Routes, Case::Rtt];
