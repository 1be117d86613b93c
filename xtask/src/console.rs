//! What a person sees: steps with their result and time, failures at the end; color on a terminal.
#![expect(
    clippy::print_stdout,
    reason = "this is the one module of xtask that prints"
)]

use std::io::{IsTerminal, Write};

use anyhow::{Error, Result};
use testkit::wait::Stopwatch;

/// Prints to standard output; in color if that is a terminal and `NO_COLOR` is not set.
#[derive(Debug)]
pub(crate) struct Console {
    color: bool,
    terminal: bool,
    steps: usize,
    failed: Vec<String>,
}

impl Console {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        // no-color.org: present and not empty.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            color: terminal && !plain,
            terminal,
            steps: 0,
            failed: Vec::new(),
        }
    }

    pub(crate) fn say(&self, text: &str) {
        println!("{text}");
        let _ = std::io::stdout().flush();
    }

    pub(crate) fn heading(&self, text: &str) {
        self.say(&format!("\n{}", self.paint(BOLD, text)));
    }

    pub(crate) fn failure(&self, error: &Error) {
        self.say(&format!("{} {error:#}", self.paint(RED, "✗")));
    }

    /// Runs a step, and prints its name, time, and what was found or why it failed.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<(T, String)>,
    ) -> Result<T> {
        if self.terminal {
            print!("  … {name}\r");
            let _ = std::io::stdout().flush();
        }
        let clock = Stopwatch::start();
        let outcome = work();
        let time = format!("{:.1} ms", clock.elapsed().as_secs_f64() * 1000.0);
        self.steps += 1;
        let (mark, detail) = match &outcome {
            Ok((_, detail)) => (self.paint(GREEN, "✓"), detail.clone()),
            Err(error) => {
                self.failed.push(name.to_owned());
                (self.paint(RED, "✗"), format!("{error:#}"))
            }
        };
        let clear = if self.terminal { "\x1b[2K" } else { "" };
        let time = self.paint(DIM, &format!("{time:>9}"));
        let line = format!("{clear}  {mark} {name:NAME_WIDTH$} {time}  {detail}");
        self.say(&line);
        Ok(outcome?.0)
    }

    /// Runs a step that yields nothing but what it found.
    pub(crate) fn check(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        self.step(name, || Ok(((), work()?)))
    }

    /// Prints which steps failed, and returns whether all went well.
    pub(crate) fn result(&self) -> bool {
        self.heading("Result");
        let (total, failed) = (self.steps, self.failed.len());
        let text = match failed {
            0 => self.paint(GREEN, &format!("  all {total} steps went well")),
            _ => self.paint(RED, &format!("  {failed} of {total} steps failed")),
        };
        self.say(&text);
        for name in &self.failed {
            self.say(&format!("  {} {name}", self.paint(RED, "✗")));
        }
        failed == 0
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

const NAME_WIDTH: usize = 58;
const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
