//! A shoot of two servers and two clients, and distinguishable random numbers.

use super::plan::{self, PlanError};
use super::render::{self, Objects};
use super::state::{Moment, State};
use crate::config::{Rotate, Wanted};
use std::time::Duration;

pub(super) const START: Moment = Moment(1_800_000_000);

pub(super) const SETTLE: Duration = Duration::from_secs(120);

const PARAMETERS: &str = r#"
namespace: shoot--foo--bar
servers: 2
clients: 2
networks: { pods: ["100.96.0.0/11"], services: ["100.64.0.0/13"], nodes: ["10.250.0.0/16"] }
endpoint: { address: api.example.com, tcpPort: 8132 }
routeIds: [17, 18]
server: { trustedGateways: ["10.0.0.0/8"], proxy: { resolvers: ["100.64.0.10:53"] } }
"#;

pub(super) fn wanted() -> Wanted {
    parameters(PARAMETERS)
}

/// The same with other lines.
pub(super) fn changed(from: &str, to: &str) -> Wanted {
    changed_in(&[(from, to)])
}

/// The same with several other lines.
pub(super) fn changed_in(changes: &[(&str, &str)]) -> Wanted {
    parameters(&text_with(changes))
}

pub(super) fn text_with(changes: &[(&str, &str)]) -> String {
    let mut text = PARAMETERS.to_owned();
    for (from, to) in changes {
        assert!(text.contains(from), "{from:?}");
        text = text.replace(from, to);
    }
    text
}

fn parameters(text: &str) -> Wanted {
    Wanted::from_text(text, "p.yaml".as_ref()).unwrap()
}

/// Bytes that count up; keys of certificates are the system's.
pub(super) fn counting() -> impl FnMut() -> Result<[u8; 32], PlanError> {
    let mut last = 0;
    move || {
        last += 1;
        Ok([last; 32])
    }
}

/// A shoot's state over time.
pub(super) struct Shoot {
    pub(super) wanted: Wanted,
    pub(super) now: Moment,
    pub(super) state: State,
    pub(super) random: Box<dyn FnMut() -> Result<[u8; 32], PlanError>>,
}

impl Shoot {
    pub(super) fn new(wanted: Wanted) -> Self {
        let mut random = Box::new(counting());
        let state = plan::ensure(None, &wanted, &[], START, &mut random).unwrap();
        Self {
            wanted,
            now: START,
            state,
            random,
        }
    }

    /// Lets `seconds` pass.
    pub(super) fn pass(&mut self, seconds: u64) {
        self.now.0 += seconds;
    }

    pub(super) fn ensure(&mut self) {
        let state = self.state.clone();
        let now = self.now;
        let ensured = plan::ensure(Some(state), &self.wanted, &[], now, &mut self.random);
        self.state = ensured.unwrap();
    }

    pub(super) fn rotate(&mut self, rotate: Rotate) -> Result<Option<Duration>, PlanError> {
        self.ensure();
        let (wanted, now) = (&self.wanted, self.now);
        plan::advance(
            &mut self.state,
            rotate,
            wanted,
            SETTLE,
            now,
            &mut self.random,
        )
    }

    pub(super) fn objects(&self) -> Objects {
        render::render(&self.state, &self.wanted).unwrap()
    }

    /// Returns a file of a Secret.
    pub(super) fn file(&self, secret: &str, file: &str) -> String {
        let objects = self.objects();
        let secret = objects.secrets.iter().find(|one| one.name == secret);
        secret.unwrap().data[file].clone()
    }
}
