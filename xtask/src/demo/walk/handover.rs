//! A node proxy is replaced while a watch runs through it, which stays one connection.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use testkit::process::Signal;

use super::Stage;
use crate::console::Console;
use crate::demo::gateway;
use crate::demo::node::{self, Mode};

pub(super) fn show(console: &mut Console, stage: &mut Stage) -> Result<()> {
    console.heading("A node proxy is replaced under a running watch");
    let watch = console.step("a watch runs, from the pod in shoot b", || {
        let watch = stage.watch_from_pod(1, Mode::Connect)?;
        Ok((watch, "events flow".to_owned()))
    })?;
    let seed = &stage.network.seed;
    let before = gateway::metric(seed, CONNECTIONS)?;
    let next = console.step("the next process takes it over", || {
        let (shoot, node) = (&stage.shoots[1], &stage.network.shoots[1].node);
        let next = node::succeed(&stage.programs, node, &stage.dir, shoot, Mode::Connect)?;
        let event = watch.wait_more(2)?;
        Ok((next, format!("the watch is at event {event}")))
    })?;
    let mut older = std::mem::replace(&mut stage.nodes[1], next);
    console.check("the older one ends at once when it is told to", || {
        older.signal(Signal::TERM)?;
        let status = older.wait_exit(Duration::from_secs(3))?;
        if !status.success() {
            bail!("it ended with {status}:\n{}", older.log_tail(10));
        }
        let event = watch.wait_more(2)?;
        Ok(format!("the watch is at event {event}"))
    })?;
    console.check("for the gateway too it is the same connection", || {
        let now = gateway::metric(seed, CONNECTIONS)?;
        ensure!(now == before, "{before} connections before, {now} now");
        watch.events()?;
        Ok(format!("{now} connections since it started, as before"))
    })
}

const CONNECTIONS: &str = "rhizome_listener_connections_total";
