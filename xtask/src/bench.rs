//! `cargo xtask bench`: the standard suite, and the page and tables made of its results.
//!
//! ```text
//!     quiet? ──▶ build ──▶ rhizome-bench, one subcommand after the other ──▶ bench/results/*.jsonl
//!                                                                             ├─▶ index.html
//!                                                                             └─▶ docs/performance.md
//! ```
//!
//! Takes a quarter of an hour besides the build. A result of a busy machine is worse than none, so
//! it looks before it begins, and says afterwards how much of the processors others took.

mod headlines;
mod quiet;
mod tables;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use testkit::peers;
use testkit::wait::Stopwatch;

use self::quiet::Shares;
use crate::console::Console;
use crate::test::status;
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
    /// Measure nothing: write page and tables from the results that are there.
    #[arg(long, conflicts_with = "anyway")]
    saved: bool,
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
                "routes --only rhizome,envoy,haproxy-map,nginx --names 1,10000 \
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
            Self::Konnectivity => "konnectivity suite --mib 192 --millis 300 --rounds 2",
            // Under held connections it takes minutes more: `cargo xtask scale` has that as well.
            Self::Controller => "controller --cases policies,routes",
        }
    }

    /// What its file is called.
    fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::Conns => "conns",
            Self::Routes => "routes",
            Self::Tunnel => "tunnel",
            Self::Long => "long",
            Self::Konnectivity => "konnectivity",
            Self::Controller => "controller",
        }
    }

    /// Its file in [`RESULTS`].
    fn file(self) -> String {
        format!("{}.jsonl", self.name())
    }
}

/// Measures, and writes what was found.
///
/// # Errors
/// When the machine is busy, or something cannot be installed, built, run or written.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut console = Console::new();
    console.chapter("The standard suite");
    let parts: Vec<Part> = Part::value_variants()
        .iter()
        .filter(|part| options.only.is_empty() || options.only.contains(part))
        .copied()
        .collect();
    if !options.saved {
        look(&console, options.anyway)?;
        peers::install(&|text| console.say(&format!("  {text}")))?;
    }
    let programs = if options.saved {
        workspace::build_in("dev", "rhizome-bench")?
    } else {
        workspace::build(PACKAGES)?
    };
    let bench = programs
        .get("rhizome-bench")
        .context("rhizome-bench was not built")?;
    let results = workspace::root().join(RESULTS);
    fs::create_dir_all(&results).context("making the directory of results")?;
    if !options.saved {
        measure(&mut console, bench, &results, &parts);
    }
    write(&mut console, bench, &results);
    Ok(if console.table() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Looks whether the machine has time for this.
fn look(console: &Console, anyway: bool) -> Result<()> {
    let busy = quiet::busy()?;
    let Some(busy) = busy else {
        console.say("  the machine is quiet");
        return Ok(());
    };
    if anyway {
        console.say(&format!(
            "  THE MACHINE IS NOT QUIET: {busy}; measured anyway"
        ));
        return Ok(());
    }
    bail!("the machine is not quiet: {busy}; wait, or use --anyway")
}

fn measure(console: &mut Console, bench: &Path, results: &Path, parts: &[Part]) {
    for part in parts {
        let command = format!("rhizome-bench {}", part.arguments());
        console.step("measure", &command, || {
            let (before, clock) = (Shares::now()?, Stopwatch::start());
            one(bench, results, *part)?;
            let stolen = Shares::now()?.stolen_since(before) * 100.0;
            let minutes = clock.elapsed().as_secs_f64() / 60.0;
            Ok((
                (),
                format!("{minutes:.1} min; {stolen:.2} % of the processors stolen"),
            ))
        });
    }
}

/// Runs one part. Its file is replaced only once it is whole.
fn one(bench: &Path, results: &Path, part: Part) -> Result<()> {
    let (file, fresh) = (
        results.join(part.file()),
        results.join(part.file() + ".new"),
    );
    let out = File::create(&fresh).with_context(|| format!("making {}", fresh.display()))?;
    let mut command = Command::new(bench);
    command
        .args(part.arguments().split(' '))
        .arg("--json")
        .stdout(out);
    command.current_dir(workspace::root());
    if !status(&mut command)? {
        bail!("it failed; what it wrote is in {}", fresh.display());
    }
    fs::rename(&fresh, &file).with_context(|| format!("putting {} in place", file.display()))
}

/// Makes the page and the tables of every result that is there.
fn write(console: &mut Console, bench: &Path, results: &Path) {
    console.step("write", "bench/results/index.html", || {
        let all = Part::value_variants().iter();
        let files = all.map(|part| results.join(part.file()));
        let files: Vec<_> = files.filter(|file| file.is_file()).collect();
        let mut command = Command::new(bench);
        command.arg("report").args(&files).arg("--out").arg(results);
        if !status(&mut command)? {
            bail!("no page was made");
        }
        Ok(((), format!("of {} results", files.len())))
    });
    console.step("write", "docs/performance.md", || {
        let rows = tables::write(&workspace::root().join("docs/performance.md"), results)?;
        Ok(((), format!("{rows} figures")))
    });
}

const RESULTS: &str = "bench/results";
const PACKAGES: &[&str] = &[
    "apiserver-proxy",
    "konnectivity",
    "netpol-controller",
    "rhizome-bench",
    "sni-proxy",
    "vpn-client",
    "vpn-server",
];
