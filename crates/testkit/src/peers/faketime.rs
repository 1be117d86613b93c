//! A program that sees another time of day: libfaketime between it and its C library.
//!
//! Only the time of day is another one. What measures durations (`CLOCK_MONOTONIC`) goes on as it
//! was, as when the machine's clock is set. Works for programs that are linked dynamically.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::command;

/// Has `program` see a time of day that is `behind` the machine's.
pub fn set_behind(program: &mut Command, behind: Duration) -> Result<()> {
    program.envs(self::behind(behind)?);
    Ok(())
}

/// Returns the environment in which a program sees a time of day that is `behind` the machine's.
pub fn behind(behind: Duration) -> Result<[(&'static str, String); 3]> {
    let mut faketime = Command::new("faketime");
    // Its directory depends on the architecture; the library is named as the wrapper names it.
    faketime.args(["-f", "+0", "printenv", "LD_PRELOAD"]);
    let library = command::run(&mut faketime)
        .context("faketime is missing; `cargo xtask test` installs it")?;
    Ok([
        ("LD_PRELOAD", library.trim_end().to_owned()),
        ("FAKETIME", format!("-{}", behind.as_secs())),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ])
}

#[cfg(all(test, feature = "peer-tests"))]
mod tests {
    use super::*;

    #[test]
    fn program_sees_a_time_that_is_behind() {
        let seconds = |behind: Option<Duration>| {
            let mut date = Command::new("date");
            date.arg("+%s");
            if let Some(behind) = behind {
                set_behind(&mut date, behind).unwrap();
            }
            let text = command::run(&mut date).unwrap();
            text.trim_end().parse::<u64>().unwrap()
        };
        let before = seconds(None);
        let shown = seconds(Some(Duration::from_secs(3600)));
        let after = seconds(None);
        assert!((before..=after).contains(&(shown + 3600)), "{shown}");
    }
}
