//! Pods that follow each other as Deployments, StatefulSets and DaemonSets have it, with what the manifest
//! says of surge, probes and the time to end.
//!
//! ```text
//!   roll ─▶ start ─▶ ready, by its probe ─▶ SIGTERM to an old one ─▶ unready ─▶ out of Services ─▶ its end
//!                     look(): every pod's probe when it is due, and Services led anew
//! ```
//!
//! Whatever waits for pods here looks after all of them meanwhile. Who sees them off may take its time
//! as well: probes that are due are late by that, as those of a busy kubelet are.

use std::time::Duration;

use testkit::process::ChildGuard;
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
    /// Of the shoot, and of the other one.
    worlds: [World; 2],
    workloads: Vec<Workload>,
    services: Vec<Service<'n>>,
    pods: Vec<Running>,
    /// Where a pod was last that another one follows.
    left: Option<&'static str>,
}

impl<'n> Fleet<'n> {
    pub(crate) fn new(
        network: &'n Network,
        api: &'n Api<'n>,
        worlds: [World; 2],
        workloads: Vec<Workload>,
        services: Vec<Service<'n>>,
    ) -> Self {
        let mut fleet = Self {
            network,
            api,
            worlds,
            workloads,
            services,
            pods: Vec::new(),
            left: None,
        };
        fleet.lead();
        fleet
    }

    /// Starts the pods of workloads, and waits until all are ready.
    pub(crate) fn start(&mut self, keys: &[&str]) {
        for key in keys {
            let workload = self.index(key);
            for _ in 0..self.workloads[workload].replicas {
                self.begin(workload, false);
            }
        }
        let ready = wait::until("pods to be ready", LIMIT, || {
            self.look();
            self.pods.iter().all(Running::is_ready)
        });
        ready.unwrap_or_else(|error| panic!("{error:#}\n{}", self.troubles()));
        for pod in &mut self.pods {
            let at = self.network.at(pod.place);
            wait_ready(at, pod.pod.containers().last().unwrap(), &mut pod.child);
        }
    }

    fn index(&self, key: &str) -> usize {
        let place = self.workloads.iter().position(|own| own.key == key);
        place.unwrap_or_else(|| panic!("no {key}"))
    }

