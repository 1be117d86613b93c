//! `cargo xtask ci`: what must hold before a change is merged, cheapest first.

use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};

use crate::console::Console;
use crate::test::status;
use crate::tools;
use crate::{counts, demo, soak, test, tidy, workspace};

/// Runs every check, even after one has failed, the tests and the demo last; names what failed.
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
    run("Soak", &soak::run);
    run("Tests", &|| test::run(&test::Options::default()));
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
