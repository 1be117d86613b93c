//! The status codes of gRPC, and how upstream's metrics call them.

/// A status code of gRPC, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcCode(u8);

impl GrpcCode {
    pub(crate) const OK: Self = Self(0);
    pub(crate) const CANCELED: Self = Self(1);
    pub(crate) const UNKNOWN: Self = Self(2);
    pub(crate) const DEADLINE_EXCEEDED: Self = Self(4);
    pub(crate) const RESOURCE_EXHAUSTED: Self = Self(8);
    pub(crate) const UNIMPLEMENTED: Self = Self(12);
    pub(crate) const INTERNAL: Self = Self(13);
    pub(crate) const UNAVAILABLE: Self = Self(14);

    /// Returns the code with this number; [`GrpcCode::UNKNOWN`] when there is none.
    pub(crate) fn from_number(number: u32) -> Self {
        match u8::try_from(number) {
            Ok(number @ ..=16) => Self(number),
            Ok(_) | Err(_) => Self::UNKNOWN,
        }
    }

    /// Returns the number, as in `grpc-status`.
    pub(crate) fn number(self) -> u32 {
        self.0.into()
    }

    /// Returns the name that Go programs print.
    pub(crate) fn as_str(self) -> &'static str {
        let mut names = NAMES.split(' ');
        names.nth(self.0.into()).unwrap_or("Unknown")
    }
}

/// Each at the index that is its number.
const NAMES: &str = "OK Canceled Unknown InvalidArgument DeadlineExceeded NotFound AlreadyExists \
                     PermissionDenied ResourceExhausted FailedPrecondition Aborted OutOfRange \
                     Unimplemented Internal Unavailable DataLoss Unauthenticated";
