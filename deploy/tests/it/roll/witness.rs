//! Who sees pods end, and judges what was lost with them.
//!
//! ```text
//!   told to end ─▶ what is held goes on, requests go elsewhere ─▶ clients end what they hold ─▶ the end
//!   gateway: no side ends it ─▶ cut, a line `drained` in its access log for each that is lost
//! ```
//!
//! Nothing else may be lost, with one exception that is looked at case by case: what a link of the egress
//! proxy carried that was cut with a gateway.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use testkit::netns::Namespace;
use testkit::process::{ChildGuard, listens};
use testkit::wait::{self, Stopwatch};

use crate::api::LIMIT;
use crate::objects::{self, API, SHOOT};
use crate::roll::fleet::{Leave, Seen};
use crate::roll::seed::OTHER_API;
use crate::roll::traffic::{Failure, Holding, Traffic};
use crate::roll::{BY_KONNECTIVITY, BY_NAME, BY_NODE, BY_VPN, OTHER_BY_NAME, OTHER_BY_NODE};
use crate::world::metric;

/// Sees to everything that is held.
pub(crate) struct Witness<'t, 'n> {
    traffic: &'t Traffic<'n>,
    holding: Holding<'t, 'n>,
    /// The egress proxy's servers at the beginning.
    servers: Vec<&'n Namespace>,
    /// Tunnels that were lost with their link before, and connections in such tunnels that were held.
    lost_before: f64,
    held_lost: usize,
    /// Whether a gateway was told to cut what it has, and its end was not seen yet.
    cutting: bool,
    rolled: &'static [&'static str],
    clock: Stopwatch,
}

impl<'t, 'n> Witness<'t, 'n> {
    pub(crate) fn new(traffic: &'t Traffic<'n>, servers: Vec<&'n Namespace>) -> Self {
        let holding = Holding::new(traffic);
        traffic.wait_asked();
        Self {
            traffic,
            holding,
            servers,
            lost_before: 0.0,
            held_lost: 0,
            cutting: false,
            rolled: &[],
            clock: Stopwatch::start(),
        }
    }

    /// Begins to look at a roll.
    pub(crate) fn begin(&mut self, keys: &'static [&'static str]) {
        assert!(self.traffic.failures().is_empty(), "before {keys:?}");
        self.traffic.begin(&keys.join(", "));
        self.rolled = keys;
        self.clock = Stopwatch::start();
        self.held_lost = 0;
        self.lost_before = self.lost();
    }

    /// Looks at what failed while it lasted.
    pub(crate) fn end(&mut self) {
        self.traffic.wait_asked();
        self.holding.fill();
        self.holding.go_on();
        let (asked, took) = (self.traffic.asked(), self.clock.elapsed());
        let rolled = self.rolled.join(", ");
        eprintln!("{rolled}: {took:?}, requests so far {asked:?}");
        let failed = self.traffic.failures();
        let rolled = |key| self.rolled.contains(&key);
        let in_link = |own: &Failure| own.path == BY_KONNECTIVITY && rolled("gateway");
        let (in_links, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(in_link);
        assert!(failed.is_empty(), "{}", told(&failed));
        let excused = in_links.len() + self.held_lost;
        // Servers that are rolled themselves take their numbers with them.
        let lost = if excused > 0 {
            self.lost() - self.lost_before
        } else {
            0.0
        };
        assert!(
            excused as f64 <= lost,
            "{lost} lost with links: {}",
            told(&in_links)
        );
        eprintln!("  of these {} in links that were cut", in_links.len());
    }

    /// Returns how many tunnels of the egress proxy were lost with their link.
    fn lost(&self) -> f64 {
        let name = "rhizome_konnectivity_tunnels_ended_total";
        let reason = [("reason", "link_lost")];
        let servers = self.servers.iter();
        servers.map(|at| metric(at, 8092, name, &reason)).sum()
    }

    /// Compares what was lost with a gateway with what that says it has cut.
    fn cut(&mut self, gateway: &ChildGuard) {
        let log = gateway.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let cut: Vec<Value> = lines
            .filter(|own: &Value| own["reason"] == "drained")
            .collect();
        let mut by_path = BTreeMap::new();
        for path in cut.iter().filter_map(path) {
            *by_path.entry(path).or_default() += 1;
        }
        let links = cut
            .iter()
            .any(|own| own["server_name"] == objects::KONNECTIVITY);
        let same = || {
            let mut over = self.holding.over();
            let in_links = over.remove(BY_KONNECTIVITY).unwrap_or_default();
            over == by_path && (links || in_links == 0)
        };
        let seen = wait::until("what was cut, and nothing else", LIMIT, same);
        let over = self.holding.over();
        seen.unwrap_or_else(|error| panic!("{error:#}: {over:?}, not {by_path:?}"));
        if links {
            // Who holds one in such a link hears of it from both ends of the link, a moment later.
            self.holding.settle(BY_KONNECTIVITY);
        }
        let mut over = self.holding.over();
        self.held_lost += over.remove(BY_KONNECTIVITY).unwrap_or_default();
        assert_eq!(over, by_path, "lost since");
        self.holding.forget();
    }
}

impl Seen for Witness<'_, '_> {
    fn may_end(&mut self, key: &str, pid: u32) -> Leave {
        let tls = SocketAddr::from(([0, 0, 0, 0], 9443));
        // One after the other, and as long as its drain.delay lasts a gateway goes on accepting.
        if key == "gateway" && (self.cutting || listens(pid, tls)) {
            return Leave::Wait;
        }
        // A drain that begins cuts nothing, and who asks anew is served elsewhere.
        self.holding.go_on();
        self.traffic.wait_asked();
        match key {
            "gateway" => {
                self.cutting = true;
                return Leave::AtOnce;
            }
            // Both processes of a node accept for a while, and the kernel chooses between them.
            "node" => {
                self.holding.let_go(&[BY_NODE]);
                self.holding.without = Some(BY_NODE);
            }
            "vpn-server" | "vpn-client" => self.holding.let_go(&[BY_VPN]),
            "konnectivity-server" | "konnectivity-agent" => self.holding.let_go(&[BY_KONNECTIVITY]),
            _ => {}
        }
        self.holding.fill();
        Leave::Free
    }

    fn ended(&mut self, key: &str, child: &ChildGuard) {
        if key == "gateway" {
            self.cut(child);
            self.cutting = false;
            self.holding.fill();
        }
        if key == "node" {
            self.holding.without = None;
        }
        self.holding.go_on();
    }
}

fn told(failures: &[Failure]) -> String {
    let all = failures.iter().map(|own| format!("{own}\n"));
    all.collect()
}

/// Returns the path of a connection that a gateway had, if a client holds it.
fn path(cut: &Value) -> Option<&'static str> {
    let name = cut["server_name"].as_str();
    match cut["listener"].as_str() {
        Some("tls") if name == Some(API) => Some(BY_NAME),
        Some("tls") if name == Some(OTHER_API) => Some(OTHER_BY_NAME),
        Some("node") if cut["cluster"].as_str()?.contains(SHOOT) => Some(BY_NODE),
        Some("node") => Some(OTHER_BY_NODE),
        _ => None,
    }
}
