//! What a person sees: steps with their result and time, a table at the end; color on a terminal.
#![expect(
    clippy::print_stdout,
    reason = "this is the one module of xtask that prints"
)]

use std::io::{IsTerminal, Write};
use std::time::Duration;

use anyhow::{Error, Result};
use testkit::wait::Stopwatch;

/// Prints to standard output; in color if that is a terminal and `NO_COLOR` is not set.
#[derive(Debug)]
pub(crate) struct Console {
    color: bool,
    terminal: bool,
    chapter: &'static str,
    steps: Vec<Step>,
}

#[derive(Debug)]
struct Step {
    chapter: &'static str,
    name: String,
    /// What was found, or why it failed.
    outcome: Result<String, String>,
    took: Duration,
}

impl Console {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        // no-color.org: present and not empty.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            color: terminal && !plain,
            terminal,
            chapter: "",
            steps: Vec::new(),
        }
    }

    pub(crate) fn say(&self, text: &str) {
        println!("{text}");
        let _ = std::io::stdout().flush();
    }

    pub(crate) fn heading(&self, text: &str) {
        self.say(&format!("\n{}", self.paint(BOLD, text)));
    }

    /// Prints the heading of the steps that follow, which the table calls `name`.
    pub(crate) fn chapter(&mut self, name: &'static str, heading: &str) {
        self.heading(heading);
        self.chapter = name;
    }

    pub(crate) fn failure(&self, error: &Error) {
        self.say(&format!("{} {error:#}", self.paint(RED, "✗")));
    }

    /// Runs a step: prints its name, result and time, and remembers them for [`Console::table`].
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
        let result = work();
        let took = clock.elapsed();
        let (value, outcome) = match result {
            Ok((value, detail)) => (Ok(value), Ok(detail)),
            Err(error) => {
                let why = format!("{error:#}");
                (Err(error), Err(why))
            }
        };
        let step = Step {
            chapter: self.chapter,
            name: name.to_owned(),
            outcome,
            took,
        };
        self.print(&step);
        self.steps.push(step);
        value
    }

    /// Runs a step that yields nothing but what it found.
    pub(crate) fn check(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<String>,
    ) -> Result<()> {
        self.step(name, || Ok(((), work()?)))
    }

    /// Prints one line per step, and returns whether all went well.
    pub(crate) fn table(&self) -> bool {
        self.heading("Result");
        let widest = |text: fn(&Step) -> &str| {
            self.steps
                .iter()
                .map(|step| text(step).chars().count())
                .max()
                .unwrap_or_default()
        };
        let (chapter, name) = (widest(|step| step.chapter), widest(|step| &step.name));
        let rule = "─".repeat(chapter + name + 22);
        self.say(&format!("  {rule}"));
        for step in &self.steps {
            let result = match step.outcome {
                Ok(_) => self.paint(GREEN, "✓ ok"),
                Err(_) => self.paint(RED, "✗ FAILED"),
            };
            let time = millis(step.took);
            self.say(&format!(
                "  {:chapter$}  {:name$}  {time:>9}  {result}",
                step.chapter, step.name
            ));
        }
        self.say(&format!("  {rule}"));
        let failed = { self.steps.iter() }.filter(|step| step.outcome.is_err());
        let failed = failed.count();
        let total = self.steps.len();
        if failed == 0 {
            self.say(&self.paint(GREEN, &format!("  all {total} steps went well")));
        } else {
            self.say(&self.paint(RED, &format!("  {failed} of {total} steps failed")));
        }
        failed == 0
    }

    fn print(&self, step: &Step) {
        let clear = if self.terminal { "\x1b[2K" } else { "" };
        let time = self.paint(DIM, &format!("{:>9}", millis(step.took)));
        let (mark, detail) = match &step.outcome {
            Ok(detail) => (self.paint(GREEN, "✓"), detail),
            Err(why) => (self.paint(RED, "✗"), why),
        };
        self.say(&format!(
            "{clear}  {mark} {:NAME_WIDTH$} {time}  {detail}",
            step.name
        ));
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1000.0)
}

const NAME_WIDTH: usize = 58;
const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
