//! The gateway's own answers, as a Kubernetes API server writes them (`Status` of v1).

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::body::ResponseBody;
use super::metrics::Counted;

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

impl Refusal {
    pub(crate) fn response(self, counted: Counted) -> Response<ResponseBody> {
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
        let text = Bytes::from(status.to_string());
        let mut response = Response::new(ResponseBody::Own(Some(text), counted));
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}
