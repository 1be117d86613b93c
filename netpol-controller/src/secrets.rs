//! Watches the Secrets of the gateways' namespaces, and no others, where TLS ends in the gateways.
//!
//! A Secret that may not be read stops nothing: the gateways then pass TLS through.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Secret as SecretObject;
use kube::Client;
use kube::api::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use telemetry::Throttle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::routes::GatewayEntry;
use crate::state::Secret;
use crate::watch::{Message, WATCH_LASTS, pauses};

/// Follows the Secrets of those gateways, until it is dropped.
pub(crate) async fn follow(
    client: Client,
    mut gateways: watch::Receiver<Vec<GatewayEntry>>,
    messages: mpsc::Sender<Message>,
    metrics: Metrics,
) {
    loop {
        let namespaces: BTreeSet<Arc<str>> = {
            let gateways = gateways.borrow_and_update();
            gateways
                .iter()
                .map(|own| own.namespace.as_str().into())
                .collect()
        };
        let watches = namespaces.into_iter().map(|namespace| {
            let (client, messages, metrics) = (client.clone(), messages.clone(), metrics.clone());
            one(client, namespace, messages, metrics)
        });
        let _watches: JoinSet<()> = watches.collect();
        if gateways.changed().await.is_err() {
            // The controller ends.
            std::future::pending::<()>().await;
        }
    }
}

async fn one(
    client: Client,
    namespace: Arc<str>,
    messages: mpsc::Sender<Message>,
    metrics: Metrics,
) {
    let api: Api<SecretObject> = Api::namespaced(client, &namespace);
    // Names cannot be selected by their ends, and Gardener's Secrets have no label of their own.
    let config = watcher::Config::default()
        .timeout(WATCH_LASTS)
        .fields("type=Opaque");
    let throttle = Throttle::new(Duration::from_secs(30));
    let mut events = pin!(watcher(api, config).backoff(pauses()));
    let mut seen = BTreeSet::new();
    while let Some(event) = events.next().await {
        let message = match event {
            Ok(Event::Init) => {
                seen.clear();
                continue;
            }
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                let Some((key, secret)) = Secret::parse(object) else {
                    continue;
                };
                seen.insert(key.clone());
                Message::Secret(key, Some(secret))
            }
            Ok(Event::InitDone) => {
                Message::SecretsListed(Arc::clone(&namespace), std::mem::take(&mut seen))
            }
            Ok(Event::Delete(object)) => match Secret::parse(object) {
                Some((key, _)) => Message::Secret(key, None),
                None => continue,
            },
            Err(error) => {
                metrics.watch_errors.with(&["secrets"]).inc();
                if let Some(missed) = throttle.permit(Instant::now().into_std()) {
                    let error = telemetry::chain(&error);
                    tracing::warn!(resource = "secrets", %namespace, %error, missed, "watch interrupted");
                }
                continue;
            }
        };
        if messages.send(message).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
