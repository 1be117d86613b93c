//! What a pair takes when it is empty, and what an idle tunnel adds.

use anyhow::Result;

use super::figure as of;
use super::{CALM, Lab, Target};
use crate::konnectivity::load;

/// Reads a fresh pair's memory, holds `count` idle tunnels and reads it again. The pair is used up
/// by that: what it has touched once, it keeps.
pub(crate) fn idle(lab: &mut Lab, target: &Target, count: usize) -> Result<()> {
    let case = format!("idle ×{count}");
    let echo = lab.backend.address();
    let empty = target.usage()?;
    let [server, agent] = empty.0.map(|used| Some(used?.rss_kib as f64 / 1024.0));
    lab.add_some(target, &case, of::SERVER_EMPTY, server);
    lab.add_some(target, &case, of::AGENT_EMPTY, agent);
    // Code that is touched for the first time is not memory of a tunnel.
    lab.warm_up(target, WARM_UP, 1)?;
    let before = target.usage()?;
    let held = load::hold(&target.frontend, echo, count);
    let tunnels = lab.runtime.block_on(held)?;
    lab.rest(CALM);
    let [server, agent] = target.usage()?.growth_since(&before);
    let each = |grown: Option<f64>| Some(grown? / count as f64);
    lab.add_some(target, &case, of::SERVER_TUNNEL, each(server));
    lab.add_some(target, &case, of::AGENT_TUNNEL, each(agent));
    lab.runtime.block_on(load::close(tunnels));
    lab.calm()?;
    let case = format!("{case}, closed again");
    lab.add_growth(target, &case, &target.usage()?, &before);
    Ok(())
}

const WARM_UP: usize = 50;
