//! `cargo xtask bench`: the standard suite, and the file of its results.
//!
//! ```text
//!     quiet? ──▶ build ──▶ rhizome-bench, one subcommand after the other ──▶ bench/results/suite.json
//! ```
//!
//! Takes a quarter of an hour besides the build. A result of a busy machine is worse than none, so
//! it looks at the load average before it begins. The page is made on demand:
//! `rhizome-bench report bench/results/suite.json --out DIR`.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use procfs::{Current, LoadAverage};
use serde_json::{Value, json};
use testkit::peers;
use testkit::wait::Stopwatch;

use crate::console::Console;
use crate::workspace;

/// What is measured.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Options {
    /// Parts of the suite; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Measure even though the machine is busy.
    #[arg(long)]
    anyway: bool,
}

/// A part of the suite: one run of `rhizome-bench`, one file of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The gateway beside other proxies.
    Tls,
    /// New connections, by server name and by PROXY header, beside other proxies.
    Conns,
    /// Tables of routes beside other proxies.
    Routes,
    /// Tunnels beside other VPNs.
    Tunnel,
    /// The same over round trips of 50 ms.
    Long,
    /// The konnectivity pair.
    Konnectivity,
    /// The controller with a large cluster.
    Controller,
}

impl Part {
    /// What `rhizome-bench` is called with: enough for figures that stay, short enough that all
    /// parts together take a quarter of an hour.
    fn arguments(self) -> &'static str {
        match self {
            Self::Tls => {
                "tls --only copy-loop,rhizome,rhizome-copy,envoy,haproxy,haproxy-splice,nginx \
                 --cases bulk,rtt,idle --connections 8,64 --idle 4000 --rounds 4 --seconds 0.4 \
                 --warm-up 0.15"
            }
            // These differ by a few percent only: many short repetitions, in turns.
            Self::Conns => {
                "tls --only copy-loop,rhizome,envoy,haproxy,nginx,sniproxy --listener sni,proxy \
                 --cases conns --rounds 20 --seconds 0.15 --warm-up 0.05"
            }
            Self::Routes => {
                "routes --only rhizome,rhizome-yaml,envoy,haproxy-map,nginx --names 1,10000 \
                 --rounds 1 --seconds 4"
            }
            Self::Tunnel => {
                "tunnel --only direct,rhizome-udp,rhizome-udp-gateway,rhizome-tcp,\
                 wireguard-go-2023,boringtun,openvpn-udp,openvpn-tcp --cases idle,bulk \
                 --rounds 1 --seconds 2"
            }
            // Long enough that slow start is a small part of it.
            Self::Long => {
                "tunnel --only rhizome-udp,rhizome-tcp,openvpn-tcp-bbr \
                 --cases long,loss --rounds 1 --long-seconds 11"
            }
            Self::Konnectivity => "konnectivity --mib 192 --millis 300 --rounds 2",
            // Under held connections it takes minutes more: `cargo xtask scale` has that as well.
            Self::Controller => "controller --cases policies,routes",
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut console = Console::new();
    console.heading("The standard suite");
    let wanted = |part: &&Part| options.only.is_empty() || options.only.contains(part);
    let parts = Part::value_variants().iter().filter(wanted);
    look(&console, options.anyway)?;
    peers::install(&|text| console.say(&format!("  {text}")))?;
    let programs = workspace::build(&Vec::from_iter(PACKAGES.split(' ')))?;
    let bench = programs.get("rhizome-bench")?;
    for part in parts {
        measure(&mut console, bench, *part);
    }
    Ok(ExitCode::from(u8::from(!console.result())))
}

/// Looks whether the machine has time for this: by its load average.
fn look(console: &Console, anyway: bool) -> Result<()> {
    let load = LoadAverage::current().context("reading /proc/loadavg")?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let each = f64::from(load.one) / processors as f64;
    if each <= MAX_LOAD {
        return Ok(());
    }
    let busy = format!("load average {each:.2} for each processor (limit {MAX_LOAD})");
    ensure!(
        anyway,
        "the machine is not quiet: {busy}; wait, or use --anyway"
    );
    let warning = format!("  THE MACHINE IS NOT QUIET: {busy}; measured anyway");
    console.say(&warning);
    Ok(())
}

fn measure(console: &mut Console, bench: &Path, part: Part) {
    let command = format!("rhizome-bench {}", part.arguments());
    let _ = console.check(&command, || {
        let clock = Stopwatch::start();
        let mut command = Command::new(bench);
        command.args(part.arguments().split(' ')).arg("--json");
        let run = command.current_dir(workspace::root());
        let output = run.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "it ended with {}", output.status);
        let run: Value = serde_json::from_slice(&output.stdout).context("reading its result")?;
        let facts = run["facts"].as_array().into_iter().flatten();
        let failed = facts.filter(|fact| fact[0] == "failed").count();
        let value = part.to_possible_value().context("a part has a name")?;
        save(&workspace::root().join(RESULTS), value.get_name(), run)?;
        ensure!(failed == 0, "{failed} cases failed");
        let minutes = clock.elapsed().as_secs_f64() / 60.0;
        Ok(format!("{minutes:.1} min"))
    });
}

