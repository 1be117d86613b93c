//! What can be wrong with the files, each with the name of the file.

use std::io;
use std::path::PathBuf;

use rustls::pki_types::pem;

/// Why files cannot be used for TLS. A path is that of the file at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A certificate of a bundle, the first being 1, is none that can be trusted.
    #[error("certificate {1} of the CA bundle {0}")]
    Authority(PathBuf, usize, #[source] rustls::Error),
    /// The certificate cannot be used.
    #[error("using the certificate in {0}")]
    Certificate(PathBuf, #[source] rustls::Error),
    /// A certificate without a key, or a key without a certificate.
    #[error("{0} is given without the {1} that belongs to it")]
    Incomplete(PathBuf, &'static str),
    /// The private key is of a kind that is not known, or broken.
    #[error("using the private key in {0}")]
    Key(PathBuf, #[source] rustls::Error),
    /// Each is in order, but they do not belong together.
    #[error("the private key in {key} is not that of the certificate in {cert}")]
    KeyMismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// A certificate has expired.
    #[error("the certificate in {0} has expired")]
    Expired(PathBuf),
    /// A secret of this name was not delivered.
    #[error("the secret {0} is not there")]
    Missing(String),
    /// A certificate that was presented cannot be read.
    #[error("reading the names of a certificate")]
    Names(#[source] webpki::Error),
    /// The file holds no certificate in PEM.
    #[error("no PEM certificate in {0}")]
    NoCertificate(PathBuf),
    /// The file holds no private key in PEM.
    #[error("no PEM private key in {0}")]
    NoKey(PathBuf),
    /// A secret of this name is a certificate where authorities are needed, or the reverse.
    #[error("the secret {0} is of the other kind")]
    OtherKind(String),
    /// The file is not PEM (RFC 7468) throughout.
    #[error("reading PEM from {0}")]
    Pem(PathBuf, #[source] pem::Error),
    /// The file cannot be read.
    #[error("reading {0}")]
    Read(PathBuf, #[source] io::Error),
    /// Client certificates are asked for and no authority is named that they could be from.
    #[error("client certificates are required, and no CA bundle is given for them")]
    NoClientAuthority,
    /// The file is longer than any bundle should be, in bytes.
    #[error("{0} is longer than {1} bytes")]
    TooLong(PathBuf, u64),
    /// The authorities cannot judge client certificates.
    #[error("verifying client certificates by {0}")]
    Verifier(PathBuf, #[source] rustls::server::VerifierBuilderError),
    /// The cryptography lacks what the protocol needs.
    #[error("choosing TLS versions")]
    Versions(#[source] rustls::Error),
}
