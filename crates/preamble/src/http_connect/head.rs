//! What request and response heads have in common: lines, and the block of fields.
//!
//! Judges bytes in the order they arrive; a line is interpreted once it is complete, so that a
//! prefix never gets another verdict than the whole.

use std::str;

use super::HeadError::{self, Malformed, TooLong};
use crate::Progress;

/// Most header fields a head may have.
pub const MAX_FIELDS: usize = 100;

/// Returns whether parsing `input` can say more than parsing its first `seen` bytes did.
///
/// A head gets a new verdict mostly where a line ends. Skipping the other segments makes the cost
/// of a head that arrives byte by byte linear, at the price of noticing a stray control
/// character only at the end of its line. `limit` is the one given to the parser.
#[must_use]
pub fn worth_parsing(input: &[u8], seen: usize, limit: usize) -> bool {
    // Short inputs are always looked at: whether this is HTTP at all shows in the first bytes.
    seen < 64 || input.len() >= limit || input.get(seen..).unwrap_or_default().contains(&b'\n')
}

/// Runs `read` on at most `limit` bytes; `None` from it means that the head goes on.
pub(super) fn bounded<'a, T>(
    input: &'a [u8],
    limit: usize,
    shortest: usize,
    read: impl FnOnce(&'a [u8]) -> Result<Option<(T, &'a [u8])>, HeadError>,
) -> Result<Progress<T>, HeadError> {
    let view = input.get(..limit).unwrap_or(input);
    match read(view)? {
        Some((value, rest)) => Ok(Progress::Done {
            value,
            consumed: view.len() - rest.len(),
        }),
        None if view.len() >= limit => Err(TooLong),
        None => {
            let missing = END.len()
                - (1..END.len())
                    .rev()
                    .find(|&n| ends_with_first(view, n))
                    .unwrap_or(0);
            Ok(Progress::Need {
                at_least: (view.len() + missing).max(shortest).min(limit),
            })
        }
    }
}

fn ends_with_first(view: &[u8], n: usize) -> bool {
    END.get(..n).is_some_and(|start| view.ends_with(start))
}

/// Splits off the first line, without its CRLF; `None` when it is cut short.
pub(super) fn next_line(input: &[u8]) -> Result<Option<(&str, &[u8])>, HeadError> {
    for (at, &byte) in input.iter().enumerate() {
        match byte {
            b'\r' => {
                let (line, rest) = input.split_at_checked(at).unwrap_or((input, &[]));
                return match rest {
                    [_, b'\n', rest @ ..] => {
                        let line = str::from_utf8(line).map_err(|_| Malformed("not UTF-8"))?;
                        Ok(Some((line, rest)))
                    }
                    [_] => Ok(None),
                    _ => Err(Malformed("CR without LF")),
                };
            }
            b'\n' => return Err(Malformed("LF without CR")),
            b'\t' | 0x20..=0x7e | 0x80.. => {}
            _ => return Err(Malformed("control character")),
        }
    }
    Ok(None)
}

/// The fields of a head, all of them well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields<'a> {
    /// `name: value` lines, each with its CRLF.
    block: &'a str,
}

impl<'a> Fields<'a> {
    /// Reads fields up to and with the empty line; `None` when the block is cut short.
    pub(super) fn read(input: &'a [u8]) -> Result<Option<(Self, &'a [u8])>, HeadError> {
        let mut rest = input;
        for _ in 0..=MAX_FIELDS {
            let Some((line, next)) = next_line(rest)? else {
                return Ok(None);
            };
            if line.is_empty() {
                let block = input.get(..input.len() - rest.len()).unwrap_or_default();
                let block = str::from_utf8(block).map_err(|_| Malformed("not UTF-8"))?;
                return Ok(Some((Self { block }, next)));
            }
            if line.starts_with([' ', '\t']) {
                return Err(Malformed("folded header line"));
            }
            let (name, _) = line
                .split_once(':')
                .ok_or(Malformed("header line without colon"))?;
            if !is_token(name) {
                return Err(Malformed("header name"));
            }
            rest = next;
        }
        Err(TooLong)
    }

    /// Names and values in the order sent; whitespace around values is not part of them.
    pub(super) fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        // Neither half of a CRLF is in the block without the other, and one byte is found sooner.
        self.block.split_terminator('\n').filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name, value.trim_matches([' ', '\t', '\r'])))
        })
    }

    /// The values of all fields called `name`, in whatever letter case.
    pub(super) fn values<'n>(self, name: &'n str) -> impl Iterator<Item = &'a str> + use<'a, 'n> {
        self.iter()
            .filter(move |(candidate, _)| candidate.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }
}

/// RFC 9110 §5.6.2.
pub(super) fn is_token(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(is_tchar)
}

pub(super) fn is_tchar(byte: u8) -> bool {
    TCHARS & (1 << byte.min(127)) != 0
}

/// A bit for each byte of a token; that of 127, DEL, is none.
const TCHARS: u128 = {
    let mut bits = 0;
    let mut byte = 0;
    while byte < 127_u8 {
        let delimiter = matches!(
            byte,
            b'"' | b'(' | b')' | b',' | b'/' | b':'..=b'@' | b'['..=b']' | b'{' | b'}'
        );
        if byte.is_ascii_graphic() && !delimiter {
            bits |= 1 << byte;
        }
        byte += 1;
    }
    bits
};

/// Visible ASCII.
pub(super) fn is_visible(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns whether `word` has only the bytes of RFC 3986 §3.2.2 and §3.2.3, host and port, without
/// judging their arrangement: no `/`, `@`, `?` or `#`, so that no program reads a path or a
/// user into it.
#[must_use]
pub fn is_host(word: &str) -> bool {
    word.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(&byte))
}

const END: &[u8] = b"\r\n\r\n";
