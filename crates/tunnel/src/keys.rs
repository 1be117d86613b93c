//! Keys of WireGuard: private, public and preshared ones, as text and in files.
//!
//! ```text
//!   generate ─▶ PrivateKey ─ write_new ─▶ file ─ PrivateKey::read ─▶ PrivateKey ─ public ─▶ PublicKey
//!                                              PresharedKey::read ─▶ PresharedKey   "base64" ─┘
//! ```
//!
//! As text a key is its 32 bytes in base64, as the programs `wg genkey`, `wg pubkey` and
//! `wg genpsk` write it. Private and preshared keys are overwritten when they are dropped, and no
//! error, log line or `Debug` shows any part of them. Public keys are not secret, but let anyone
//! knows a server's make it work; so `Debug` shows only their beginning.

use std::fmt::{self, Debug, Display};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519;
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// Bytes of every key.
pub const KEY_LEN: usize = 32;

/// Characters of a key as text.
const TEXT_LEN: usize = 44;

/// Where a file is too long: there may be white space behind the key, as editors leave it.
const FILE_LEN: usize = 64;

/// Declares a key that is secret.
macro_rules! secret_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        pub struct $name(Zeroizing<[u8; KEY_LEN]>);

        impl $name {
            /// Takes the bytes of a key.
            #[must_use]
            pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
                Self(Zeroizing::new(bytes))
            }

            /// Returns the bytes.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
                &self.0
            }

            /// Reads a key from a file: one line of base64. Whether that line ends is all the same.
            /// When all users may read the file, a warning is logged.
            ///
            /// # Errors
            ///
            /// [`KeyError::Read`], [`KeyError::Content`].
            pub fn read(path: &Path) -> Result<Self, KeyError> {
                read(path).map(Self)
            }
        }

        impl Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(..)"))
            }
        }

        impl FromStr for $name {
            type Err = KeyTextError;

            fn from_str(text: &str) -> Result<Self, KeyTextError> {
                secret_bytes(text.as_bytes()).map(Self)
            }
        }
    };
}

secret_key! {
    /// A private key.
    #[derive(Clone)]
    PrivateKey
}

secret_key! {
    /// A key that two ends share beside their own ones.
    #[derive(Clone, PartialEq, Eq)]
    PresharedKey
}

impl PrivateKey {
    /// Returns the public key that belongs to it.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.secret()).to_bytes())
    }

    /// Returns it as the cryptography wants it; that copy is overwritten when dropped, too.
    pub(crate) fn secret(&self) -> x25519::StaticSecret {
        x25519::StaticSecret::from(*self.0)
    }
}

/// A public key that a secret can be agreed on with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; KEY_LEN]);

impl PublicKey {
    /// Takes the bytes of a key without looking at them.
    pub(crate) fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl TryFrom<[u8; KEY_LEN]> for PublicKey {
    type Error = KeyTextError;

    /// # Errors
    ///
    /// [`KeyTextError::Weak`] for the few keys that lead to the same secret whatever they are
    /// combined with, zero among them.
    fn try_from(bytes: [u8; KEY_LEN]) -> Result<Self, KeyTextError> {
        let any = x25519::StaticSecret::from([0x5a; KEY_LEN]);
        let agreed = any.diffie_hellman(&x25519::PublicKey::from(bytes));
        let key = agreed.was_contributory().then_some(Self(bytes));
        key.ok_or(KeyTextError::Weak)
    }
}

impl Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.to_string();
        write!(f, "PublicKey({}…)", text.get(..6).unwrap_or_default())
    }
}

impl Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl Serialize for PublicKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        settings::text::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        settings::text::deserialize(deserializer)
    }
}

impl FromStr for PublicKey {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        Self::try_from(*decode(text.as_bytes())?)
    }
}

/// Returns a new private key.
///
/// # Errors
///
/// [`KeyError::Random`] when the system has no random numbers.
pub fn generate() -> Result<PrivateKey, KeyError> {
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    let filled = SystemRandom::new().fill(bytes.as_mut_slice());
    filled.map_err(|_| KeyError::Random)?;
    // The bits that X25519 sets anyway (RFC 7748 §5), so that the file looks like `wg genkey`'s.
    bytes[0] &= 0xf8;
    bytes[KEY_LEN - 1] = bytes[KEY_LEN - 1] & 0x7f | 0x40;
    Ok(PrivateKey(bytes))
}

