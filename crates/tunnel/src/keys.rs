//! Keys of WireGuard: private, public and preshared ones, as text and in files.

use zeroize::Zeroizing;

/// A private key. Never shown.
#[derive(Clone)]
pub struct PrivateKey(Zeroizing<[u8; 32]>);

/// A public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

/// A key that two peers share beside their own ones. Never shown.
#[derive(Clone)]
pub struct PresharedKey(Zeroizing<[u8; 32]>);

impl std::fmt::Display for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02x?}", self.0)
    }
}

impl PrivateKey {
    /// Takes the octets of a key.
    #[must_use]
    pub fn from_octets(octets: [u8; 32]) -> Self {
        Self(Zeroizing::new(octets))
    }

    /// Returns the octets.
    #[must_use]
    pub fn octets(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PublicKey {
    /// Takes the octets of a key.
    #[must_use]
    pub fn from_octets(octets: [u8; 32]) -> Self {
        Self(octets)
    }

    /// Returns the octets.
    #[must_use]
    pub fn octets(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PresharedKey {
    /// Takes the octets of a key.
    #[must_use]
    pub fn from_octets(octets: [u8; 32]) -> Self {
        Self(Zeroizing::new(octets))
    }

    /// Returns the octets.
    #[must_use]
    pub fn octets(&self) -> &[u8; 32] {
        &self.0
    }
}
