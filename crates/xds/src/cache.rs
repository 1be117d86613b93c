//! The last good resources on disk: a gateway that restarts while its controller is down still
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
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use prost::Message;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};

/// A cache that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the cache {}", path.display())]
pub struct CacheError {
    path: PathBuf,
    #[source]
    fault: CacheFault,
}

impl CacheError {
    pub(crate) fn new(path: &Path, fault: CacheFault) -> Self {
        let path = path.to_owned();
        Self { path, fault }
    }
}

/// Why a cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CacheFault {
    /// It is not what was written: cut off or changed.
    #[error("it is damaged")]
    Damaged,
    /// It is no such cache, or one of another version.
    #[error("it is not a cache of this version")]
    Foreign,
    /// It is of another server, or another gateway of it.
    #[error("it belongs to gateway {:?} of {:?}", _0.cluster, _0.server)]
    Other(Origin),
    /// It cannot be read.
    #[error("reading it")]
    Read(#[from] io::Error),
    /// A resource in it is not understood.
    #[error("decoding a resource of it")]
    Resource(#[from] crate::DecodeError),
    /// The resources in it contradict each other.
    #[error("building routes from it")]
    Table(#[from] crate::TableError),
    /// It is longer than any cache should be.
    #[error("it is longer than {MAX_CACHE_BYTES} bytes")]
    TooLong,
}

/// Whose resources a cache has.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Origin {
    server: String,
    cluster: String,
}

impl Origin {
    pub(crate) fn of(server: &impl ToString, cluster: &str) -> Self {
        Self {
            server: server.to_string(),
            cluster: cluster.to_owned(),
        }
    }
}

#[derive(Clone, Eq, Message, PartialEq)]
struct CacheFile {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(string, tag = "2")]
    server: String,
    #[prost(string, tag = "3")]
    cluster: String,
}

/// A resource in the cache.
#[derive(Clone, Eq, Message, PartialEq)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) version: String,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) body: Bytes,
}

/// Reads a cache, and when it was written or confirmed; `None` when there is no file.
pub(crate) fn read(
    path: &Path,
    origin: &Origin,
) -> Result<Option<(Vec<Entry>, SystemTime)>, CacheFault> {
    let Some((bytes, written)) = read_bytes(path)? else {
        return Ok(None);
    };
    let rest = bytes.strip_prefix(MAGIC).ok_or(CacheFault::Foreign)?;
    let (sum, payload) = rest
        .split_first_chunk::<SHA256_OUTPUT_LEN>()
        .ok_or(CacheFault::Damaged)?;
    if digest(&SHA256, payload).as_ref() != sum {
        return Err(CacheFault::Damaged);
    }
    let file = CacheFile::decode(payload).map_err(|_| CacheFault::Damaged)?;
    let found = Origin {
        server: file.server,
        cluster: file.cluster,
    };
    if found != *origin {
        return Err(CacheFault::Other(found));
    }
    Ok(Some((file.entries, written)))
}

/// Writes a cache in the place of what is there.
pub(crate) fn write(path: &Path, origin: &Origin, entries: Vec<Entry>) -> io::Result<()> {
    let file = CacheFile {
        entries,
        server: origin.server.clone(),
        cluster: origin.cluster.clone(),
    };
    let payload = file.encode_to_vec();
    drop(file);
    let beside = beside(path);
    let put = put(&beside, &payload).and_then(|()| std::fs::rename(&beside, path));
    if put.is_err() {
        // A partial file would only be in the way of the next write.
        let _ = std::fs::remove_file(&beside);
    }
    put?;
    // The name as well, or a crash may leave the old file: no harm, but not what was promised.
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

/// Sets a cache's time: what it holds was just confirmed.
pub(crate) fn touch(path: &Path) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_modified(SystemTime::now())
}

/// The file that a cache is written to before it is renamed. Two processes have two of them, while
/// one takes over from the other; in pods of their own all processes have the number 1.
fn beside(path: &Path) -> PathBuf {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let number = now.unwrap_or_default().as_nanos();
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}-{number}.new", std::process::id()));
    PathBuf::from(beside)
}

fn put(beside: &Path, payload: &[u8]) -> io::Result<()> {
    let mut out = File::create_new(beside)?;
    out.write_all(MAGIC)?;
    out.write_all(digest(&SHA256, payload).as_ref())?;
    out.write_all(payload)?;
    out.sync_all()
}