    /// Starts a pod at the next place where nobody is. One of a StatefulSet follows another, elsewhere if
    /// it can; one of a DaemonSet is where an old one may still be.
    fn begin(&mut self, workload: usize, new: bool) {
        let own = &self.workloads[workload];
        let beside = |pod: &Running| own.kind == "DaemonSet" && pod.new != new;
        let taken = |place: &str| {
            let mut there = self.pods.iter();
            there.any(|pod| pod.place == place && !beside(pod))
        };
        let named = |place: &'static str| {
            let mut all = self.pods.iter().filter(|pod| pod.workload == workload);
            own.kind == "StatefulSet" && all.any(|pod| name(pod.place) == name(place))
        };
        let free = own.places.iter().copied();
        let free = free.filter(|place| !taken(place) && !named(place));
        let mut free: Vec<&'static str> = free.collect();
        // Those where somebody was come last.
        free.sort_by_key(|place| self.left == Some(*place));
        let place = free[0];
        let called = |name: &String| {
            let mut own = self.pods.iter().filter(|pod| pod.workload == workload);
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
        let world = &mut self.worlds[usize::from(own.other)];
        let _ = std::fs::remove_dir_all(world.directory.join(&name));
        let begun = world.begin_with(
            self.network.at(place),
            (own.kind, own.name, &name),
            &own.objects,
            own.account.clone(),
        );
        self.pods.push(Running {
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
        self.lead();
    }

    /// Probes whom it is time to probe, and leads Services to who is there.
    pub(crate) fn look(&mut self) {
        for pod in &mut self.pods {
            if let Some(status) = pod.child.exit_status().unwrap() {
                let log = pod.child.log_tail(10);
                assert!(pod.is_ending(), "{}: {status}\n{log}", pod.place);
                pod.end = End::Over;
            }
            if pod.is_over() || !pod.due.passed() {
                continue;
            }
            let period = pod.probe()["periodSeconds"].as_u64().unwrap_or(10);
            let main = pod.pod.containers().last().unwrap();
            pod.started = pod.started || has_started(main, pod.child.pid());
            if !pod.started {
                pod.due = Deadline::after(SOON);
                continue;
            }
            let probe = main.probe("readinessProbe").unwrap();
            let answer = ask(self.network.at(pod.place), probe.port, &probe.path);
            pod.failed = match answer {
                Some(_) => 0,
                None => pod.failed.saturating_add(1),
            };
            pod.due = Deadline::after(match pod.failed {
                u64::MAX => SOON,
                _ => Duration::from_secs(period),
            });
        }
        self.lead();
    }

    fn lead(&mut self) {
        for service in &mut self.services {
            let all = self.pods.iter().filter(|pod| {
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
        let states = self.pods.iter().filter(|pod| !pod.is_ready());
        let states = states.map(|pod| format!("{}:\n{}\n", pod.place, pod.child.log_tail(5)));
        states.collect()
    }

    /// Puts a new pod into the place of each old one of these workloads, before the eyes of `seen`.
    pub(crate) fn roll(&mut self, keys: &[&'static str], seen: &mut impl Seen) {
        for pod in &mut self.pods {
            pod.new = false;
        }
        let all = wait::until("new pods", LONGEST, || {
            self.look();
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
    fn step(&mut self, workload: usize) -> bool {
        let (surge, unavailable) = self.workloads[workload].rollout();
        let replicas = self.workloads[workload].replicas;
        // Where a pod has a name of its own, or a node where there is to be but one, the next one waits for
        // its end.
        let own = self.pods.iter().enumerate();
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
            self.begin(workload, true);
        } else if ready + unavailable > replicas && !waits {
            // The last of a StatefulSet is the first to go.
            let going = match self.workloads[workload].kind {
                "StatefulSet" => old.last(),
                _ => old.first(),
            };
            if let Some((index, _)) = going.copied() {
                self.pods[index].terminate();
            }
        }
        false
    }

    /// Accompanies pods that were told to end.
    fn see_off(&mut self, workload: usize, seen: &mut impl Seen) {
        let key = self.workloads[workload].key;
        // Who stays ready while it drains is in no Service of ours.
        let mut led = self.services.iter().filter(|own| own.workload == key);
        let led = led.any(|own| !own.unready);
        let mut index = 0;
        while let Some(pod) = self.pods.get_mut(index) {
            index += 1;
            if pod.workload != workload {
                continue;
            }
            match pod.end {
                End::Not => {}
                End::Told(end) => {
                    if (!led || !pod.is_ready()) && seen.may_end(key, &mut pod.child) {
                        pod.end = End::Free(end);
                    }
                }
                End::Free(end) => {
                    let log = || pod.child.log_tail(5);
                    assert!(
                        !end.passed(),
                        "{} outlives its grace:\n{}",
                        pod.place,
                        log()
                    );
                }
                End::Over => {
                    index -= 1;
                    let pod = self.pods.remove(index);
                    self.left = Some(pod.place);
                    seen.ended(key, &pod.child);
                }
            }
        }
        self.lead();
    }

    /// Returns where the pods of a workload are.
    pub(crate) fn places(&self, key: &str) -> Vec<&'static str> {
        let workload = self.index(key);
        let own = self.pods.iter().filter(|pod| pod.workload == workload);
        own.map(|pod| pod.place).collect()
    }

    /// Ends all pods without a word.
    pub(crate) fn kill(&mut self) {
        for pod in &mut self.pods {
            pod.child.kill().unwrap();
        }
    }
}

/// Who sees pods end.
pub(crate) trait Seen {
    /// Is asked again and again from when a pod that was told to end is in no Service any more, until it
    /// may end as soon as it likes.
    fn may_end(&mut self, key: &str, child: &mut ChildGuard) -> bool;

    /// Is told of its end.
    fn ended(&mut self, key: &str, child: &ChildGuard);
}

/// Between two looks at a pod that has not been ready yet.
const SOON: Duration = Duration::from_millis(100);

/// A roll that takes longer hangs: half of it is more than any grace of pods that are let go.
const LONGEST: Duration = Duration::from_secs(100);
