//! Pods that follow each other as Deployments, StatefulSets and DaemonSets have it, with what the manifest
//! says of surge, probes and the time to end.
//!
//! ```text
//!   roll ─▶ start ─▶ ready, by its probe ─▶ SIGTERM to an old one ─▶ unready ─▶ out of Services ─▶ its end
//!           look_after(), a thread of its own: every pod's probe when it is due, and Services led anew
//! ```
//!
//! No step that rolls pods or waits for their end holds up their probes: a pod that drains accepts connections
//! for some seconds only, in which it has to be out of its Services. Until all have started, who starts them
//! looks after them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use deploy::Pod;
use testkit::netns::Namespace;
use testkit::process::{ChildGuard, Signal};
use testkit::wait::{self, Deadline};

use crate::api::{Api, LIMIT};
use crate::network::Network;
use crate::roll::pods::{End, Running, Workload, name};
use crate::roll::services::{Known, Service};
use crate::world::{World, ask, has_started, wait_ready};

/// All pods, and who is led to them.
pub(crate) struct Fleet<'n> {
    network: &'n Network,
    api: &'n Api<'n>,
    workloads: Vec<Workload>,
    /// Of the shoot, and of the other one.
    worlds: Mutex<[World; 2]>,
    now: Mutex<Now<'n>>,
}

/// How it is at the moment.
struct Now<'n> {
    services: Vec<Service<'n>>,
    pods: Vec<Running>,
    /// Where a pod was last that another one follows.
    left: Option<&'static str>,
    /// The last words of pods that are over.
    ended: Vec<String>,
}

impl<'n> Fleet<'n> {
    pub(crate) fn new(
        network: &'n Network,
        api: &'n Api<'n>,
        worlds: [World; 2],
        workloads: Vec<Workload>,
        services: Vec<Service<'n>>,
    ) -> Self {
        let fleet = Self {
            network,
            api,
            workloads,
            worlds: Mutex::new(worlds),
            now: Mutex::new(Now {
                services,
                pods: Vec::new(),
                left: None,
                ended: Vec::new(),
            }),
        };
        fleet.lead(&mut fleet.now());
        fleet
    }

    /// What another thread was amidst when it panicked is nothing to go on with.
    fn now(&self) -> MutexGuard<'_, Now<'n>> {
        self.now.lock().expect("who looks after the pods goes on")
    }

    /// Starts the pods of workloads, and waits until all are ready.
    pub(crate) fn start(&self, keys: &[&str]) {
        for key in keys {
            let workload = self.index(key);
            for _ in 0..self.workloads[workload].replicas {
                self.begin(workload, false);
            }
        }
        let ready = wait::until("pods to be ready", LIMIT, || {
            self.look();
            self.now().pods.iter().all(Running::is_ready)
        });
        ready.unwrap_or_else(|error| panic!("{error:#}\n{}", self.troubles()));
        for pod in &mut self.now().pods {
            let at = self.network.at(pod.place);
            wait_ready(at, pod.pod.containers().last().unwrap(), &mut pod.child);
        }
    }

    fn index(&self, key: &str) -> usize {
        let place = self.workloads.iter().position(|own| own.key == key);
        place.unwrap_or_else(|| panic!("no {key}"))
    }

    /// Starts a pod at the next free place. One of a StatefulSet follows another, elsewhere if
    /// it can; one of a DaemonSet is where an old one may still be.
    fn begin(&self, workload: usize, new: bool) {
        let own = &self.workloads[workload];
        let (place, name) = self.free(workload, new);
        let mut worlds = self.worlds.lock().unwrap();
        let world = &mut worlds[usize::from(own.other)];
        let _ = std::fs::remove_dir_all(world.directory.join(&name));
        let begun = world.begin_with(
            self.network.at(place),
            (own.kind, own.name, &name),
            &own.objects,
            own.account.clone(),
        );
        let now = &mut *self.now();
        now.pods.push(Running {
            workload,
            place,
            pod: begun.pod,
            child: begun.child,
            started: false,
            failed: u64::MAX,
            due: Deadline::after(Duration::ZERO),
            new,
            end: End::Not,
        });
        self.lead(now);
    }

