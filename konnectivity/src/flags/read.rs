//! Reads flags with clap: the command line over the file over the defaults.
//!
//! ```text
//!   args ──────────────▶ clap: what the command line gives
//!   --config FILE ─yaml─▶ --key=value for each other key, each checked at its line
//!   both ──────────────▶ clap: S, and which flags were given where
//! ```
//!
//! The syntax is that of Go's pflag: `--x v`, `--x=v`, `--bool`, `--bool=false`, `-v4`, `-v=4`,
//! lists by commas or repetition, and `_` for `-` in names. Checks each value alone, not what
//! values mean together.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command, Parser, value_parser};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use settings::{ByteSize, GoDuration, RelPath, yaml};

use super::FlagError;
use super::shared::{LogFlags, RunFlags};

/// The flags of a program.
pub(crate) trait Flags: Parser + Serialize + JsonSchema {
    fn run(&self) -> &RunFlags;

    fn log(&self) -> &LogFlags;

    /// All flags that are lists.
    fn lists(&mut self) -> Vec<&mut Vec<String>>;

    /// What is in effect, without secrets, such that it can be given as the file.
    fn effective(&self) -> Result<Value, serde_json::Error> {
        settings::redact(self)
    }
}

/// Flags as they were given.
#[derive(Debug)]
pub(crate) enum Read<S> {
    /// Help or version, to be printed.
    Print(String),
    /// Values to go on with.
    Values { flags: Box<S>, given: Given },
}

/// Which flags were given, and where: a file, or none for the command line.
#[derive(Debug, Default)]
pub(crate) struct Given(BTreeMap<String, Option<PathBuf>>);

impl Given {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.0.contains_key(flag)
    }

    pub(crate) fn in_file(&self, flag: &str) -> bool {
        self.0.get(flag).is_some_and(Option::is_some)
    }

    /// The flag as it was given.
    pub(crate) fn shown(&self, flag: &str) -> String {
        match self.0.get(flag) {
            Some(Some(file)) => format!("{}: {flag}", file.display()),
            Some(None) | None => format!("--{flag}"),
        }
    }

    /// Returns a warning of all flags that were given other than their defaults and do nothing.
    pub(crate) fn without_effect<S: Flags>(&self, flags: &S) -> Option<String> {
        let values = serde_json::to_value(flags).unwrap_or_default();
        let defaults = defaults::<S>();
        let idle: Vec<_> = command::<S>()
            .get_arguments()
            .filter(|arg| help(arg).starts_with(NO_EFFECT))
            .filter_map(Arg::get_long)
            .filter(|flag| self.has(flag) && values.get(flag) != defaults.get(*flag))
            .map(|flag| self.shown(flag))
            .collect();
        (!idle.is_empty()).then(|| format!("accepted, but without effect: {}", idle.join(", ")))
    }
}

/// How the help of flags begins that do nothing.
pub(crate) const NO_EFFECT: &str = "Accepted, has no effect";

/// Reads `args`, the program's name first, and the file they name.
pub(crate) fn read<S: Flags>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<Read<S>, FlagError> {
    let command = command::<S>();
    let mut args: Vec<_> = args.into_iter().map(hyphens).collect();
    let matches = match command.clone().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => return Err(malformed(&command, &args, &error)),
        Err(error) => return Ok(Read::Print(error.render().to_string())),
    };
    let on_command_line =
        |arg: &&Arg| matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    let named = command.get_arguments().filter(on_command_line);
    let named = named.filter_map(Arg::get_long);
    let mut given = Given(named.map(|flag| (flag.to_owned(), None)).collect());
    if let Some(path) = matches.get_one::<PathBuf>("config") {
        let FileFlags::<S>(entries, _) = yaml::load(path)?;
        let entries = entries.into_iter().filter(|(flag, _)| !given.has(flag));
        let entries: Vec<_> = entries.collect();
        for (flag, values) in entries {
            let is_path = (command.get_arguments())
                .any(|arg| arg.get_long() == Some(&*flag) && kind(arg) == "FILE");
            let texts = values.into_iter().map(|text| match text.as_str() {
                text if is_path && !text.is_empty() => {
                    let resolved = RelPath::from(text).resolve(path);
                    resolved.to_string_lossy().into_owned()
                }
                _ => text,
            });
            args.extend(texts.map(|text| format!("--{flag}={text}").into()));
            given.0.insert(flag, Some(path.clone()));
        }
    }
    let matches = command.try_get_matches_from(args);
    let flags = matches.and_then(|matches| S::from_arg_matches(&matches));
    let mut flags = flags.map_err(|error| FlagError::usage(&error))?;
    for list in flags.lists() {
        // `--list=` is the empty list.
        if matches!(list.as_slice(), [only] if only.is_empty()) {
            list.clear();
        }
    }
    let flags = Box::new(flags);
    Ok(Read::Values { flags, given })
}

