//! Names of the shoot, asked of DNS servers there through the tunnel.
//!
//! ```text
//!   api.kube-system.svc ─▶ + cluster domain ─▶ cache ─▶ DNS by UDP, else TCP ─▶ addresses
//!                                                        └── sockets of the Shoot
//! ```
//!
//! Knows neither this host's resolver configuration nor its `/etc/hosts`. Which of the addresses
//! may be used is for others to say.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use hickory_resolver::Resolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
    ResolverOpts,
};
use hickory_resolver::net::runtime::iocompat::AsyncIoTokioAsStd;
use hickory_resolver::net::runtime::{RuntimeProvider, TokioHandle, TokioTime};
use hickory_resolver::proto::rr::Name;
use route::TcpOptions;
use serve::LookupError;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use super::shoot::Shoot;
use crate::config::ProxyConfig;

/// For one try at one server.
const TRY: Duration = Duration::from_secs(2);
/// Tries beyond the first.
const MORE_TRIES: usize = 2;
/// Longest time an answer is kept, and a refusal.
const LONGEST_TTL: Duration = Duration::from_secs(300);
const LONGEST_NO: Duration = Duration::from_secs(5);
/// Names that one worker looks up at once; each may hold some sockets.
const LOOKUPS: usize = 64;
/// For connecting to a DNS server by TCP.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// Asks the shoot's DNS servers.
pub(super) struct Names {
    resolver: Resolver<Sockets>,
    cluster_domain: Option<Name>,
    lookups: Semaphore,
    /// Those of one name come one after the other, so that one that stays without an answer takes one place. Only
    /// names that are looked up now.
    turns: RefCell<HashMap<Name, Rc<Mutex<()>>>>,
}

/// One of the look-ups of a name, which wait for each other.
struct Turn<'a> {
    names: &'a Names,
    name: Name,
    lock: Rc<Mutex<()>>,
}

impl<'a> Turn<'a> {
    fn new(names: &'a Names, name: Name) -> Self {
        let lock = Rc::clone(names.turns.borrow_mut().entry(name.clone()).or_default());
        Self { names, name, lock }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // The map's and this one.
        if Rc::strong_count(&self.lock) == 2 {
            self.names.turns.borrow_mut().remove(&self.name);
        }
    }
}

impl Names {
    /// Returns what asks the shoot's servers, for addresses of the families it has; `None` when
    /// there are no servers.
    pub(super) fn new(config: &ProxyConfig, shoot: &Shoot) -> io::Result<Option<Self>> {
        if shoot.resolvers().is_empty() {
            return Ok(None);
        }
        let servers = shoot.resolvers().iter().map(name_server).collect();
        let servers = ResolverConfig::from_parts(None, Vec::new(), servers);
        let sockets = Sockets {
            shoot: shoot.clone(),
            handle: TokioHandle::default(),
        };
        let mut builder = Resolver::builder_with_config(servers, sockets);
        set_options(builder.options_mut(), config, shoot);
        let domain = config.cluster_domain.trim_end_matches('.');
        let domain = (!domain.is_empty()).then(|| Name::from_ascii(format!("{domain}.")));
        Ok(Some(Self {
            resolver: builder.build().map_err(io::Error::other)?,
            cluster_domain: domain.transpose().map_err(io::Error::other)?,
            lookups: Semaphore::new(LOOKUPS),
            turns: RefCell::default(),
        }))
    }

    /// Returns the addresses of `host`, from the cache if they are there. The caller bounds the
    /// wait. Cancel-safe.
    pub(super) async fn addresses(&self, host: &str) -> Result<Vec<IpAddr>, LookupError> {
        let name = self.full_name(host)?;
        let turn = Turn::new(self, name.clone());
        let _turn = turn.lock.lock().await;
        // The semaphore is never closed.
        let _place = self.lookups.acquire().await;
        let found = self.resolver.lookup_ip(name).await?;
        Ok(found.iter().collect())
    }

    /// Names of services end in `.svc` and mean the cluster's domain; all others are whole.
    fn full_name(&self, host: &str) -> Result<Name, LookupError> {
        let proper = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if !host.bytes().all(proper) {
            return Err(LookupError::Malformed);
        }
        let mut name = Name::from_ascii(host).map_err(|_| LookupError::Malformed)?;
        if name.is_root() || name.num_labels() == 0 {
            return Err(LookupError::Malformed);
        }
        let last = host.rsplit('.').next();
        let of_service = last.is_some_and(|last| last.eq_ignore_ascii_case("svc"));
        if let (true, Some(domain)) = (of_service && !name.is_fqdn(), &self.cluster_domain) {
            name = name
                .append_domain(domain)
                .map_err(|_| LookupError::Malformed)?;
        }
        name.set_fqdn(true);
        Ok(name)
    }
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
    let connections = connections.map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.to_vec())
}

fn set_options(options: &mut ResolverOpts, config: &ProxyConfig, shoot: &Shoot) {
    options.ip_strategy = match (shoot.has(false), shoot.has(true)) {
        (true, false) => LookupIpStrategy::Ipv4Only,
        (false, true) => LookupIpStrategy::Ipv6Only,
        (true, true) | (false, false) => LookupIpStrategy::Ipv6AndIpv4,
    };
    options.timeout = TRY;
    options.attempts = MORE_TRIES;
    options.cache_size = config.cached_names;
    options.positive_max_ttl = Some(LONGEST_TTL);
    options.negative_max_ttl = Some(LONGEST_NO);
    options.use_hosts_file = ResolveHosts::Never;
    options.try_tcp_on_error = true;
    options.preserve_intermediates = false;
}

/// Gives the DNS client its sockets.
#[derive(Clone)]
struct Sockets {
    shoot: Shoot,
    handle: TokioHandle,
}

type Opening<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

impl RuntimeProvider for Sockets {
    type Handle = TokioHandle;
    type Timer = TokioTime;
    type Udp = UdpSocket;
    type Tcp = AsyncIoTokioAsStd<TcpStream>;

    fn create_handle(&self) -> TokioHandle {
        self.handle.clone()
    }

    fn connect_tcp(
        &self,
        server: SocketAddr,
        _local: Option<SocketAddr>,
        limit: Option<Duration>,
    ) -> Opening<Self::Tcp> {
        let shoot = self.shoot.clone();
        Box::pin(async move {
            let options = TcpOptions::default();
            let limit = limit.unwrap_or(CONNECT_LIMIT);
            let connected = timeout(limit, shoot.connect(server, &options)).await;
            let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            Ok(AsyncIoTokioAsStd(stream))
        })
    }

    fn bind_udp(&self, local: SocketAddr, _server: SocketAddr) -> Opening<UdpSocket> {
        let socket = self.shoot.datagrams(local);
        Box::pin(async move { socket })
    }
}

#[cfg(test)]
mod tests;
