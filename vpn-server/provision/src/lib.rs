//! `vpn-provision`: what both ends of a shoot's tunnels need, made, kept and replaced.
//!
//! ```text
//!   parameters ─┐
//!   Secret vpn-provision ─▶ plan ─▶ state ─▶ Secret vpn-provision
//!   random numbers, time ─┘           └─▶ render ─▶ Secrets and annotations: clusters, or files
//! ```
//!
//! What is decided is `plan`'s and pure; what follows from it `render`'s. Running it again changes
//! nothing. Of two runs for one shoot at a time, one finds that the other has written, and begins
//! anew with that; a route id is one shoot's by its claim. Serves nothing, and `vpn-server` never
//! comes here: the client of Kubernetes would take its memory.
#![forbid(unsafe_code)]

mod certificates;
mod claims;
mod cluster;
mod config;
mod directory;
#[cfg(test)]
mod fixture;
mod manifest;
mod plan;
mod render;
mod state;
mod store;

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};
use settings::{ConfigError, HumanDuration};
use tokio::time::{Instant, sleep};
use tunnel::RouteId;

use self::cluster::Saved;
use self::config::Wanted;
pub use self::config::{Command, Flags, ProvisionFile, Rotate};
use self::plan::{PlanError, Random};
use self::state::{Moment, Phase, State};
use self::store::{Report, Store, StoreError};

/// Runs that may write between our reading and our writing, before that is an error.
const ATTEMPTS: usize = 8;

/// Between two attempts to reach the shoot.
const RETRY: Duration = Duration::from_secs(5);

/// Steps of a phase, with those that clocks of whole seconds may add.
const STEPS: usize = 6;

/// Why not everything is as it is to be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvisionError {
    /// Others write the state all the time.
    #[error("other runs for this shoot have written {ATTEMPTS} times meanwhile")]
    Busy,
    /// The file of parameters.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is there, what is to be remembered, or writing.
    #[error("{during}")]
    Failed {
        /// What was under way.
        during: &'static str,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The flags contradict each other.
    #[error("{0}")]
    Flags(&'static str),
    /// What follows from it.
    #[error("making manifests")]
    Render(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The shoot's API server does not answer yet; what belongs to the seed is written.
    #[error(
        "the seed's part is written, and the shoot does not answer: run this again once its API \
         server does, or with --wait"
    )]
    Shoot {
        /// What was done, as lines.
        done: String,
        /// What went wrong.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A step of a rotation was written a moment ago.
    #[error(
        "the last step was written {} ago and pods may take --settle {settle} to read it: apply it, \
         and run this again in {left}",
        HumanDuration(*age)
    )]
    TooEarly {
        /// How long ago.
        age: Duration,
        /// How long pods may take.
        settle: HumanDuration,
        /// How long that still is.
        left: HumanDuration,
    },
}

impl ProvisionError {
    /// Tells whether flags or parameters are to blame.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Config(_) | Self::Flags(_) | Self::Render(_) => true,
            Self::Busy | Self::Failed { .. } | Self::Shoot { .. } | Self::TooEarly { .. } => false,
        }
    }
}

/// Brings everything up to date as the file of parameters says, takes the steps that were asked for,
/// and returns what was done, as lines.
///
/// # Errors
/// Why not; what was written stays, and running it again goes on from there.
pub async fn provision(flags: &Flags) -> Result<String, ProvisionError> {
    let destination = flags.destination().map_err(ProvisionError::Flags)?;
    let wanted = Wanted::load(&flags.config)?;
    let store = Store::open(destination, &wanted).await;
    let mut run = Run {
        store: store.map_err(at("opening clusters"))?,
        wanted,
        settle: flags.settle.0,
        report: Report::default(),
    };
    match run.all(flags).await {
        Ok(()) => Ok(run.report.into_text()),
        Err(ProvisionError::Shoot { source, .. }) => Err(ProvisionError::Shoot {
            done: run.report.into_text(),
            source,
        }),
        Err(error) => Err(error),
    }
}

/// Validates parameters and shows them.
///
/// # Errors
/// What is wrong with them.
pub fn check(parameters: &Path) -> Result<String, ProvisionError> {
    let wanted = Wanted::load(parameters)?;
    // As for a new shoot, since each end's program may refuse what it would be given.
    let system = SystemRandom::new();
    let ids = (1..=RouteId::MAX).filter_map(RouteId::new);
    let ids: Vec<_> = ids.take(wanted.servers.len()).collect();
    let state = plan::ensure(None, &wanted, &ids, now(), &mut || random_bytes(&system));
    let state = state.map_err(planning)?;
    render::render(&state, &wanted).map_err(|error| ProvisionError::Render(error.into()))?;
    let (servers, clients) = (wanted.servers.len(), wanted.clients.len());
    let namespace = &wanted.file.namespace;
    Ok(format!(
        "# {namespace}: {servers} servers, {clients} clients\n"
    ))
}

/// What a pass does beside making what is missing.
#[derive(Clone, Copy)]
enum Step {
    Ensure,
    /// Counts the time that pods need from now.
    Restart,
    Rotate(Rotate),
}

/// What a pass came to.
struct Done {
    state: State,
    /// Whether anything but the state was written.
    changed: bool,
}

struct Run {
    store: Store,
    wanted: Wanted,
    settle: Duration,
    report: Report,
}

impl Run {
    async fn all(&mut self, flags: &Flags) -> Result<(), ProvisionError> {
        let mut done = self.ensure(flags.wait.0).await?;
        if done.changed && done.state.phase != Phase::Completed {
            // A run before this one ended before all was written, or something was lost: who reads
            // it has it from now on.
            (_, done) = self.bring(Step::Restart).await?;
        }
        if let Some(Command::Rotate(rotate)) = flags.command {
            done = self.rotate(rotate).await?;
        }
        self.conclude(&done.state);
        Ok(())
    }