    /// Returns where the next pod of a workload comes to be, and what it is called.
    fn free(&self, workload: usize, new: bool) -> (&'static str, String) {
        let own = &self.workloads[workload];
        let now = self.now();
        let beside = |pod: &Running| own.kind == "DaemonSet" && pod.new != new;
        let taken = |place: &str| {
            let mut there = now.pods.iter();
            there.any(|pod| pod.place == place && !beside(pod))
        };
        let named = |place: &'static str| {
            let mut all = now.pods.iter().filter(|pod| pod.workload == workload);
            own.kind == "StatefulSet" && all.any(|pod| name(pod.place) == name(place))
        };
        let free = own.places.iter().copied();
        let free = free.filter(|place| !taken(place) && !named(place));
        let mut free: Vec<&'static str> = free.collect();
        // Those that were used come last.
        free.sort_by_key(|place| now.left == Some(*place));
        let place = free[0];
        let called = |name: &String| {
            let mut own = now.pods.iter().filter(|pod| pod.workload == workload);
            own.any(|pod| pod.pod.name == *name)
        };
        let base = match own.kind {
            "StatefulSet" => name(place),
            _ => place,
        };
        let base = base.trim_start_matches("other-");
        // Two pods of a DaemonSet at one place have different names.
        let mut names = ["", "-b"].map(|end| format!("{base}{end}")).into_iter();
        let name = names.find(|name| !called(name)).unwrap();
        (place, name)
    }

    /// Looks after all pods until `over`.
    pub(crate) fn look_after(&self, over: impl Fn() -> bool) {
        while !over() {
            self.look();
            wait::pause(LOOK);
        }
    }

    /// Probes whom it is time to probe, all at once, and leads Services to who is there.
    fn look(&self) {
        let due = self.now().due();
        thread::scope(|scope| {
            for due in &due {
                scope.spawn(|| self.heard(due, due.ask(self.network.at(due.place))));
            }
        });
        self.lead(&mut self.now());
    }

    /// Notes whether a pod has started and whether its probe was answered.
    fn heard(&self, due: &Due, (started, answered): (bool, bool)) {
        let now = &mut *self.now();
        let pod = now.pods.iter_mut().find(|pod| pod.child.pid() == due.pid);
        // It may be over by now.
        let Some(pod) = pod else { return };
        pod.started = started;
        pod.failed = if answered {
            0
        } else {
            pod.failed.saturating_add(1)
        };
        let period = pod.probe()["periodSeconds"].as_u64().unwrap_or(10);
        pod.due = Deadline::after(match pod.failed {
            u64::MAX => SOON,
            // It was told to end meanwhile.
            0 if pod.is_ending() && !due.ending => Duration::ZERO,
            _ => Duration::from_secs(period),
        });
        self.lead(now);
    }

    fn lead(&self, now: &mut Now<'n>) {
        for service in &mut now.services {
            let all = now.pods.iter().filter(|pod| {
                let name = service.pod.is_none_or(|name| pod.pod.name == name);
                self.workloads[pod.workload].key == service.workload && name && !pod.is_over()
            });
            let chosen = all.filter(|pod| match service.known {
                Known::Balancer(_) => pod.is_ready(),
                Known::Clients(..) | Known::Gateway => service.unready || pod.serves(),
            });
            let pods = chosen.map(|pod| Network::ip(pod.place)).collect();
            service.lead_to(pods, self.api);
        }
    }

    /// Tells of pods that are not ready.
    fn troubles(&self) -> String {
        let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let states = now.pods.iter().filter(|pod| !pod.is_ready());
        let states = states.map(|pod| format!("{}\n", pod.last_words()));
        states.collect()
    }

    /// Puts a new pod into the place of each old one of these workloads, before the eyes of `seen`.
    pub(crate) fn roll(&self, keys: &[&'static str], seen: &mut impl Seen) {
        for pod in &mut self.now().pods {
            pod.new = false;
        }
        let all = wait::until("new pods", LONGEST, || {
            let mut over = true;
            for key in keys {
                let workload = self.index(key);
                self.see_off(workload, seen);
                over &= self.step(workload);
            }
            over
        });
        all.unwrap_or_else(|error| panic!("{keys:?}: {error:#}\n{}", self.troubles()));
    }

    /// Does what the workload's controller would do now; tells whether nothing is left to do.
    fn step(&self, workload: usize) -> bool {
        let mut now = self.now();
        let (surge, unavailable) = self.workloads[workload].rollout();
        let replicas = self.workloads[workload].replicas;
        // Where a pod has a name of its own, or a node where there is to be but one, the next one waits for
        // its end.
        let own = now.pods.iter().enumerate();
        let own = own.filter(|(_, pod)| pod.workload == workload);
        let (ending, own): (Vec<_>, Vec<_>) = own.partition(|(_, pod)| pod.is_ending());
        let waits = self.workloads[workload].kind != "Deployment" && surge == 0;
        let waits = waits && !ending.is_empty();
        let (new, old): (Vec<_>, Vec<_>) = own.iter().partition(|(_, pod)| pod.new);
        let ready = own.iter().filter(|(_, pod)| pod.is_ready()).count();
        if old.is_empty() && new.len() == replicas && ready == replicas {
            return ending.is_empty();
        }
        if own.len() < replicas + surge && new.len() < replicas && !waits {
            drop(now);
            self.begin(workload, true);
        } else if ready + unavailable > replicas && !waits {
            // The last of a StatefulSet is the first to go.
            let going = match self.workloads[workload].kind {
                "StatefulSet" => old.last(),
                _ => old.first(),
            };
            if let Some((index, _)) = going.copied() {
                now.pods[index].terminate();
            }
        }
        false
    }

    /// Accompanies pods that were told to end.
    fn see_off(&self, workload: usize, seen: &mut impl Seen) {
        let key = self.workloads[workload].key;
        // The lock is not held while a program takes its time.
        let out = self.now().out_of_services(workload, key);
        for pid in out {
            let leave = seen.may_end(key, pid);
            let now = &mut *self.now();
            let mut told = now.pods.iter_mut();
            let pod = told.find(|pod| pod.child.pid() == pid).unwrap();
            match (leave, pod.end) {
                (Leave::Wait, _) | (_, End::Not | End::Free(_) | End::Over) => {}
                (Leave::Free, End::Told(end)) => pod.end = End::Free(end),
                (Leave::AtOnce, End::Told(end)) => {
                    pod.child.signal(Signal::TERM).unwrap();
                    pod.end = End::Free(end);
                }
            }
        }
        let over = self.now().take_over(workload);
        for pod in over {
            seen.ended(key, &pod.child);
        }
        self.lead(&mut self.now());
    }

    /// Returns where the pods of a workload are.
    pub(crate) fn places(&self, key: &str) -> Vec<&'static str> {
        let workload = self.index(key);
        let now = self.now();
        let own = now.pods.iter().filter(|pod| pod.workload == workload);
        own.map(|pod| pod.place).collect()
    }

    /// Ends all pods without a word.
    pub(crate) fn kill(&self) {
        for pod in &mut self.now().pods {
            pod.child.kill().unwrap();
        }
    }
}

