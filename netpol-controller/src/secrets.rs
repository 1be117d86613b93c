//! Watches the Secrets of the gateways' namespaces, and no others, where TLS ends in the gateways.
//!
//! Secrets that may not be read stop nothing: the gateways then pass TLS through, and objects say so.

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
use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;
use crate::routes::GatewayEntry;
use crate::state::Secret;
use crate::watch::{Message, WATCH_LASTS, pauses};

/// How long Secrets that may not be read are left alone.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(2);

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
    loop {
        let mut events = pin!(watcher(api.clone(), config.clone()).backoff(pauses()));
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
                    if is_forbidden(&error) {
                        break;
                    }
                    continue;
                }
            };
            if messages.send(message).await.is_err() {
                return;
            }
        }
        // Lists again, since a watch that is permitted again would not say so.
        let forbidden = Message::SecretsForbidden(Arc::clone(&namespace));
        if messages.send(forbidden).await.is_err() {
            return;
        }
        sleep(FORBIDDEN_RETRY).await;
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchFailed(error)
        | watcher::Error::WatchStartFailed(error) => error,
        watcher::Error::WatchError(status) => return status.is_forbidden(),
        watcher::Error::NoResourceVersion => return false,
    };
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

#[cfg(test)]
mod tests;
