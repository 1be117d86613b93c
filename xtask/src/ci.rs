//! `cargo xtask ci`: what must hold before a change is merged, cheapest first; but what takes a release build
//! comes after the tests, which leave the processors time for it.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::console::Console;
use crate::test::status;
use crate::tools;
use crate::{counts, demo, soak, test, tidy, workspace};

/// Runs every check, even after one has failed; names what failed.
pub(crate) fn run() -> Result<ExitCode> {
    let mut console = Console::new();
    for (name, command) in COMMANDS {
        step(&mut console, name, || status(&mut command()?));
    }
    let mut run = |name: &str, check: &dyn Fn() -> Result<ExitCode>| {
        step(&mut console, name, || Ok(check()? == ExitCode::SUCCESS));
    };
    run("House rules", &tidy::run);
    run("Counts", &|| counts::run(&counts::Options::default()));
    let building = soak::build_meanwhile();
    run("Tests", &|| test::run(&test::Options::default()));
    // What went wrong with it, the next build says.
    if let Ok(mut building) = building {
        let _ = building.wait();
    }
    run("Soak", &soak::run);
    run("Demo", &|| demo::run(&demo::Options::default()));
    Ok(ExitCode::from(u8::from(!console.result())))
}

fn step(console: &mut Console, name: &str, check: impl FnOnce() -> Result<bool>) {
    console.heading(name);
    let _ = console.check(name, || {
        ensure!(check()?, "see above");
        Ok(String::new())
    });
}

type Prepared = fn() -> Result<Command>;

const COMMANDS: [(&str, Prepared); 4] = [
    ("Format", || cargo("fmt --all --check")),
    ("Lints", || {
        cargo("clippy --workspace --all-targets --all-features -- -D warnings")
    }),
    ("Documentation", || {
        let mut doc = cargo("doc --workspace --no-deps --all-features --quiet")?;
        doc.env("RUSTDOCFLAGS", "-D warnings");
        Ok(doc)
    }),
    ("Dependencies", || {
        let mut deny = tools::DENY.command(&Console::new())?;
        deny.args(["check", "bans", "licenses", "sources"]);
        Ok(deny)
    }),
];

fn cargo(words: &str) -> Result<Command> {
    let mut command = workspace::cargo();
    command.args(words.split(' '));
    Ok(command)
}
