//! Where a request goes, and what it says before TLS starts.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::certs::Identity;

#[derive(Clone, Debug)]
pub struct Target {
    pub(super) addr: SocketAddr,
    pub(super) tls: Option<Tls>,
    pub(super) proxy: Proxy,
    pub(super) headers: Vec<(String, String)>,
    pub(super) timeout: Duration,
}

#[derive(Clone, Debug)]
pub(super) struct Tls {
    pub(super) authority_pem: String,
    pub(super) server_name: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Proxy {
    /// An HTTP/1.1 CONNECT, answered by 2xx.
    Connect {
        /// The request's target, `host:port`.
        authority: String,
        headers: Vec<(String, String)>,
    },
    /// TLS with the proxy itself, and inside of it an HTTP/1.1 CONNECT, answered by 200: as an API
    /// server asks its egress proxy.
    ConnectTls {
        /// The request's target, `host:port`.
        authority: String,
        /// The host in the URL of the proxy, for which it shows a certificate. A name is sent as
        /// SNI, as by an API server whose egress selector has the name of a Service.
        server_name: String,
        /// The authority of the proxy's certificate, PEM.
        authority_pem: String,
        identity: Identity,
    },
    #[default]
    Direct,
    /// A PROXY protocol header, version 1.
    V1 { src: SocketAddr, dst: SocketAddr },
    /// A PROXY protocol header, version 2.
    V2 { src: SocketAddr, dst: SocketAddr },
}

impl Proxy {
    /// Returns a CONNECT with one header of its own, as Gardener's node proxy sends it.
    pub fn connect(header: &str, value: &str) -> Self {
        Self::Connect {
            authority: "api.example.com:443".to_owned(),
            headers: vec![(header.to_owned(), value.to_owned())],
        }
    }
}

/// The CONNECT was answered, and not by 2xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedByProxy {
    pub status: u16,
}

impl fmt::Display for RefusedByProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy answered CONNECT with {}", self.status)
    }
}

impl std::error::Error for RefusedByProxy {}

impl Target {
    pub fn plain(addr: SocketAddr) -> Self {
        Self {
            addr,
            tls: None,
            proxy: Proxy::Direct,
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
        }
    }

    /// Returns a target with TLS that trusts `authority_pem` only. Without a server name the
    /// certificate must be good for the IP address, and the ClientHello names none.
    pub fn tls(addr: SocketAddr, authority_pem: &str) -> Self {
        let tls = Tls {
            authority_pem: authority_pem.to_owned(),
            server_name: None,
        };
        Self {
            tls: Some(tls),
            ..Self::plain(addr)
        }
    }

    /// Sends this server name, and expects the certificate to be good for it.
    pub fn server_name(mut self, name: &str) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.server_name = Some(name.to_owned());
        }
        self
    }

    pub fn proxy(mut self, proxy: Proxy) -> Self {
        self.proxy = proxy;
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Limits the dialing and each single read and write; 10 s by default.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
