//! Reads flags: the command line over the file over the defaults.
//!
//! ```text
//!   args ──pflag's ways──▶ texts ──by kind──▶ values ─┐
//!   --config FILE ──yaml──▶ values, paths resolved ───┴─▶ S, and which flags were given by whom
//! ```
//!
//! Written as Go's pflag takes them: `--x v`, `--x=v`, `--bool`, `--bool=false`, `-v4`, `-v=4`,
//! lists separated by commas or repeated, and `_` for `-` in names. Checks that each value is of
//! its kind, not what values mean together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, builder::Str};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Number, Value};
use settings::{ConfigErrors, RelPath, yaml};

use super::FlagError;
use super::describe::{Flag, Kind, describe, text};

/// What a program's flags are.
pub(crate) trait Settings: Serialize + DeserializeOwned + JsonSchema + Default {
    /// What the program does.
    const ABOUT: &str;
    /// What follows the flags in `--help`.
    const EXAMPLES: &str;
    /// The program's name.
    const NAME: &str;
}

/// Flags as they were given.
#[derive(Debug)]
pub(crate) enum Read<S> {
    /// Help or version, to be printed.
    Print(String),
    /// Values to go on with.
    Values {
        flags: Box<S>,
        given: Given,
        check: bool,
    },
}

/// Which flags were given, and by whom.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// By name; the file where it was one.
    origins: BTreeMap<String, Option<PathBuf>>,
}

impl Given {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.origins.contains_key(flag)
    }

    /// The flag as whoever gave it knows it.
    pub(crate) fn shown(&self, flag: &str) -> String {
        match self.origins.get(flag) {
            Some(Some(file)) => format!("{}: {flag}", file.display()),
            Some(None) | None => format!("--{flag}"),
        }
    }
}

/// Reads `args`, the program's name first, and the file they name.
pub(crate) fn read<S: Settings>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<Read<S>, FlagError> {
    let flags = describe::<S>();
    let matches = match command::<S>(&flags).try_get_matches_from(args.into_iter().map(hyphens)) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => {
            let message = error.render().to_string();
            return Err(FlagError::Usage { message });
        }
        Err(error) => return Ok(Read::Print(error.render().to_string())),
    };
    let (mut values, mut given) = (Map::new(), Given::default());
    if let Some(path) = matches.get_one::<PathBuf>("config") {
        for (name, value) in from_file::<S>(path, &flags)? {
            given.origins.insert(name.clone(), Some(path.clone()));
            values.insert(name, value);
        }
    }
    let mut errors = ConfigErrors::new();
    for flag in &flags {
        if matches.value_source(&flag.name) != Some(ValueSource::CommandLine) {
            continue;
        }
        given.origins.insert(flag.name.clone(), None);
        match from_command_line::<S>(&matches, flag) {
            Ok(value) => drop(values.insert(flag.name.clone(), value)),
            Err((text, message)) => {
                errors.add(format!("--{}={text}", flag.name), message);
            }
        }
    }
    if !errors.is_empty() {
        return Err(FlagError::Values(errors));
    }
    match serde_json::from_value(Value::Object(values)) {
        Ok(flags) => Ok(Read::Values {
            flags: Box::new(flags),
            given,
            check: matches.get_flag("check"),
        }),
        Err(error) => {
            let message = error.to_string();
            Err(FlagError::Usage { message })
        }
    }
}

/// `_` as `-` in the name of a flag: klog's own names have the former.
fn hyphens(argument: OsString) -> OsString {
    let Some(rest) = argument.to_str().and_then(|text| text.strip_prefix("--")) else {
        return argument;
    };
    let (name, value) = rest.split_at(rest.find('=').unwrap_or(rest.len()));
    format!("--{}{value}", name.replace('_', "-")).into()
}

