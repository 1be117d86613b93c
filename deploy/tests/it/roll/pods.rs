//! A pod that is one of several: what its manifest says of it, and how far it is on its way out.
//!
//! ```text
//!   begun ─▶ ready ─▶ told to end ─▶ unready ─▶ free to end ─▶ over
//! ```

use std::time::Duration;

use deploy::{Account, Objects, Pod};
use serde_json::Value;
use testkit::process::{ChildGuard, Signal};
use testkit::wait::Deadline;

/// Pods of one manifest.
pub(crate) struct Workload {
    pub(crate) key: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) name: &'static str,
    pub(crate) objects: Objects,
    /// Where its pods are, one after the other: a Deployment's are called that as well.
    pub(crate) places: &'static [&'static str],
    pub(crate) replicas: usize,
    pub(crate) account: Option<Account>,
    /// Whether it is the other shoot's.
    pub(crate) other: bool,
}

impl Workload {
    fn spec(&self) -> &Value {
        &self.objects.get(self.kind, self.name).unwrap()["spec"]
    }

    /// Returns `maxSurge` and `maxUnavailable`.
    pub(crate) fn rollout(&self) -> (usize, usize) {
        let (strategy, surge, unavailable) = match self.kind {
            "Deployment" => (&self.spec()["strategy"], "25%", "25%"),
            "DaemonSet" => (&self.spec()["updateStrategy"], "0", "1"),
            // Of one partition, one at a time.
            _ => return (0, 1),
        };
        let said = |key: &str, default: &str| match &strategy["rollingUpdate"][key] {
            Value::Null => default.to_owned(),
            Value::String(text) => text.clone(),
            number @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                number.to_string()
            }
        };
        let number = |text: String, up: bool| match text.strip_suffix('%') {
            None => text.parse().unwrap(),
            Some(percent) => {
                let hundredths: usize = percent.parse::<usize>().unwrap() * self.replicas;
                if up {
                    hundredths.div_ceil(100)
                } else {
                    hundredths / 100
                }
            }
        };
        let surge = number(said("maxSurge", surge), true);
        let unavailable = number(
            said("maxUnavailable", unavailable),
            self.kind == "DaemonSet",
        );
        (surge, unavailable.max(usize::from(surge == 0)))
    }
}

/// A pod that was started.
pub(crate) struct Running {
    pub(crate) workload: usize,
    pub(crate) place: &'static str,
    pub(crate) pod: Pod,
    pub(crate) child: ChildGuard,
    /// Whether its startup probe was answered, before which no other one asks.
    pub(crate) started: bool,
    /// Probes that failed since one was answered; as many as it takes before the first answer.
    pub(crate) failed: u64,
    pub(crate) due: Deadline,
    pub(crate) new: bool,
    pub(crate) end: End,
}

/// How far a pod is on its way out.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// It was not told to end.
    Not,
    /// It was told, and is killed at that time.
    Told(Deadline),
    /// And its caller no longer waits for it.
    Free(Deadline),
    /// It is over.
    Over,
}

impl Running {
    pub(crate) fn probe(&self) -> &Value {
        let container = &self.pod.spec["containers"][0];
        &container["readinessProbe"]
    }

    /// Returns its name and the end of its log.
    pub(crate) fn last_words(&self) -> String {
        format!("{}:\n{}", self.place, self.child.log_tail(12))
    }

    fn threshold(&self) -> u64 {
        self.probe()["failureThreshold"].as_u64().unwrap_or(3)
    }

    pub(crate) fn is_ending(&self) -> bool {
        !matches!(self.end, End::Not)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.end, End::Over)
    }

    /// Whether its probe says so.
    pub(crate) fn is_ready(&self) -> bool {
        !self.is_over() && self.failed < self.threshold()
    }

    /// Whether it is in Services of the cluster: one that is to end leaves them when it begins to.
    pub(crate) fn serves(&self) -> bool {
        self.is_ready() && (!self.is_ending() || self.failed == 0)
    }

    /// A kubelet may take two seconds until it probes again. They are not taken here: of the ten for which
    /// a gateway goes on accepting, threads of a busy machine need what is left.
    pub(crate) fn terminate(&mut self) {
        let seconds = self.pod.spec["terminationGracePeriodSeconds"].as_u64();
        let grace = Duration::from_secs(seconds.unwrap_or(30));
        self.end = End::Told(Deadline::after(grace));
        self.child.signal(Signal::TERM).unwrap();
        self.due = Deadline::after(Duration::ZERO);
    }
}

/// Returns what a pod at a place is called, if the place is one of several for it.
pub(crate) fn name(place: &'static str) -> &'static str {
    place.trim_end_matches('b')
}
