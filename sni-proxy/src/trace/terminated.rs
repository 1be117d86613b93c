//! What a route where TLS ends in the gateway makes of a client's certificate, by its subject alone.
//!
//! Whether the certificate is valid and its authority trusted is not known here.

use route::Route;

use super::question::Subject;
use super::report::TerminatedView;
use crate::terminate::{PoolKind, Termination, header_text};

/// Describes it; `None` for a route that has no `terminate`.
pub(super) fn view(route: &Route, certificate: Option<&Subject>) -> Option<TerminatedView> {
    let own = route
        .handler()
        .and_then(route::Handler::get::<Termination>)?;
    let Some(secrets) = own.secrets.current() else {
        let expired = || "a certificate has expired".to_owned();
        let why = own.secrets.error().unwrap_or_else(expired);
        return Some(TerminatedView {
            passed_through: Some(why),
            ..TerminatedView::default()
        });
    };
    let anonymous = |note: Option<&str>| TerminatedView {
        pool: Some(PoolKind::Anonymous.as_str().to_owned()),
        note: note.map(str::to_owned),
        ..TerminatedView::default()
    };
    let Some(subject) = certificate else {
        return Some(anonymous(None));
    };
    if secrets.tls.client_authorities.is_empty() {
        let note = "the route has no clientAuthorities: no certificate is asked for";
        return Some(anonymous(Some(note)));
    }
    let refused = |why: String| TerminatedView {
        note: Some(why),
        ..TerminatedView::default()
    };
    let Some(user) = subject.names.last().filter(|name| !name.is_empty()) else {
        return Some(refused("the subject has no common name".to_owned()));
    };
    let mut groups = subject.groups.iter().filter(|group| !group.is_empty());
    let bad = [user].into_iter().chain(groups.clone());
    if let Some(bad) = { bad }.find(|text| header_text(text).is_err()) {
        let why = format!("{bad:?} has a control character, or a blank at an end");
        return Some(refused(why));
    }
    Some(TerminatedView {
        pool: Some(PoolKind::Identity.as_str().to_owned()),
        user: Some(user.clone()),
        groups: groups.by_ref().cloned().collect(),
        ..TerminatedView::default()
    })
}
