//! `cargo xtask ci`: what must hold before a change is merged, cheapest first.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::console::Console;
use crate::test::status;
use crate::tools;
use crate::{counts, demo, soak, test, tidy, workspace};

/// Runs every check, even after one has failed, the tests and the demo last.
pub(crate) fn run() -> Result<ExitCode> {
    let console = Console::new();
    let mut good = true;
    for (name, mut check) in checks(&console)? {
        console.heading(name);
        good &= status(&mut check)?;
    }
    console.heading("House rules");
    good &= tidy::run()? == ExitCode::SUCCESS;
    good &= counts::run(&counts::Options::default())? == ExitCode::SUCCESS;
    good &= soak::run()? == ExitCode::SUCCESS;
    good &= test::run(&test::Options::default())? == ExitCode::SUCCESS;
    good &= demo::run(&demo::Options::default())? == ExitCode::SUCCESS;
    Ok(ExitCode::from(u8::from(!good)))
}

fn checks(console: &Console) -> Result<Vec<(&'static str, Command)>> {
    let cargo = |words: &str| {
        let mut command = workspace::cargo();
        command.args(words.split(' '));
        command
    };
    let lints = "clippy --workspace --all-targets --all-features -- -D warnings";
    let mut doc = cargo("doc --workspace --no-deps --all-features --quiet");
    doc.env("RUSTDOCFLAGS", "-D warnings");
    let mut deny = tools::DENY.command(console)?;
    deny.args(["check", "bans", "licenses", "sources"]);
    Ok(vec![
        ("Format", cargo("fmt --all --check")),
        ("Lints", cargo(lints)),
        ("Documentation", doc),
        ("Dependencies", deny),
    ])
}
