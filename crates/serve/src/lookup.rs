//! Single DNS look-ups: the client that asks by the host's configuration, and why a look-up failed.
//!
//! ```text
//!     name ─▶ LookupClient ─▶ /etc/hosts, else search domains and servers of /etc/resolv.conf ─▶ addresses
//! ```
//!
//! A name in the hosts file is asked for nowhere else, as with the C library: one with an address of one
//! family must not wait for a server that has none of the other. Keeps no name resolved (`resolve` does)
//! and bounds no time: that is the caller's.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{IntoName, Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver};
use telemetry::lock;
use tokio::time::Instant;

/// How long the host's configuration is used before a failed look-up has it read again.
const CONFIGURATION_AGE: Duration = Duration::from_secs(5);

/// Addresses of one answer that are used.
pub(crate) const MAX_ADDRESSES: usize = 64;

/// Which addresses of a name are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    #[default]
    Auto,
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
}

/// Why a name has no addresses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The host's configuration cannot be used.
    #[error("reading the host's resolver configuration")]
    Configuration(#[source] NetError),
    /// The servers cannot be asked, or gave an unusable answer.
    #[error("asking the DNS servers")]
    Failed(#[source] NetError),
    /// It is not a domain name.
    #[error("not a name")]
    Malformed,
    /// There is no such name, or it has no address of the wanted family.
    #[error("no such name")]
    NotFound,
    /// No server answered in time.
    #[error("no DNS server answered in time")]
    Timeout,
}

impl LookupError {
    /// Returns the label for metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Configuration(_) => "configuration",
            Self::Failed(_) => "failed",
            Self::Malformed => "malformed",
            Self::NotFound => "not_found",
            Self::Timeout => "timeout",
        }
    }
}

impl From<NetError> for LookupError {
    fn from(error: NetError) -> Self {
        if matches!(error, NetError::Timeout) {
            Self::Timeout
        } else if error.is_no_records_found() || error.is_nx_domain() {
            Self::NotFound
        } else {
            Self::Failed(error)
        }
    }
}

/// The addresses of a name.
#[derive(Clone, Debug)]
pub struct Answer {
    /// At least one, each once, in the order of the servers; 64 at most.
    pub addresses: Vec<IpAddr>,
    /// When it expires.
    pub valid_until: Instant,
}

type Options = Box<dyn Fn(&mut ResolverOpts) + Send + Sync>;

/// Looks names up.
pub struct LookupClient {
    /// Options on top of the host's configuration; `None` for a client that was given.
    options: Option<Options>,
    family: Family,
    client: Mutex<Option<Client>>,
}

/// The host's configuration, as it was read.
#[derive(Clone)]
struct Client {
    hosts: Arc<Hosts>,
    resolver: TokioResolver,
    since: Instant,
}

impl LookupClient {
    /// Asks for addresses of `family` by the host's configuration, with `options` changed. It is read for
    /// the first look-up, and again after a failed one.
    pub fn system(
        family: Family,
        options: impl Fn(&mut ResolverOpts) + Send + Sync + 'static,
    ) -> Self {
        let options = move |all: &mut ResolverOpts| {
            all.ip_strategy = match family {
                Family::Auto => LookupIpStrategy::Ipv4AndIpv6,
                Family::Ipv4 => LookupIpStrategy::Ipv4Only,
                Family::Ipv6 => LookupIpStrategy::Ipv6Only,
            };
            all.use_hosts_file = ResolveHosts::Never;
            options(all);
        };
        Self {
            options: Some(Box::new(options)),
            family,
            client: Mutex::default(),
        }
    }

    /// Asks the servers that `resolver` knows, for names that are not in `hosts`.
    #[cfg(test)]
    pub(crate) fn of(hosts: Hosts, resolver: TokioResolver) -> Self {
        let client = Client {
            hosts: Arc::new(hosts),
            resolver,
            since: Instant::now(),
        };
        Self {
            options: None,
            family: Family::Auto,
            client: Mutex::new(Some(client)),
        }
    }

    /// Returns the addresses of `host`. Cancel-safe: a dropped look-up is abandoned.
    ///
    /// # Errors
    /// [`LookupError`].
    pub async fn look_up(&self, host: &str) -> Result<Answer, LookupError> {
        let name = host.into_name().map_err(|_| LookupError::Malformed)?;
        let client = self.client()?;
        // `localhost` is both loopback addresses whatever the file says (RFC 6761 section 6.3).
        let listed = client.listed(&name, self.family);
        if let Some(answer) = listed.filter(|_| !name.is_localhost()) {
            return Ok(answer);
        }
        let client = client.resolver;
        let found = match client.lookup_ip(host).await {
            Ok(found) => found,
            Err(error) => {
                let error = LookupError::from(error);
                let caches = client.options().cache_size > 0;
                // A cache full of answers is not given up for a name that does not exist.
                if !(caches && matches!(error, LookupError::NotFound)) {
                    self.forget_old();
                }
                return Err(error);
            }
        };
        Answer::new(found.iter(), found.valid_until().into()).ok_or(LookupError::NotFound)
    }

