//! The gateway's own answers, as a Kubernetes API server writes them (`Status` of v1).

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::ResponseBody;
use super::exchange::Open;

/// Why a request is not sent on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    text: &'static str,
}

pub(crate) fn refuse(status: StatusCode, text: &'static str) -> Refusal {
    Refusal { status, text }
}

/// No secrets, or no endpoint.
pub(crate) fn unavailable() -> Refusal {
    of_upstream(StatusCode::SERVICE_UNAVAILABLE)
}

pub(crate) fn of_upstream(status: StatusCode) -> Refusal {
    let text = match status {
        StatusCode::BAD_GATEWAY => "the API server failed while it was asked",
        StatusCode::GATEWAY_TIMEOUT => "the API server did not answer in time",
        _ => "no API server could be reached",
    };
    refuse(status, text)
}

/// A head that cannot be read, or is not there in time.
pub(crate) fn of_head(status: StatusCode) -> Refusal {
    let text = match status {
        StatusCode::REQUEST_TIMEOUT => "the request's head did not come in time",
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => "the request's head is too large",
        StatusCode::URI_TOO_LONG => "the request's target is too long",
        _ => "the request's head is malformed",
    };
    refuse(status, text)
}

impl Refusal {
    pub(crate) fn response(self, open: Open) -> Response<ResponseBody> {
        let text = Bytes::from(self.json());
        let length = text.len();
        // HEAD is answered without a body, of which the length is said (RFC 9110 section 9.3.2).
        let text = (!open.is_head()).then_some(text);
        let mut response = Response::new(ResponseBody::own(text, open));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, length.into());
        response.headers_mut().insert(header::CONTENT_TYPE, JSON);
        response
    }

    /// Writes the whole answer, after which the connection ends.
    pub(crate) fn to_http1(self, hsts: Option<&HeaderValue>) -> Vec<u8> {
        let (status, json) = (self.status, self.json());
        let len = json.len();
        let mut text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len}\r\nconnection: close\r\n"
        )
        .into_bytes();
        if let Some(date) = telemetry::http_date(SystemTime::now()) {
            text.extend_from_slice(format!("date: {date}\r\n").as_bytes());
        }
        if let Some(hsts) = hsts {
            text.extend_from_slice(b"strict-transport-security: ");
            text.extend_from_slice(hsts.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"\r\n");
        text.extend_from_slice(json.as_bytes());
        text
    }

    fn json(self) -> String {
        let reason = match self.status {
            StatusCode::BAD_REQUEST => "BadRequest",
            StatusCode::UNAUTHORIZED => "Unauthorized",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
            StatusCode::GATEWAY_TIMEOUT => "Timeout",
            _ => "",
        };
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.text, "reason": reason, "code": self.status.as_u16(),
        });
        status.to_string()
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