fn command<S: Settings>(flags: &[Flag]) -> Command {
    let config = Arg::new("config").long("config").value_name("FILE").help(
        "File (YAML) with flags as keys; the command line wins, paths are relative to the file",
    );
    let check = Arg::new("check")
        .long("check")
        .help("Validate the configuration and all it points to, print what is in effect, and exit");
    Command::new(S::NAME)
        .version(env!("CARGO_PKG_VERSION"))
        .about(S::ABOUT)
        .after_help(S::EXAMPLES)
        .args_override_self(true)
        .next_line_help(true)
        .arg(config.value_parser(clap::value_parser!(PathBuf)))
        .arg(check.action(ArgAction::SetTrue))
        .args(flags.iter().map(argument))
}

fn argument(flag: &Flag) -> Arg {
    let name = Str::from(flag.name.clone());
    let argument = Arg::new(name.clone())
        .long(name)
        .help(flag.help.clone())
        .hide(flag.hidden)
        .value_name(flag.value_name());
    let argument = match flag.default_text() {
        text if text.is_empty() => argument,
        text => argument.default_value(text),
    };
    let argument = match flag.name.as_str() {
        "v" => argument.short('v'),
        _ => argument,
    };
    match flag.kind {
        Kind::Bool => argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Kind::List => argument.action(ArgAction::Append).allow_hyphen_values(true),
        Kind::Duration
        | Kind::Integer
        | Kind::Number
        | Kind::Path
        | Kind::Size
        | Kind::Text
        | Kind::Word(_) => argument.allow_hyphen_values(true),
    }
}

/// The value of a flag of the command line, or its text and what is wrong with it.
fn from_command_line<S: Settings>(
    matches: &ArgMatches,
    flag: &Flag,
) -> Result<Value, (String, String)> {
    let texts: Vec<&str> = matches
        .get_many::<String>(&flag.name)
        .map(|texts| texts.map(String::as_str).collect())
        .unwrap_or_default();
    let last = texts.last().copied().unwrap_or_default();
    let value = match flag.kind {
        Kind::Bool => go_bool(last)
            .map(Value::Bool)
            .ok_or("true or false is expected"),
        Kind::Integer => integer(last).ok_or("a whole number is expected"),
        Kind::Number => number(last).ok_or("a number is expected"),
        Kind::List => Ok(list(&texts)),
        Kind::Duration | Kind::Path | Kind::Size | Kind::Text | Kind::Word(_) => {
            Ok(Value::from(last))
        }
    };
    let wrong = |message: String| (texts.join(","), message);
    let value = value.map_err(|message| wrong(message.to_owned()))?;
    let alone = Map::from_iter([(flag.name.clone(), value.clone())]);
    match serde_json::from_value::<S>(Value::Object(alone)) {
        Ok(_) => Ok(value),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// What Go's `strconv.ParseBool` takes.
fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

fn integer(text: &str) -> Option<Value> {
    text.parse::<i64>().ok().map(Value::from)
}

fn number(text: &str) -> Option<Value> {
    let number: f64 = text.parse().ok()?;
    Number::from_f64(number).map(Value::Number)
}

/// Elements of all occurrences; an empty text has none.
fn list(texts: &[&str]) -> Value {
    let elements = texts.iter().filter(|text| !text.is_empty());
    elements
        .flat_map(|text| text.split(','))
        .map(Value::from)
        .collect()
}

/// The keys that the file at `path` gives, with their values.
fn from_file<S: Settings>(
    path: &Path,
    flags: &[Flag],
) -> Result<BTreeMap<String, Value>, FlagError> {
    // Read as what it must be, so that errors have their line; and as what it is, to know which
    // keys were given. Values come from the former: `10` is text where text is expected.
    let typed: S = yaml::load(path)?;
    let keys: Map<String, Value> = yaml::load(path)?;
    let Ok(Value::Object(mut typed)) = serde_json::to_value(typed) else {
        return Ok(BTreeMap::new());
    };
    let mut values = BTreeMap::new();
    for flag in flags {
        if !keys.contains_key(&flag.name) {
            continue;
        }
        let mut value = typed.remove(&flag.name).unwrap_or_default();
        if flag.kind == Kind::Path {
            let written = text(&value);
            if !written.is_empty() {
                let resolved = RelPath::from(written.as_str()).resolve(path);
                value = Value::from(resolved.to_string_lossy().into_owned());
            }
        }
        values.insert(flag.name.clone(), value);
    }
    Ok(values)
}