/// Puts `run` into the file of results, in place of the run of that name; one run on each line, so
/// that a difference shows which were measured again.
fn save(file: &Path, name: &str, mut run: Value) -> Result<()> {
    run["name"] = json!(name);
    let mut runs: Vec<Value> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).context("reading the results")?,
        Err(_) => Vec::new(),
    };
    match runs.iter_mut().find(|other| other["name"] == name) {
        Some(other) => *other = run,
        None => runs.push(run),
    }
    let lines: Vec<String> = runs.iter().map(Value::to_string).collect();
    let text = format!("[{}]\n", lines.join(",\n"));
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// What an idle machine with a terminal and some timers stays below.
const MAX_LOAD: f64 = 0.25;
const RESULTS: &str = "bench/results/suite.json";
const PACKAGES: &str =
    "konnectivity netpol-controller rhizome-bench sni-proxy vpn-client vpn-server";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_replaces_the_one_of_its_name() {
        let dir = testkit::tempdir::TempDir::new("suite").unwrap();
        let file = dir.path().join("suite.json");
        for (name, median) in [("tls", 1), ("routes", 2), ("tls", 3)] {
            save(&file, name, json!({ "name": "tls", "median": median })).unwrap();
        }
        let text = fs::read_to_string(&file).unwrap();
        let runs: Vec<Value> = serde_json::from_str(&text).unwrap();
        let expected = [
            json!({ "name": "tls", "median": 3 }),
            json!({ "name": "routes", "median": 2 }),
        ];
        assert_eq!(runs, expected);
        assert_eq!(text.lines().count(), 2);
    }

    fn read(file: &str) -> String {
        fs::read_to_string(workspace::root().join(file)).unwrap()
    }

    fn suite() -> Vec<Value> {
        serde_json::from_str(&read(RESULTS)).unwrap()
    }

    /// Tells whether a text has a number, rounded, or a range "a to b" that it is in.
    fn has(text: &str, number: f64) -> bool {
        let words = text.split(|c: char| c.is_whitespace() || "(),;:".contains(c));
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        let parsed = |word: &str| word.trim_end_matches('.').parse::<f64>().ok();
        let slack = 0.01 * number;
        let alone = |word: &&str| parsed(word).is_some_and(|own| (own - number).abs() <= slack);
        let within = |own: &[&str]| match (parsed(own[0]), own[1], parsed(own[2])) {
            (Some(low), "to", Some(high)) => low - slack <= number && number <= high + slack,
            _ => false,
        };
        words.iter().any(alone) || words.windows(3).any(within)
    }

    /// Returns the rows with a target, and of each its value, its bound, and whether it is met.
    fn targets(runs: &[Value]) -> Vec<(&Value, f64, f64, bool)> {
        let rows = runs.iter().flat_map(|run| run["rows"].as_array().unwrap());
        let target = |row| {
            let row: &Value = row;
            let median = row["median"].as_f64().unwrap();
            if let Some(bound) = row["must"]["at_least"].as_f64() {
                return Some((row, median, bound, median >= bound));
            }
            let bound = row["must"]["at_most"].as_f64()?;
            // What is never to happen is judged by the worst.
            let worst = row["range"][1].as_f64().filter(|_| bound == 0.0);
            let value = worst.unwrap_or(median);
            Some((row, value, bound, value <= bound))
        };
        rows.filter_map(target).collect()
    }

    #[test]
    fn missed_targets_are_listed_as_not_met() {
        let (runs, text) = (suite(), read("docs/performance.md"));
        let (_, section) = text.split_once("### What is not met\n").unwrap();
        let section = section.split("\n### ").next().unwrap();
        let items: Vec<&str> = section.split("\n- ").collect();
        let all = targets(&runs);
        let missed: Vec<_> = all.iter().filter(|(.., met)| !met).collect();
        let count = format!("{} of the {} targets", missed.len(), all.len());
        assert!(items[0].contains(&count), "{count}: {}", items[0]);
        let short = format!("{} of {} targets", missed.len(), all.len());
        assert!(read("README.md").contains(&short), "{short}");
        for (row, value, bound, _) in missed {
            let mut items = items.iter();
            let named = items.any(|item| has(item, *value) && has(item, *bound));
            assert!(named, "not listed: {row}");
        }
    }

    #[test]
    fn sizing_has_figures_of_the_suite() {
        let (runs, text) = (suite(), read("docs/operations.md"));
        let text = text + &read("docs/konnectivity.md");
        let item = |starts: &str| {
            let (_, rest) = text.split_once(&format!("\n- {starts}")).unwrap();
            rest.split("\n- ").next().unwrap()
        };
        let tls = item("`rhizome-bench tls --cases bulk`");
        let tunnel = item("`rhizome-bench tunnel --cases idle,bulk`");
        let konnectivity = item("**CPU.**");
        let (ends, all) = ("cpu of both ends", "cpu with gateway");
        let pair = ("http-uds", "down ×1", "cpu server+agent");
        for (name, (setup, case, figure), item) in [
            ("konnectivity", pair, konnectivity),
            ("tls", ("rhizome", "sni bulk", "proxy cpu"), tls),
            ("tunnel", ("rhizome udp", "bulk ×1", ends), tunnel),
            ("tunnel", ("rhizome udp+gateway", "bulk", all), tunnel),
            ("tunnel", ("rhizome tcp+gateway", "bulk", all), tunnel),
        ] {
            let run = runs.iter().find(|run| run["name"] == name).unwrap();
            let rows = run["rows"].as_array().unwrap().iter();
            let rows = rows.filter(|row| {
                let is_case = row["case"].as_str().unwrap().starts_with(case);
                row["setup"] == setup && is_case && row["figure"] == figure
            });
            let medians: Vec<f64> = rows.map(|row| row["median"].as_f64().unwrap()).collect();
            assert!(!medians.is_empty(), "{setup}: {case}");
            let missing = medians.iter().find(|median| !has(item, **median));
            assert_eq!(missing, None, "{setup}: {case}: {item}");
        }
    }

    #[test]
    fn readme_memory_is_no_less_than_soaks() {
        let (readme, sizing) = (read("README.md"), read("docs/operations.md"));
        let between = |text: &str, before: &str, after: &str| -> f64 {
            let (_, rest) = text.split_once(before).unwrap();
            let number = rest.split(after).next().unwrap().replace(',', "");
            number.parse().unwrap()
        };
        let soak = between(&sizing, "own memory: `sni-proxy` ", " bytes each");
        for (before, after) in [
            ("an idle connection takes ", " KiB"),
            ("(by `cargo xtask soak` ", ")"),
        ] {
            let shown = between(&readme, before, after);
            // Two decimals.
            assert!(shown + 0.005 >= soak / 1024.0, "{shown} KiB, {soak} bytes");
        }
    }

    /// A row that says so is of the set-up with the gateway, and no other.
    #[test]
    fn readme_has_tunnels_of_the_suite() {
        let runs = suite();
        let median = |setup: &str, case: &str, figure: &str| {
            let rows = runs.iter().find(|run| run["name"] == "tunnel").unwrap();
            let mut rows = rows["rows"].as_array().unwrap().iter();
            let row = rows.find(|row| {
                row["setup"] == setup && row["case"] == case && row["figure"] == figure
            });
            row.unwrap()["median"].as_f64().unwrap().round()
        };
        let readme = read("README.md");
        let lines: Vec<&str> = readme.lines().collect();
        for (case, figure, starts) in [
            (
                "bulk ×1",
                "throughput",
                "| tunnel by UDP through the gateway,",
            ),
            (
                "idle",
                "pings in turn p50",
                "| ping through the idle tunnel by UDP,",
            ),
        ] {
            let at = lines.iter().position(|line| line.starts_with(starts));
            let [with, without] = lines[at.unwrap()..][..2] else {
                panic!("{starts}")
            };
            for (line, setup) in [(with, "rhizome udp+gateway"), (without, "rhizome udp")] {
                let own = median(setup, case, figure);
                let shown = line.split('|').nth(2).unwrap().trim().trim_matches('*');
                let shown: f64 = shown.parse().unwrap();
                assert!((shown - own).abs() <= 1.0, "{line}: {own}");
            }
            assert!(without.contains("without a gateway"), "{without}");
        }
        let why = lines
            .iter()
            .find(|line| line.contains("Mb/s through the gateway"));
        for setup in ["rhizome udp+gateway", "rhizome tcp+gateway"] {
            let own = median(setup, "bulk ×1", "throughput").to_string();
            let own = format!("{},{}", &own[..1], &own[1..]);
            assert!(why.unwrap().contains(&own), "{setup}: {own}");
        }
    }
}
