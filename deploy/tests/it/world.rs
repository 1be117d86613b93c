//! Pods of the manifests, started where they would be, and what of their rights can be seen from outside.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use deploy::{Account, Container, Objects, Pod, Rights, Sandbox, probe_command};
use testkit::command;
use testkit::http::{self, Target};
use testkit::metrics::Metrics;
use testkit::netns::{Namespace, Place};
use testkit::process::{ChildGuard, listens};

use crate::api::LIMIT;

/// Who resolves what in a pod, and where pods keep their files.
pub(crate) struct World {
    pub(crate) directory: PathBuf,
    pub(crate) hosts: String,
    /// Containers by the names of workload and container.
    pub(crate) started: BTreeSet<String>,
    running: Vec<ChildGuard>,
}

impl World {
    pub(crate) fn new(directory: PathBuf, hosts: String) -> Self {
        Self {
            directory,
            hosts,
            started: BTreeSet::new(),
            running: Vec::new(),
        }
    }

    /// Runs what begins a pod, starts its one container, and waits until the manifest's own probe says
    /// that it is ready.
    pub(crate) fn start(
        &mut self,
        at: &Namespace,
        pod: (&str, &str, &str),
        objects: &Objects,
        account: Option<Account>,
    ) {
        let begun = self.begin_with(at, pod, objects, account);
        self.finish(begun);
    }

    /// As [`World::start`], and waits for nothing.
    pub(crate) fn begin<'n>(
        &mut self,
        at: &'n Namespace,
        pod: (&str, &str, &str),
        objects: &Objects,
    ) -> Begun<'n> {
        self.begin_with(at, pod, objects, None)
    }

    /// As [`World::begin`], with an account for pods that have a token of it.
    pub(crate) fn begin_with<'n>(
        &mut self,
        at: &'n Namespace,
        (kind, workload, name): (&str, &str, &str),
        objects: &Objects,
        account: Option<Account>,
    ) -> Begun<'n> {
        let pod = Pod::of(objects, kind, workload, name).unwrap();
        let sandbox = Sandbox {
            place: Place::In(at),
            directory: self.directory.clone(),
            hosts: self.hosts.clone(),
            account,
        };
        let containers: Vec<Container<'_>> = pod.containers().collect();
        let (main, first) = containers.split_last().unwrap();
        for container in first {
            let done = sandbox.run(*container, objects);
            done.unwrap_or_else(|error| panic!("{name}: {error:#}"));
            self.started
                .insert(format!("{workload}/{}", container.name()));
        }
        let child = sandbox.start(*main, objects);
        let child = child.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        self.started.insert(format!("{workload}/{}", main.name()));
        Begun { at, pod, child }
    }

    /// Returns the directory that is the file system of every pod's host.
    pub(crate) fn host(&self) -> PathBuf {
        self.directory.join("host")
    }

    /// Returns what all containers wrote.
    pub(crate) fn logs(&self) -> String {
        let files = fs::read_dir(&self.directory).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let logs = paths.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
        logs.map(|log| format!("{}:\n{}", log.display(), fs::read_to_string(&log).unwrap()))
            .collect()
    }

    /// Notes that what was started is an overlay's.
    pub(crate) fn of_overlay(&mut self, overlay: &str, name: &str) {
        assert!(self.started.remove(name), "{name}");
        self.started.insert(format!("{overlay}: {name}"));
    }

    /// Ends a pod without a word.
    pub(crate) fn kill(&mut self, name: &str) {
        let place = self.running.iter().position(|own| own.name() == name);
        self.running.remove(place.unwrap()).kill().unwrap();
    }

    /// Ends a pod as a kubelet does.
    pub(crate) fn stop(&mut self, name: &str) {
        let place = self.running.iter().position(|own| own.name() == name);
        let child = self.running.remove(place.unwrap());
        assert!(child.stop(LIMIT).unwrap().success(), "{name}");
    }

    /// Waits until a pod is ready, and looks at what it has.
    pub(crate) fn finish(&mut self, mut begun: Begun<'_>) {
        for child in &mut self.running {
            let ended = child.exit_status().unwrap();
            assert!(
                ended.is_none(),
                "{}: {ended:?}\n{}",
                child.name(),
                child.log_tail(10)
            );
        }
        let main = begun.pod.containers().last().unwrap();
        wait_ready(begun.at, main, &mut begun.child);
        self.running.push(begun.child);
    }
}