/// Makes a private key, writes it to `path`, which must not exist, and returns its public key.
///
/// # Errors
///
/// Those of [`generate`] and [`write_new`]; no file was left behind.
pub fn keygen(path: &Path) -> Result<PublicKey, KeyError> {
    let key = generate()?;
    write_new(path, &key)?;
    Ok(key.public())
}

/// Writes a key to a file that only its owner may read. The file is there whole or not at all.
///
/// # Errors
///
/// - [`KeyError::Exists`]: there is something of that name, which stays as it is;
/// - [`KeyError::Random`]: the system has no random numbers;
/// - [`KeyError::Write`]: an error of the system, also of a file system without hard links.
pub fn write_new(path: &Path, key: &PrivateKey) -> Result<(), KeyError> {
    let failed = |source| KeyError::Write(path.to_owned(), source);
    let mut random = [0; 8];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| KeyError::Random)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let draft = path.with_file_name(format!(".{name}.{:016x}", u64::from_ne_bytes(random)));
    write_draft(&draft, key).map_err(failed)?;
    // Unlike renaming, this does not replace what is there.
    let linked = fs::hard_link(&draft, path);
    // A draft that is left behind is harmless: only its owner can read it.
    let _ = fs::remove_file(&draft);
    linked.map_err(|source| {
        if source.kind() == io::ErrorKind::AlreadyExists {
            KeyError::Exists(path.to_owned())
        } else {
            failed(source)
        }
    })
}

fn write_draft(draft: &Path, key: &PrivateKey) -> io::Result<()> {
    let mut text = Zeroizing::new([b'\n'; TEXT_LEN + 1]);
    let encoded = STANDARD.encode_slice(key.as_bytes(), text.as_mut_slice());
    encoded.map_err(io::Error::other)?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(draft)?;
    let written = file.write_all(text.as_slice());
    let written = written.and_then(|()| file.sync_all());
    if written.is_err() {
        let _ = fs::remove_file(draft); // the first error matters more
    }
    written
}

fn read(path: &Path) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyError> {
    let failed = |source| KeyError::Read(path.to_owned(), source);
    let file = File::open(path).map_err(failed)?;
    // It never grows, which would leave a copy of the key in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * FILE_LEN));
    let mut limited = (&file).take(FILE_LEN as u64);
    limited.read_to_end(&mut text).map_err(failed)?;
    // The group may: that is how a pod's user reads a mounted secret.
    if file.metadata().is_ok_and(|meta| meta.mode() & 0o007 != 0) {
        tracing::warn!(path = %path.display(), "all users may read or write this key");
    }
    let fits = text.len() < FILE_LEN;
    let content = if fits { text.trim_ascii_end() } else { &[] };
    secret_bytes(content).map_err(|source| KeyError::Content(path.to_owned(), source))
}

/// Decodes a key that must not be zero.
fn secret_bytes(text: &[u8]) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyTextError> {
    let bytes = decode(text)?;
    let some = bytes.iter().any(|byte| *byte != 0);
    some.then_some(bytes).ok_or(KeyTextError::Weak)
}

fn decode(text: &[u8]) -> Result<Zeroizing<[u8; KEY_LEN]>, KeyTextError> {
    // A multiple of three: what the decoder wants to have, although the last byte stays unused.
    let mut bytes = Zeroizing::new([0; KEY_LEN + 1]);
    if text.len() != TEXT_LEN {
        return Err(KeyTextError::Malformed);
    }
    let len = STANDARD.decode_slice(text, bytes.as_mut_slice());
    match (len, bytes.first_chunk()) {
        (Ok(KEY_LEN), Some(key)) => Ok(Zeroizing::new(*key)),
        _ => Err(KeyTextError::Malformed),
    }
}

/// Why a key's file could not be used. None shows what is in the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// What is in the file is no key.
    #[error("{} holds no key", .0.display())]
    Content(PathBuf, #[source] KeyTextError),
    /// A file would have been overwritten.
    #[error("{} exists", .0.display())]
    Exists(PathBuf),
    /// The system has no random numbers.
    #[error("the system has no random numbers")]
    Random,
    /// The file could not be read.
    #[error("reading the key in {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The file could not be written.
    #[error("writing a key to {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
}

/// Why a text is no key. Does not show the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyTextError {
    /// Not 32 bytes in base64.
    #[error("a key is 44 characters of base64")]
    Malformed,
    /// A key that protects nothing.
    #[error("this key protects nothing")]
    Weak,
}

#[cfg(test)]
mod tests;