    /// Makes what is missing, waiting up to `wait` for the shoot. Each attempt reads everything
    /// anew, since other runs may write meanwhile.
    async fn ensure(&mut self, wait: Duration) -> Result<Done, ProvisionError> {
        let until = Instant::now() + wait;
        let mut waited = false;
        loop {
            match self.bring(Step::Ensure).await {
                Ok((_, mut done)) => {
                    // An earlier attempt may have written what this one found.
                    done.changed |= waited;
                    return Ok(done);
                }
                Err(ProvisionError::Shoot { source, .. }) if Instant::now() < until => {
                    if !waited {
                        let error = telemetry::chain(source.as_ref()).to_string();
                        tracing::info!(error, "waiting for the shoot's API server");
                    }
                    waited = true;
                    sleep(RETRY).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes all steps of a phase; one where the objects are applied by others.
    async fn rotate(&mut self, rotate: Rotate) -> Result<Done, ProvisionError> {
        for _ in 0..STEPS {
            let (then, done) = self.bring(Step::Rotate(rotate)).await?;
            let Some(left) = then else {
                return Ok(done);
            };
            let word = match rotate {
                Rotate::Complete => "complete",
                Rotate::Start => "start",
            };
            if self.store.applies() {
                let phase = done.state.phase;
                tracing::info!(?phase, wait = %HumanDuration(left), "pods read what was written");
                sleep(left).await;
            } else if done.changed {
                let settle = HumanDuration(self.settle);
                self.report.line(&format!(
                    "to be continued: apply this, give pods {settle} to read it, and run \
                     `rotate {word}` again"
                ));
                return Ok(done);
            } else if !left.is_zero() {
                return Err(ProvisionError::TooEarly {
                    age: self.settle.saturating_sub(left),
                    settle: HumanDuration(self.settle),
                    left: HumanDuration(left),
                });
            }
        }
        Err(ProvisionError::Busy)
    }

    /// One pass: reads, plans, writes.
    async fn bring(&mut self, step: Step) -> Result<(Option<Duration>, Done), ProvisionError> {
        let system = SystemRandom::new();
        let mut random = || random_bytes(&system);
        for _ in 0..ATTEMPTS {
            let reading = at("reading what was made before");
            let before = self.store.read(&self.wanted).await.map_err(reading)?;
            let expecting = at("looking for the servers' Services");
            self.store.expect(&self.wanted).await.map_err(expecting)?;
            // A number that two runs are unlikely to share.
            let [a, b, c, d, ..] = random().map_err(planning)?;
            let start = u32::from_be_bytes([a, b, c, d]);
            let claimed = self.store.claim(before.state.as_ref(), &self.wanted, start);
            let claimed = claimed.await.map_err(at("claiming route ids"))?;
            let (state, then) = self
                .plan(before.state.clone(), &claimed, step, &mut random)
                .map_err(planning)?;
            let objects = render::render(&state, &self.wanted);
            let objects = objects.map_err(|error| ProvisionError::Render(error.into()))?;
            let saved = self
                .store
                .save(&state, &self.wanted, before, &mut self.report);
            if saved.await.map_err(at("writing the state"))? == Saved::Conflict {
                continue;
            }
            let confirming = at("confirming route ids");
            self.store.confirm(&state).await.map_err(confirming)?;
            let changed = self.store.apply(&objects, &mut self.report).await;
            let changed = changed.map_err(at("writing manifests"))?;
            if matches!(step, Step::Ensure) {
                let report = &mut self.report;
                let reported = self.store.obsolete(&objects, &self.wanted, report).await;
                reported.map_err(at("looking for what is left over"))?;
            }
            return Ok((then, Done { state, changed }));
        }
        Err(ProvisionError::Busy)
    }

    fn plan(
        &self,
        before: Option<State>,
        claimed: &[RouteId],
        step: Step,
        random: Random<'_>,
    ) -> Result<(State, Option<Duration>), PlanError> {
        let now = now();
        let mut state = plan::ensure(before, &self.wanted, claimed, now, random)?;
        let then = match step {
            Step::Ensure => None,
            Step::Restart => {
                state.since = now;
                None
            }
            Step::Rotate(rotate) => {
                plan::advance(&mut state, rotate, &self.wanted, self.settle, now, random)?
            }
        };
        Ok((state, then))
    }

    fn conclude(&mut self, state: &State) {
        let servers = state.servers.iter();
        let ids: Vec<_> = servers.map(|server| server.route_id.to_string()).collect();
        let phase = state.phase;
        self.report.line(&format!("route ids: {}", ids.join(", ")));
        self.report.line(&format!("rotation: {phase:?}"));
        if plan::authority_runs_out(state, now()) {
            self.report
                .line("the proxy's certificate authority runs out: `rotate start` makes a new one");
        }
    }
}

fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Moment(since.map_or(0, |since| since.as_secs()))
}

fn at(during: &'static str) -> impl FnOnce(StoreError) -> ProvisionError {
    move |source| {
        if let StoreError::Shoot(source) = source {
            let done = String::new();
            return ProvisionError::Shoot { done, source };
        }
        let source = source.into();
        ProvisionError::Failed { during, source }
    }
}

fn planning(source: PlanError) -> ProvisionError {
    ProvisionError::Failed {
        during: "planning",
        source: source.into(),
    }
}

fn random_bytes(system: &SystemRandom) -> Result<[u8; 32], PlanError> {
    let mut bytes = [0; 32];
    system.fill(&mut bytes).map_err(|_| PlanError::Random)?;
    Ok(bytes)
}