/// A pod that was started.
pub(crate) struct Begun<'n> {
    pub(crate) at: &'n Namespace,
    pub(crate) pod: Pod,
    pub(crate) child: ChildGuard,
}

/// Waits until a container is ready and listens where it says, then looks at its rights.
pub(crate) fn wait_ready(at: &Namespace, container: Container<'_>, child: &mut ChildGuard) {
    let name = container.name();
    let probe = container
        .probe("readinessProbe")
        .or_else(|| container.probe("livenessProbe"));
    let probe = probe.unwrap();
    let pid = child.pid();
    let ready = child.wait_ready(LIMIT, || {
        has_started(container, pid) && ask(at, probe.port, &probe.path).is_some()
    });
    ready.unwrap_or_else(|error| panic!("{name}: {error:#}"));
    for port in container
        .ports()
        .iter()
        .filter(|port| port.protocol == "TCP")
    {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.number));
        assert!(
            listens(child.pid(), address),
            "{name}: no listener at {port:?}"
        );
    }
    rights(child, name, &container.rights().unwrap());
}

/// Tells whether the startup probe of a container says so, in so far as that runs something in it.
pub(crate) fn has_started(container: Container<'_>, pid: u32) -> bool {
    let asked = probe_command(container, "startupProbe", pid).unwrap();
    asked.is_none_or(|mut asked| command::output(&mut asked).unwrap().status.success())
}

/// Asks a pod for a path, from within; nothing unless it answers 200.
pub(crate) fn ask(at: &Namespace, port: u16, path: &str) -> Option<String> {
    let target = Target::plain((Ipv4Addr::LOCALHOST, port).into()).timeout(Duration::from_secs(2));
    let answer = at.run(|| http::get(&target, path)).unwrap().ok()?;
    (answer.status == 200).then(|| answer.text())
}

/// Returns a metric of a pod, summed over all series with these labels.
pub(crate) fn metric(at: &Namespace, port: u16, name: &str, labels: &[(&str, &str)]) -> f64 {
    let text = ask(at, port, "/metrics").unwrap_or_default();
    let metrics = Metrics::parse(&text).unwrap();
    metrics.value(name, labels).unwrap_or_default()
}

/// Compares what a process has with what the manifest gives it.
fn rights(child: &ChildGuard, name: &str, wanted: &Rights) {
    let status = fs::read_to_string(format!("/proc/{}/status", child.pid())).unwrap();
    let field = |field: &str| {
        let line = status.lines().find(|line| line.starts_with(field));
        line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    let mask = |field_name: &str| u64::from_str_radix(&field(field_name), 16).unwrap();
    let bits = wanted.capabilities.iter().map(|own| 1 << number(own));
    let bits: u64 = bits.sum();
    assert_eq!((mask("CapEff"), mask("CapPrm")), (bits, bits), "{name}");
    assert_eq!(mask("CapBnd"), bits, "{name}");
    assert_eq!(
        field("NoNewPrivs"),
        u8::from(wanted.no_new_privileges).to_string(),
        "{name}"
    );
    if field("Uid") != wanted.uid.to_string() {
        // In a user namespace of an unprivileged user there is only root.
        eprintln!(
            "{name}: not tried as user {}, which does not exist here",
            wanted.uid
        );
        assert!(!is_real_root());
    }
    let written = fs::write(format!("/proc/{}/root/written", child.pid()), "");
    let kind = written.err().map(|error| error.kind());
    assert_eq!(
        kind == Some(ErrorKind::ReadOnlyFilesystem),
        wanted.read_only,
        "{name}: {kind:?}"
    );
}

/// Tells whether every user exists.
fn is_real_root() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap();
    map.split_whitespace().nth(2) == Some("4294967295")
}

/// `linux/capability.h`.
fn number(capability: &str) -> u64 {
    match capability {
        "NET_ADMIN" => 12,
        "NET_BIND_SERVICE" => 10,
        other => panic!("no manifest of ours has {other}"),
    }
}