    /// Has the host's configuration read again for the next look-up.
    pub fn forget(&self) {
        self.forget_if(|_| true);
    }

    /// As [`LookupClient::forget`], unless it was just read.
    pub(crate) fn forget_old(&self) {
        self.forget_if(|since| since.elapsed() >= CONFIGURATION_AGE);
    }

    fn forget_if(&self, old: impl FnOnce(&Instant) -> bool) {
        if self.options.is_some() {
            lock(&self.client).take_if(|client| old(&client.since));
        }
    }

    fn client(&self) -> Result<Client, LookupError> {
        let mut client = lock(&self.client);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let mut builder = TokioResolver::builder_tokio().map_err(LookupError::Configuration)?;
        if let Some(options) = &self.options {
            options(builder.options_mut());
        }
        let made = Client {
            // A host without the file has no names in it.
            hosts: Arc::new(Hosts::from_system().unwrap_or_default()),
            resolver: builder.build().map_err(LookupError::Configuration)?,
            since: Instant::now(),
        };
        *client = Some(made.clone());
        Ok(made)
    }
}

impl Client {
    /// Returns what the hosts file has for `name`.
    fn listed(&self, name: &Name, family: Family) -> Option<Answer> {
        let types = match family {
            Family::Auto => &[RecordType::A, RecordType::AAAA][..],
            Family::Ipv4 => &[RecordType::A],
            Family::Ipv6 => &[RecordType::AAAA],
        };
        let queries = types.iter().map(|kind| Query::query(name.clone(), *kind));
        let found: Vec<_> = queries
            .filter_map(|query| self.hosts.lookup_static_host(&query))
            .collect();
        let valid_until = found.first()?.valid_until().into();
        let records = found.iter().flat_map(|lookup| lookup.answers());
        Answer::new(
            records.filter_map(|record| record.data.ip_addr()),
            valid_until,
        )
    }
}

impl Answer {
    fn new(found: impl Iterator<Item = IpAddr>, valid_until: Instant) -> Option<Self> {
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found {
            if addresses.len() < MAX_ADDRESSES && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        (!addresses.is_empty()).then_some(Self {
            addresses,
            valid_until,
        })
    }
}

impl fmt::Debug for LookupClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookupClient").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use hickory_resolver::config::{NameServerConfig, ResolverConfig};
    use hickory_resolver::net::runtime::TokioRuntimeProvider;

    use super::*;

    fn client() -> LookupClient {
        LookupClient::system(Family::Auto, |options| options.cache_size = 8)
    }

    #[tokio::test]
    async fn malformed_names_are_not_asked_for() {
        for host in ["a..b", &"x".repeat(64), &"x.".repeat(200)] {
            let error = client().look_up(host).await.unwrap_err();
            assert!(matches!(error, LookupError::Malformed), "{host}: {error}");
        }
    }

    #[tokio::test]
    async fn listed_name_is_not_asked_for() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let mut config = NameServerConfig::udp(IpAddr::from([127, 0, 0, 1]));
        config.connections[0].port = server.local_addr().unwrap().port();
        let config = ResolverConfig::from_parts(None, Vec::new(), vec![config]);
        let provider = TokioRuntimeProvider::default();
        let resolver = TokioResolver::builder_with_config(config, provider);
        let mut hosts = Hosts::default();
        let file = "10.0.0.1 v4.example\nfd00::1 v6.example # both\n10.0.0.2 Both\nfd00::2 both\n\
            127.0.0.1 localhost";
        hosts.read_hosts_conf(file.as_bytes()).unwrap();
        let client = LookupClient::of(hosts, resolver.build().unwrap());
        for (host, addresses) in [
            ("v4.example", &["10.0.0.1"][..]),
            ("v6.example.", &["fd00::1"]),
            ("both", &["10.0.0.2", "fd00::2"]),
            ("localhost", &["127.0.0.1", "::1"]),
        ] {
            let mut found = client.look_up(host).await.unwrap().addresses;
            found.sort();
            let wanted: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(found, wanted, "{host}");
        }
        let asked = server.recv(&mut [0; 512]).unwrap_err();
        assert_eq!(asked.kind(), std::io::ErrorKind::WouldBlock);
        let listed = client.client().unwrap();
        let v4 = Name::from_ascii("v4.example").unwrap();
        assert!(listed.listed(&v4, Family::Ipv6).is_none());
    }

    #[tokio::test]
    async fn localhost_is_found_without_a_server() {
        let client = client();
        let answer = client.look_up("localhost").await.unwrap();
        assert!(answer.addresses.iter().all(IpAddr::is_loopback));
        client.forget();
        assert!(client.look_up("localhost").await.is_ok());
    }
}
