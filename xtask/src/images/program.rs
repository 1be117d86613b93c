//! What a program must be to go into an image by itself: small, static, without symbols.
//!
//! Reads the headers of the ELF file (System V ABI, chapter 4) and nothing else of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// Returns the size of a program, in bytes.
///
/// # Errors
/// When it is larger than `limit`, needs an interpreter, or carries a table of symbols.
pub(super) fn examine(path: &Path, limit: u64) -> Result<u64> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let elf = Elf::parse(&bytes).with_context(|| format!("{} is no program", path.display()))?;
    ensure!(
        !elf.interpreted,
        "it is not static: it names an interpreter"
    );
    ensure!(
        !elf.symbols,
        "it carries a table of symbols, which the release profile strips"
    );
    let size = bytes.len() as u64;
    ensure!(size <= limit, "{size} bytes, above the limit of {limit}");
    Ok(size)
}

/// What headers say.
#[derive(Debug, PartialEq, Eq)]
struct Elf {
    /// Whether another program loads it: it is linked dynamically.
    interpreted: bool,
    symbols: bool,
}

impl Elf {
    /// Reads the headers of a 64-bit little-endian file.
    fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.starts_with(b"\x7fELF\x02\x01").then_some(())?;
        let number = |at: usize, len: usize| -> Option<usize> {
            let field = bytes.get(at..at.checked_add(len)?)?;
            let mut value = field.iter().rev();
            value.try_fold(0_usize, |sum, byte| {
                sum.checked_mul(256)?.checked_add(usize::from(*byte))
            })
        };
        let any = |table: usize, size: usize, count: usize, kind: usize, wanted: usize| {
            (0..count).any(|entry| number(table + entry * size + kind, 4) == Some(wanted))
        };
        let (programs, sections) = (number(0x20, 8)?, number(0x28, 8)?);
        let interpreted = any(programs, number(0x36, 2)?, number(0x38, 2)?, 0, PT_INTERP);
        let symbols = any(sections, number(0x3a, 2)?, number(0x3c, 2)?, 4, SHT_SYMTAB);
        Some(Self {
            interpreted,
            symbols,
        })
    }
}

const PT_INTERP: usize = 3;
const SHT_SYMTAB: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_itself_is_neither_static_nor_stripped() {
        let own = std::env::current_exe().unwrap();
        let elf = Elf::parse(&fs::read(&own).unwrap());
        let expected = Elf {
            interpreted: true,
            symbols: true,
        };
        assert_eq!(elf, Some(expected));
        assert!(
            examine(&own, u64::MAX)
                .unwrap_err()
                .to_string()
                .contains("not static")
        );
    }

    #[test]
    fn other_file_is_no_program() {
        assert_eq!(Elf::parse(b"#!/bin/sh\n"), None);
        assert_eq!(Elf::parse(b"\x7fELF\x02\x01"), None);
    }
}
