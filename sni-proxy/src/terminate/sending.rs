//! One request over a connection that takes it, and the head of its answer.

use std::error::Error;

use bytes::Bytes;
use h2::client::SendRequest;
use http::{Method, Request, Response, Uri, Version, header};
use http_body::Body;
use hyper::client::conn::http1;

use super::body::Answer;
use super::request::RequestBody;
use super::upstream::Active;

/// A connection that takes one request more.
pub(crate) enum Sender {
    Http1(http1::SendRequest<RequestBody>),
    Http2(SendRequest<Bytes>),
}

/// Why there is no answer.
pub(crate) enum Failed {
    /// Nothing was sent.
    Unsent(Box<Request<RequestBody>>),
    /// Something was, and whether the server has begun with it.
    Sent(bool, Box<dyn Error>),
}

pub(crate) async fn exchange(
    sender: Sender,
    mut request: Request<RequestBody>,
    active: &Active,
) -> Result<Response<Answer>, Failed> {
    match sender {
        Sender::Http1(mut sender) => {
            *request.version_mut() = Version::HTTP_11;
            to_origin_form(&mut request);
            let sent = sender.try_send_request(request).await;
            let response = sent.map_err(|mut error| match error.take_message() {
                Some(unsent) => Failed::Unsent(Box::new(unsent)),
                None => Failed::Sent(true, Box::new(error.into_error())),
            })?;
            Ok(response.map(Answer::Http1))
        }
        Sender::Http2(mut sender) => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(header::HOST);
            tell_length(&mut request);
            let (head, body) = request.into_parts();
            let failed = |error: h2::Error| {
                if error.is_go_away() {
                    active.connection_ended();
                }
                let begun = !was_not_processed(&error);
                Failed::Sent(begun, Box::new(error))
            };
            let head = Request::from_parts(head, ());
            let sent = sender.send_request(head, body.is_end_stream());
            let (response, stream) = sent.map_err(failed)?;
            drop(sender);
            if !body.is_end_stream() {
                let task = tokio::task::spawn_local(body.send(stream));
                active.set_sending(task.abort_handle());
            }
            let response = response.await.map_err(failed)?;
            Ok(response.map(|stream| active.receive(stream)))
        }
    }
}

/// Says how long a body is, where that is known and may matter (RFC 9110 section 8.6).
fn tell_length(request: &mut Request<RequestBody>) {
    let known = request.body().size_hint().exact();
    let without = [Method::GET, Method::HEAD, Method::DELETE];
    let matters = |length: &u64| *length > 0 || !without.contains(request.method());
    if let Some(length) = known.filter(matters) {
        let headers = request.headers_mut();
        headers
            .entry(header::CONTENT_LENGTH)
            .or_insert(length.into());
    }
}

/// The target as HTTP/1.1 has it, with the host in its header.
fn to_origin_form(request: &mut Request<RequestBody>) {
    let authority = request.uri().authority();
    let host = authority.and_then(|own| http::HeaderValue::from_str(own.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
}

/// Returns whether the server said that it has not begun with a request (RFC 9113 sections 6.8 and 8.7).
fn was_not_processed(error: &h2::Error) -> bool {
    let refused = error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // h2 says so of streams above the last one that the server names, whatever its reason.
    refused || (error.is_go_away() && error.is_remote())
}
