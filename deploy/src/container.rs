//! A container: program, arguments, environment, rights, ports and probes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::objects::Objects;
use crate::pod::Pod;

#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    pub(crate) pod: &'a Pod,
    pub spec: &'a Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    pub uid: u64,
    pub gid: u64,
    /// Every privilege there is.
    pub privileged: bool,
    /// Capabilities, without `CAP_`, sorted.
    pub capabilities: Vec<String>,
    /// Whether no program can give it more.
    pub no_new_privileges: bool,
    /// Whether its root file system cannot be written.
    pub read_only: bool,
    /// The profile that restricts system calls.
    pub seccomp: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub number: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub port: u16,
    pub path: String,
}

impl<'a> Container<'a> {
    pub(crate) fn new(pod: &'a Pod, spec: &'a Value) -> Self {
        Self { pod, spec }
    }

    pub fn name(&self) -> &'a str {
        self.spec["name"].as_str().unwrap_or_default()
    }

    /// Returns the program in its image: the image is `rhizome/PROGRAM:TAG` and starts that.
    pub fn program(&self) -> Result<&'a str> {
        let image = self.spec["image"].as_str().unwrap_or_default();
        let name = image.strip_prefix("rhizome/");
        let name = name.and_then(|rest| rest.split_once(':'));
        let (program, _) = name.with_context(|| format!("{image} is no image of ours"))?;
        Ok(program)
    }

    /// Returns its environment, with what ConfigMaps among `objects` and the pod say.
    pub fn environment(&self, objects: &Objects) -> Result<BTreeMap<String, String>> {
        let mut all = BTreeMap::new();
        for source in list(&self.spec["envFrom"]) {
            let name = source["configMapRef"]["name"].as_str();
            let map = objects.get("ConfigMap", name.context("an envFrom of another kind")?)?;
            for (key, value) in map["data"].as_object().into_iter().flatten() {
                all.insert(key.clone(), value.as_str().unwrap_or_default().to_owned());
            }
        }
        for variable in list(&self.spec["env"]) {
            let name = variable["name"].as_str().context("a variable's name")?;
            all.insert(name.to_owned(), self.value(variable)?);
        }
        Ok(all)
    }

    fn value(&self, variable: &Value) -> Result<String> {
        if let Some(text) = variable["value"].as_str() {
            return Ok(text.to_owned());
        }
        let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
        match field {
            Some("metadata.name") => Ok(self.pod.name.clone()),
            Some("metadata.namespace") => Ok(self.pod.namespace.clone()),
            _ => bail!("the variable {variable} comes from where this does not look"),
        }
    }

    /// Returns its arguments with `$(NAME)` replaced, as the kubelet does.
    pub fn arguments(&self, objects: &Objects) -> Result<Vec<String>> {
        if !self.spec["command"].is_null() {
            bail!("{} has a command: the image knows its program", self.name());
        }
        let environment = self.environment(objects)?;
        let expand = |text: &str| {
            let mut text = text.to_owned();
            for (name, value) in &environment {
                text = text.replace(&format!("$({name})"), value);
            }
            text
        };
        let words = list(&self.spec["args"]).map(|word| word.as_str().unwrap_or_default());
        Ok(words.map(expand).collect())
    }

    /// Returns what it may do: its own security context, and the pod's where that says nothing.
    pub fn rights(&self) -> Result<Rights> {
        let own = &self.spec["securityContext"];
        let pods = &self.pod.spec["securityContext"];
        let either = |key: &str| {
            let inherits = own[key].is_null();
            if inherits { &pods[key] } else { &own[key] }
        };
        let privileged = own["privileged"] == true;
        let dropped = list(&own["capabilities"]["drop"]).any(|name| name == "ALL");
        if !dropped && !privileged {
            bail!("{} keeps the runtime's capabilities", self.name());
        }
        let added = list(&own["capabilities"]["add"]).filter_map(Value::as_str);
        let mut capabilities: Vec<String> = added.map(str::to_owned).collect();
        capabilities.sort();
        let uid = either("runAsUser").as_u64().context("runAsUser")?;
        if either("runAsNonRoot") == true && uid == 0 {
            bail!("{} shall not be root, and is", self.name());
        }
        let seccomp = either("seccompProfile")["type"].as_str();
        Ok(Rights {
            uid,
            gid: either("runAsGroup").as_u64().unwrap_or(0),
            privileged,
            capabilities,
            no_new_privileges: own["allowPrivilegeEscalation"] == false,
            read_only: own["readOnlyRootFilesystem"] == true,
            seccomp: seccomp.unwrap_or_default().to_owned(),
        })
    }

    pub fn ports(&self) -> Vec<Port> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let port = |port: &Value| Port {
            name: text(&port["name"]),
            number: number(&port["containerPort"]),
            protocol: text(&port["protocol"]),
        };
        list(&self.spec["ports"]).map(port).collect()
    }

    /// Returns the words behind the program's that one of its probes runs in the container, if that
    /// runs something.
    pub fn probe_arguments(&self, kind: &str) -> Result<Option<Vec<String>>> {
        let Some(command) = self.spec[kind]["exec"]["command"].as_array() else {
            return Ok(None);
        };
        let words = command.iter().map(|word| word.as_str().unwrap_or_default());
        let words: Vec<String> = words.map(str::to_owned).collect();
        match words.split_first() {
            Some((program, rest)) if *program == format!("/{}", self.program()?) => {
                Ok(Some(rest.to_vec()))
            }
            _ => bail!("{kind} of {}: the image has no {words:?}", self.name()),
        }
    }

    /// Returns one of its probes that ask by HTTP, `readinessProbe` or `livenessProbe`.
    pub fn probe(&self, kind: &str) -> Option<Probe> {
        let asked = self.spec[kind].get("httpGet")?;
        let named = |name: &str| {
            let own = self.ports().into_iter().find(|port| port.name == name);
            own.map(|port| port.number)
        };
        Some(Probe {
            port: match asked["port"].as_str() {
                Some(name) => named(name)?,
                None => number(&asked["port"]),
            },
            path: asked["path"].as_str()?.to_owned(),
        })
    }
}

/// Returns the elements of a list, none if there is none.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> u16 {
    let number = value.as_u64().and_then(|number| u16::try_from(number).ok());
    number.unwrap_or_default()
}
