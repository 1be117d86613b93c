//! A process of load, from where it was started.
//!
//! ```text
//! start ─▶ hear ─▶ go_on ─▶ go_on ─▶ hear      lines by its standard input and output
//! ```
//!
//! It bounds its own steps, and ends when its input does: waiting for a line of it ends.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use serde::de::DeserializeOwned;
use testkit::netns::Place;

use super::load::Hold;

pub(super) struct Load {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Load {
    pub(super) fn start(place: Place<'_>, hold: &Hold) -> Result<Self> {
        let own = std::env::current_exe().context("asking where we are")?;
        let mut command = place.command(own);
        command.arg("hold");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting a process of load")?;
        let output = child.stdout.take().context("a process without output")?;
        let mut load = Self {
            input: child.stdin.take(),
            output: BufReader::new(output),
            child,
        };
        load.say(&serde_json::to_string(hold)?)?;
        Ok(load)
    }

    /// Has it open new connections at first, then look at all that is held once more.
    pub(super) fn go_on(&mut self) -> Result<()> {
        self.say("")
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("a process without input")?;
        let said = writeln!(input, "{line}").and_then(|()| input.flush());
        said.context("talking to a process of load")
    }

    /// Waits for what it says next: how many connections are held, then its [`Outcome`].
    ///
    /// [`Outcome`]: super::load::Outcome
    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let count = self.output.read_line(&mut line);
        let count = count.context("listening to a process of load")?;
        ensure!(count > 0, "a process of load has ended");
        serde_json::from_str(&line).with_context(|| format!("a process of load said {line:?}"))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