/// What is wrong with `args`: clap stops at the `first`, so each flag is tried by itself.
fn malformed(command: &Command, args: &[OsString], first: &clap::Error) -> FlagError {
    let fault = |args: &[OsString]| {
        let args = std::iter::once(OsString::new()).chain(args.iter().cloned());
        command.clone().try_get_matches_from(args).err()
    };
    let flags = args.iter().enumerate().skip(1);
    let flags = flags.filter(|(_, arg)| arg.to_str().is_some_and(|arg| arg.starts_with("--")));
    let faults = flags.filter_map(|(at, arg)| {
        // Its value may be the next argument.
        let with_value = || fault(args.get(at..at + 2).unwrap_or_default());
        let error = fault(std::slice::from_ref(arg))?;
        let error = match error.kind() == ErrorKind::InvalidValue && at + 1 < args.len() {
            true => with_value()?,
            false => error,
        };
        let message = error.use_stderr().then(|| error.to_string())?;
        message.lines().next().map(str::to_owned)
    });
    let faults: Vec<_> = faults.collect();
    match faults.as_slice() {
        [] | [_] => FlagError::usage(first),
        several => FlagError::Usage(several.join("\n")),
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

/// The program's command line in Go's syntax.
pub(crate) fn command<S: Flags>() -> Command {
    S::command().mut_args(|arg| {
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            let default = arg.get_default_values().first().cloned();
            return arg
                .action(ArgAction::Set)
                .value_parser(go_bool)
                .value_name("BOOL")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .default_value(default.unwrap_or_else(|| "false".into()));
        }
        let arg = match kind(&arg) {
            name if matches!(arg.get_action(), ArgAction::Set) => arg.value_name(name),
            _ => arg.value_name("LIST").value_delimiter(','),
        };
        let unset = arg.get_default_values().iter().all(|text| text.is_empty());
        arg.allow_hyphen_values(true)
            .hide_possible_values(true)
            .hide_default_value(unset)
    })
}

/// What Go's `strconv.ParseBool` accepts.
fn go_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("true or false is expected"),
    }
}

/// What represents the value of a flag in help.
fn kind(arg: &Arg) -> String {
    let words: Vec<_> = arg.get_possible_values();
    if !words.is_empty() {
        let words: Vec<_> = words.iter().map(|word| word.get_name()).collect();
        return words.join("|");
    }
    let names = [
        (ValueParser::from(value_parser!(ByteSize)), "SIZE"),
        (ValueParser::from(value_parser!(GoDuration)), "DURATION"),
        (value_parser!(PathBuf), "FILE"),
        (ValueParser::from(value_parser!(RelPath)), "FILE"),
        (value_parser!(String), "TEXT"),
    ];
    let parser = arg.get_value_parser().type_id();
    let name = names.iter().find(|(own, _)| own.type_id() == parser);
    name.map_or("N", |(_, name)| name).to_owned()
}

/// The help text of a flag.
pub(crate) fn help(arg: &Arg) -> String {
    arg.get_help().map(ToString::to_string).unwrap_or_default()
}

/// All flags that are keys of the file, with their defaults.
pub(crate) fn defaults<S: Flags>() -> Map<String, Value> {
    let matches = command::<S>().try_get_matches_from([""]);
    let flags = matches.and_then(|matches| S::from_arg_matches(&matches));
    let flags = flags
        .ok()
        .and_then(|flags| serde_json::to_value(flags).ok());
    match flags {
        Some(Value::Object(flags)) => flags,
        _ => Map::new(),
    }
}

/// What a file gives: flags with their values as texts, each accepted by clap.
struct FileFlags<S>(Vec<(String, Vec<String>)>, PhantomData<S>);

impl<'de, S: Flags> Deserialize<'de> for FileFlags<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (command, keys) = (command::<S>(), defaults::<S>());
        let flags = deserializer.deserialize_map(FileVisitor { command, keys })?;
        Ok(Self(flags, PhantomData))
    }
}

struct FileVisitor {
    command: Command,
    keys: Map<String, Value>,
}

impl<'de> Visitor<'de> for FileVisitor {
    type Value = Vec<(String, Vec<String>)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("flags and their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let known = |key: &str| match self.keys.contains_key(key) {
            true => Ok(()),
            false => Err(format!("unknown key `{key}`; keys are the flags of --help")),
        };
        let mut flags = Vec::new();
        let key = Texts {
            list: false,
            check: &known,
        };
        while let Some(flag) = map.next_key_seed(key)? {
            let flag = flag.concat();
            let texts = map.next_value_seed(Texts {
                list: matches!(self.keys.get(&flag), Some(Value::Array(_))),
                check: &|text| self.check(&flag, text),
            })?;
            flags.push((flag, texts));
        }
        Ok(flags)
    }
}

impl FileVisitor {
    /// Whether clap accepts `text` as the value of `flag`.
    fn check(&self, flag: &str, text: &str) -> Result<(), String> {
        let argument = format!("--{flag}={text}");
        let Err(error) = self.command.clone().try_get_matches_from(["", &argument]) else {
            return Ok(());
        };
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default();
        Err(line.trim_start_matches("error: ").to_owned())
    }
}

/// Reads a scalar, or a list of them, as they are written; what `check` rejects is an error at its
/// line. An empty list is one empty text, which is how a flag says it.
#[derive(Clone, Copy)]
struct Texts<'a> {
    list: bool,
    check: &'a dyn Fn(&str) -> Result<(), String>,
}

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = Vec<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<String>, D::Error> {
        match self.list {
            true => deserializer.deserialize_seq(self),
            false => deserializer.deserialize_str(self),
        }
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.list { "a list" } else { "text" })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<String>, E> {
        (self.check)(text).map_err(E::custom)?;
        Ok(vec![text.to_owned()])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
        let mut texts = Vec::new();
        while let Some(text) = list.next_element_seed(Texts {
            list: false,
            ..self
        })? {
            texts.extend(text);
        }
        if texts.is_empty() {
            texts.push(String::new());
        }
        Ok(texts)
    }
}
