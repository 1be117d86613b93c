//! Routes change while a watch runs, and the watch must not notice.

use anyhow::{Result, bail};

use super::Stage;
use crate::console::Console;
use crate::demo::gateway;
use crate::demo::node::Mode;
use crate::demo::watcher::Watcher;

const REFUSED: &str = "rhizome_snapshot_refused_total";

/// Two watches on shoot a: one by name, one from its pod.
struct Watches {
    user: Watcher,
    pod: Watcher,
}

pub(super) fn show(console: &mut Console, stage: &Stage) -> Result<()> {
    let heading = "Routes change under two running watches of shoot a";
    console.heading(heading);
    let watches = console.step("watches run, by name and from the pod", || {
        let watches = Watches {
            user: stage.watch_by_name(&stage.shoots[0])?,
            pod: stage.watch_from_pod(0, Mode::Proxy)?,
        };
        let detail = watches.go_on()?;
        Ok((watches, detail))
    })?;
    let [a, b] = &stage.shoots;
    let seed = &stage.network.seed;

    console.check("the route by name to shoot a is taken away", || {
        let now = stage.change_routes(&[b], &[])?;
        Ok(format!("in effect, generation {now}"))
    })?;
    let name = "a new connection to shoot a by name finds none";
    console.check(name, || match stage.ask_by_name(a) {
        Ok(detail) => bail!("{detail}, though its route is gone"),
        Err(error) if super::timed_out(&error) => Err(error.context("it is left hanging")),
        Err(_) => Ok(format!("closed; shoot b: {}", stage.ask_by_name(b)?)),
    })?;
    console.check("the watches have not noticed", || watches.go_on())?;
    console.check("a broken file of routes is refused whole", || {
        // Absent until the first refusal, or zero.
        let before = gateway::metric(seed, REFUSED).unwrap_or_default();
        let broken = "routes: [{ serverNames: [x], cluster: nowhere }]\n";
        gateway::replace_routes(&stage.dir, broken)?;
        gateway::wait_metric(seed, REFUSED, |value| value > before)?;
        let other = stage.ask_by_name(b)?;
        Ok(format!("the last good one stays; shoot b: {other}"))
    })?;
    console.check("the route is back, shoot a is served again", || {
        stage.change_routes(&[a, b], &[])?;
        stage.ask_by_name(a)
    })?;
    console.check("the watches ran through it all", || watches.go_on())
}

impl Watches {
    /// Waits for further events on both, and counts them all.
    fn go_on(&self) -> Result<String> {
        let (user, pod) = (self.user.wait_more(2)?, self.pod.wait_more(2)?);
        Ok(format!("{user} and {pod} events, none missing"))
    }
}
