//! Dials the servers behind a terminating route.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use route::{Cluster, ConnectFailure, Endpoint, EndpointState};
use rustls::pki_types::ServerName;
use tokio::time::{Instant, timeout_at};

use super::request::RequestBody;
use super::tls_stream::{ClientStream, connect};
use super::upstream::{Connections, RequestContext};
use super::wire::{Driver, Wire};
use crate::worker::Worker;

/// An endpoint that is left out is dialed after this.
const PROBE: Duration = Duration::from_secs(1);

/// Dials an endpoint that is left out now and then, until it is used again: kept connections bring no requests to
/// one that has come back meanwhile.
pub(super) fn probe(
    context: &RequestContext<'_>,
    tls: &Arc<rustls::ClientConfig>,
    endpoint: &Arc<Endpoint>,
    connections: &Rc<Connections>,
) {
    let left_out =
        |endpoint: &Endpoint| endpoint.state(Instant::now().into_std()) == EndpointState::Ejected;
    if !left_out(endpoint) || connections.probed.replace(true) {
        return;
    }
    let (cluster, connections) = (Arc::downgrade(context.cluster), Rc::downgrade(connections));
    let (worker, name) = (Rc::clone(context.worker), context.server_name.clone());
    let (tls, endpoint) = (Arc::clone(tls), Arc::clone(endpoint));
    tokio::task::spawn_local(async move {
        loop {
            tokio::time::sleep(PROBE).await;
            // Either may have gone with its route.
            let (Some(cluster), Some(connections)) = (cluster.upgrade(), connections.upgrade())
            else {
                return;
            };
            if !left_out(&endpoint)
                || dial(&cluster, &worker, &name, &tls, &endpoint)
                    .await
                    .is_ok()
            {
                return connections.probed.set(false);
            }
        }
    });
}

pub(super) async fn dial(
    cluster: &Cluster,
    worker: &Worker,
    name: &ServerName<'static>,
    tls: &Arc<rustls::ClientConfig>,
    endpoint: &Endpoint,
) -> Result<(ClientStream, Driver), StatusCode> {
    let options = cluster.settings().tcp.as_ref();
    let options = options.map_or(&worker.shared.config.tcp_options, AsRef::as_ref);
    let deadline = Instant::now() + cluster.settings().connect_timeout;
    let names = &worker.shared.routing.current().names;
    let turn = worker.random() as usize;
    let now = || Instant::now().into_std();
    let dialer = &worker.shared.dialer;
    let stream = match dialer
        .connect(endpoint.address(), names, options, deadline, turn)
        .await
    {
        Ok((stream, _)) => stream.into_tokio(),
        Err(error) => {
            if !error.is_local() {
                cluster.connect_failed(endpoint, error.failure(), now());
            }
            return Err(StatusCode::SERVICE_UNAVAILABLE);
        }
    };
    let stream = stream.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let (wire, driver) = Wire::new(stream, 0);
    let connecting = connect(Arc::clone(tls), name.clone(), wire);
    match timeout_at(deadline, connecting).await {
        Ok(Ok(stream)) => {
            cluster.connect_succeeded(endpoint);
            Ok((stream, driver))
        }
        Ok(Err(error)) => {
            let address = endpoint.address();
            tracing::debug!(%error, endpoint = %address, "TLS with an endpoint failed");
            cluster.connect_failed(endpoint, ConnectFailure::Failed, now());
            Err(StatusCode::BAD_GATEWAY)
        }
        Err(_) => {
            cluster.connect_failed(endpoint, ConnectFailure::Timeout, now());
            Err(StatusCode::SERVICE_UNAVAILABLE)
        }
    }
}

pub(super) async fn http1_sender(
    stream: ClientStream,
    driver: Driver,
) -> Result<http1::SendRequest<RequestBody>, StatusCode> {
    let shaken = http1::Builder::new().handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    tokio::task::spawn_local(async move { driver.run(connection.with_upgrades(), || {}).await });
    Ok(sender)
}