/// What failed is seen in the logs of all pods.
impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
            for said in &now.ended {
                eprintln!("ended, {said}");
            }
            for pod in &now.pods {
                eprintln!("{}", pod.last_words());
            }
        }
    }
}

impl Now<'_> {
    /// Notes who has ended, and returns whom it is time to probe.
    fn due(&mut self) -> Vec<Due> {
        for pod in &mut self.pods {
            if let Some(status) = pod.child.exit_status().unwrap() {
                let log = pod.child.log_tail(10);
                assert!(pod.is_ending(), "{}: {status}\n{log}", pod.place);
                pod.end = End::Over;
            }
        }
        let due = self.pods.iter();
        let due = due.filter(|pod| !pod.is_over() && pod.due.passed());
        due.map(|pod| Due {
            pid: pod.child.pid(),
            place: pod.place,
            pod: pod.pod.clone(),
            started: pod.started,
            ending: pod.is_ending(),
        })
        .collect()
    }

    /// Returns the pods of a workload that were told to end and are in no Service any more.
    fn out_of_services(&self, workload: usize, key: &str) -> Vec<u32> {
        // Who stays ready while it drains is in no Service of ours.
        let mut led = self.services.iter().filter(|own| own.workload == key);
        let led = led.any(|own| !own.unready);
        let mut out = Vec::new();
        for pod in self.pods.iter().filter(|pod| pod.workload == workload) {
            match pod.end {
                End::Told(_) if !led || !pod.is_ready() => out.push(pod.child.pid()),
                End::Free(end) => assert!(
                    !end.passed(),
                    "{} outlives its grace:\n{}",
                    pod.place,
                    pod.child.log_tail(5)
                ),
                End::Not | End::Told(_) | End::Over => {}
            }
        }
        out
    }

    /// Takes the pods of a workload that are over.
    fn take_over(&mut self, workload: usize) -> Vec<Running> {
        let over = |pod: &mut Running| pod.workload == workload && pod.is_over();
        let over: Vec<Running> = self.pods.extract_if(.., over).collect();
        self.left = over.last().map_or(self.left, |pod| Some(pod.place));
        self.ended.extend(over.iter().map(Running::last_words));
        over
    }
}

/// A pod that is to be probed.
struct Due {
    pid: u32,
    place: &'static str,
    pod: Pod,
    started: bool,
    ending: bool,
}

impl Due {
    /// Tells whether it has started, and whether its probe is answered.
    fn ask(&self, at: &Namespace) -> (bool, bool) {
        let main = self.pod.containers().last().unwrap();
        let started = self.started || has_started(main, self.pid);
        let probe = main.probe("readinessProbe").unwrap();
        let answered = started && ask(at, probe.port, &probe.path).is_some();
        (started, answered)
    }
}

/// Who sees pods end.
pub(crate) trait Seen {
    /// Is asked again and again from when a pod that was told to end is in no Service any more, until it
    /// may end.
    fn may_end(&mut self, key: &str, pid: u32) -> Leave;

    /// Is told of its end.
    fn ended(&mut self, key: &str, child: &ChildGuard);
}

/// Whether a pod that drains may end.
pub(crate) enum Leave {
    /// Not yet.
    Wait,
    /// As soon as it likes.
    Free,
    /// Now: a second signal does what the end of `drain.timeout` would do in five minutes.
    AtOnce,
}

/// Between two looks at all pods.
const LOOK: Duration = Duration::from_millis(10);

/// Between two looks at a pod that has not been ready yet.
const SOON: Duration = Duration::from_millis(100);

/// A roll that takes longer hangs: a third of it is more than any grace of pods that are let go.
const LONGEST: Duration = Duration::from_secs(150);
