//! Addresses of the API server, where pods reach it by a host name.
//!
//! Resolved periodically; while it fails, the last addresses stay. Only the policy
//! `allow-to-runtime-apiserver` wants to know.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::plan::HostName;

/// Time between look-ups.
const PERIOD: Duration = Duration::from_secs(30);

/// Time until the next one after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// How long one look-up may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The port of an API server whose URL names none.
const HTTPS: u16 = 443;

/// Chooses the name to resolve: the host that the client uses, or else the one in the pod's
/// environment; `None` when both are addresses.
pub(crate) fn name(
    url: &http::Uri,
    environment: Option<&(String, Option<u16>)>,
) -> Option<(String, u16)> {
    let of_url = url.host().map(|host| (host, url.port_u16()));
    let of_pods = environment.map(|(host, port)| (host.as_str(), *port));
    let mut hosts = of_url.into_iter().chain(of_pods);
    let address = |host: &str| host.trim_matches(['[', ']']).parse::<IpAddr>();
    hosts
        .find(|(host, _)| address(host).is_err())
        .map(|(host, port)| (host.to_owned(), port.unwrap_or(HTTPS)))
}

pub(crate) async fn once(name: &str, port: u16) -> io::Result<HostName> {
    let found = timeout(LIMIT, tokio::net::lookup_host((name, port))).await??;
    let addresses: BTreeSet<IpAddr> = found.map(|own| own.ip()).collect();
    Ok(HostName::Resolved(addresses.into_iter().collect(), port))
}

/// Resolves `name` again and again, until it is dropped.
pub(crate) async fn follow(name: String, port: u16, resolved: watch::Sender<HostName>) {
    loop {
        let pause = match once(&name, port).await {
            Ok(fresh) => {
                resolved.send_if_modified(|own| {
                    let changed = *own != fresh;
                    *own = fresh;
                    changed
                });
                PERIOD
            }
            Err(error) => {
                tracing::warn!(name, %error, "resolving the API server's name failed");
                RETRY
            }
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(url: &str, pods: Option<(&str, Option<u16>)>) -> Option<(String, u16)> {
        let pods = pods.map(|(host, port)| (host.to_owned(), port));
        name(&url.parse().unwrap(), pods.as_ref())
    }

    #[test]
    fn a_host_name_is_resolved_wherever_it_stands() {
        let api = |port| Some(("api.example.com".to_owned(), port));
        assert_eq!(named("https://api.example.com", None), api(443));
        assert_eq!(named("https://api.example.com:6443/", None), api(6443));
        let pods = Some(("api.example.com", Some(443)));
        assert_eq!(named("https://10.0.0.1", pods), api(443));
        assert_eq!(
            named("https://[fd00::1]:6443", Some(("10.0.0.1", None))),
            None
        );
    }
}