/// Removes what processes left that were killed while they wrote.
pub(crate) fn tidy(path: &Path) {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return;
    };
    let name = name.to_string_lossy();
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for file in files {
        let found = file.file_name();
        let found = found.to_string_lossy();
        let number = found
            .strip_prefix(&*name)
            .and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".new"));
        let is_number = |part: &str| part.parse::<u64>().is_ok();
        let ours = number.is_some_and(|number| number.split('-').all(is_number));
        let written = file.metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| written.elapsed().ok());
        if ours && age.is_some_and(|age| age > LEFT_OVER) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Age of a temporary file that no live process still writes.
const LEFT_OVER: Duration = Duration::from_secs(60);

fn read_bytes(path: &Path) -> Result<Option<(Vec<u8>, SystemTime)>, CacheFault> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let written = file.metadata()?.modified()?;
    let mut bytes = Vec::new();
    let len = file.take(MAX_CACHE_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(len).is_ok_and(|len| len <= MAX_CACHE_BYTES) {
        return Ok(Some((bytes, written)));
    }
    Err(CacheFault::TooLong)
}

const MAGIC: &[u8] = b"RHIZXDS\x01";

/// 10,000 shoots come to some 20 MiB.
const MAX_CACHE_BYTES: u64 = 512 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use testkit::tempdir::TempDir;

    use super::*;
    use crate::resource::ResourceType;

    fn origin() -> Origin {
        Origin::of(&"https://a:1", "blue")
    }

    fn entries() -> Vec<Entry> {
        ResourceType::ALL
            .into_iter()
            .map(|kind| Entry {
                type_url: kind.type_url().to_owned(),
                name: format!("name of {kind:?}"),
                version: "v".into(),
                body: Bytes::from_static(b"\0body\xff"),
            })
            .collect()
    }

    #[test]
    fn cache_round_trip_leaves_no_temporary_file() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        let there = || read(&path, &origin()).unwrap().map(|(entries, _)| entries);
        assert_eq!(there(), None);
        write(&path, &origin(), vec![]).unwrap();
        assert_eq!(there(), Some(vec![]));
        write(&path, &origin(), entries()).unwrap();
        assert_eq!(there(), Some(entries()));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn cache_of_another_server_is_refused() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        write(&path, &origin(), entries()).unwrap();
        for (server, cluster) in [("https://b:1", "blue"), ("https://a:1", "green")] {
            let error = read(&path, &Origin::of(&server, cluster)).unwrap_err();
            assert!(matches!(error, CacheFault::Other(_)), "{error}");
        }
    }

    #[test]
    fn stale_cache_files_are_removed() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        // Another process writes it, which has the same number in a pod of its own.
        let other = beside(&path);
        std::fs::write(&other, "half").unwrap();
        write(&path, &origin(), entries()).unwrap();
        assert!(other.exists());
        let old = ["cache.4711.new", "cache.1-17.new"];
        let old = old.map(|name| dir.write(name, "half").unwrap());
        let kept = [
            "cache.new",
            "other.1-17.new",
            "cache.2-17.new",
            "cache.1-x.new",
        ];
        for name in kept {
            dir.write(name, "").unwrap();
        }
        let long_ago = SystemTime::now() - 2 * LEFT_OVER;
        for path in &old {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(long_ago).unwrap();
        }
        tidy(&path);
        assert!(old.iter().all(|path| !path.exists()));
        assert!(kept.iter().all(|name| dir.join(name).exists()) && path.exists());
    }

    #[test]
    fn cache_checksum_covers_every_byte() {
        let dir = TempDir::new("xds-cache").unwrap();
        let path = dir.join("cache");
        write(&path, &origin(), entries()).unwrap();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).unwrap();
            let error = read(&path, &origin()).unwrap_err();
            let foreign = matches!(error, CacheFault::Foreign);
            assert_eq!(foreign, at < MAGIC.len(), "byte {at}: {error}");
            std::fs::write(&path, &good[..at]).unwrap();
            read(&path, &origin()).unwrap_err();
        }
    }

    #[test]
    fn a_directory_is_no_cache() {
        let dir = TempDir::new("xds-cache").unwrap();
        let error = read(dir.path(), &origin()).unwrap_err();
        assert!(matches!(error, CacheFault::Read(_)), "{error}");
        write(dir.path(), &origin(), vec![]).unwrap_err();
    }
}
