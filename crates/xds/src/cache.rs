//! The last good resources, on disk: a gateway that restarts while its controller is down still
//! knows its routes.
//!
//! ```text
//!   magic and version (8) │ SHA-256 of the rest (32) │ protobuf: type, name, version, body, …
//! ```
//!
//! Written to a file beside and renamed, so that there is always one whole file. What cannot be
//! read is an error value: the caller warns and goes on without.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

use crate::resource::ResourceType;

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// It is not what was written: cut off or changed.
    #[error("the cache {path} is damaged")]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// It is no such cache, or one of another version.
    #[error("{path} is not a cache of this version")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("reading the cache {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A resource in it is not understood.
    #[error("a resource in the cache {path}")]
    Resource {
        /// The file.
        path: PathBuf,
        /// Which, and why not.
        #[source]
        source: crate::DecodeError,
    },
    /// The resources in it contradict each other.
    #[error("the resources in the cache {path}")]
    Table {
        /// The file.
        path: PathBuf,
        /// How.
        #[source]
        source: crate::TableError,
    },
    /// It is longer than any cache should be.
    #[error("the cache {path} is longer than {limit} octets")]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The bound, octets.
        limit: u64,
    },
}

/// A resource in the cache.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Entry {
    pub(crate) kind: ResourceType,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) body: Bytes,
}

#[derive(Clone, Eq, Message, PartialEq)]
struct CacheFile {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<CacheEntry>,
}

#[derive(Clone, Eq, Message, PartialEq)]
struct CacheEntry {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    version: String,
    #[prost(bytes = "bytes", tag = "4")]
    body: Bytes,
}

/// Reads a cache; `None` when there is no file.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<Entry>>, CacheError> {
    let Some(octets) = read_octets(path)? else {
        return Ok(None);
    };
    let foreign = || CacheError::Foreign {
        path: path.to_owned(),
    };
    let damaged = || CacheError::Damaged {
        path: path.to_owned(),
    };
    let rest = octets.strip_prefix(MAGIC).ok_or_else(foreign)?;
    let (sum, payload) = rest
        .split_first_chunk::<SHA256_OUTPUT_LEN>()
        .ok_or_else(damaged)?;
    if digest(&SHA256, payload).as_ref() != sum {
        return Err(damaged());
    }
    let file = CacheFile::decode(payload).map_err(|_| damaged())?;
    let entries = file.entries.into_iter().map(|entry| {
        let kind = ResourceType::from_type_url(&entry.type_url)?;
        Some(Entry {
            kind,
            name: entry.name,
            version: entry.version,
            body: entry.body,
        })
    });
    entries
        .collect::<Option<Vec<_>>>()
        .map(Some)
        .ok_or_else(foreign)
}

/// Writes a cache in the place of what is there.
pub(crate) fn write(path: &Path, entries: Vec<Entry>) -> io::Result<()> {
    let entries = entries.into_iter().map(|entry| CacheEntry {
        type_url: entry.kind.type_url().to_owned(),
        name: entry.name,
        version: entry.version,
        body: entry.body,
    });
    let file = CacheFile {
        entries: entries.collect(),
    };
    let payload = file.encode_to_vec();
    drop(file);
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let mut out = File::create(&beside)?;
    out.write_all(MAGIC)?;
    out.write_all(digest(&SHA256, &payload).as_ref())?;
    out.write_all(&payload)?;
    out.sync_all()?;
    drop(out);
    std::fs::rename(&beside, path)?;
    // The name as well, or a crash may leave the old file: no harm, but not what was promised.
    match path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
    {
        Some(parent) => File::open(parent)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn read_octets(path: &Path) -> Result<Option<Vec<u8>>, CacheError> {
    let failed = |source| CacheError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut octets = Vec::new();
    file.take(MAX_OCTETS + 1)
        .read_to_end(&mut octets)
        .map_err(failed)?;
    if u64::try_from(octets.len()).is_ok_and(|len| len <= MAX_OCTETS) {
        return Ok(Some(octets));
    }
    Err(CacheError::TooLong {
        path: path.to_owned(),
        limit: MAX_OCTETS,
    })
}

const MAGIC: &[u8] = b"RHIZXDS\x01";

/// 10,000 shoots come to some 20 MiB.
const MAX_OCTETS: u64 = 512 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use testkit::tempdir::TempDir;

    use super::*;

    fn entries() -> Vec<Entry> {
        ResourceType::ALL
            .into_iter()
            .map(|kind| Entry {
                kind,
                name: format!("name of {kind:?}"),
                version: "v".into(),
                body: Bytes::from_static(b"\0body\xff"),
            })
            .collect()
    }

    #[test]
    fn what_was_written_is_read_back_and_leaves_nothing_beside() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        assert_eq!(read(&path).unwrap(), None);
        write(&path, vec![]).unwrap();
        assert_eq!(read(&path).unwrap(), Some(vec![]));
        write(&path, entries()).unwrap();
        assert_eq!(read(&path).unwrap(), Some(entries()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn every_octet_is_guarded() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        write(&path, entries()).unwrap();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).unwrap();
            let error = read(&path).unwrap_err();
            let foreign = matches!(error, CacheError::Foreign { .. });
            assert_eq!(foreign, at < MAGIC.len(), "octet {at}: {error}");
            std::fs::write(&path, &good[..at]).unwrap();
            read(&path).unwrap_err();
        }
    }

    #[test]
    fn a_directory_is_no_cache() {
        let dir = TempDir::new("xds-cache").unwrap();
        assert!(matches!(read(dir.path()), Err(CacheError::Read { .. })));
        write(dir.path(), vec![]).unwrap_err();
    }
}
