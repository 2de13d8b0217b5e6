//! The outcome of an attempt, with messages for the account holder. They never contain an address that was looked up.

use std::{borrow::Cow, time::Duration};

use jiff::Timestamp;
use thiserror::Error;

use super::UrlError;
use resources::{size, text::is_control};

/// How much of a response body is read, in bytes (decisions, section 5).
pub const MAX_RESPONSE: usize = 4096;
/// Longest text from a receiver that an error quotes, in characters.
const MAX_TEXT: usize = 200;
/// Cap on `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(366 * 24 * 3600);

/// The outcome of one attempt to deliver an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptOutcome {
    /// From the start to the head of the response, or to the failure. Reading the body is not included.
    pub duration: Duration,
    /// Status code of the response, if there was one.
    pub status: Option<u16>,
    /// The first 4 KiB of the response body that arrived in time, not decompressed; bytes that are not UTF-8 are replaced.
    pub response: String,
    /// `Retry-After` of a response whose status is an error.
    pub retry_after: Option<RetryAfter>,
    /// Why the attempt failed; `None` if it succeeded.
    pub error: Option<AttemptError>,
}

impl AttemptOutcome {
    /// The response text to record. Control characters other than line breaks and tabs are replaced, as are those that change the
    /// direction of the text, and its JSON takes at most `most` bytes in the API server's store.
    pub fn recorded_response(&self, most: usize) -> Option<String> {
        let mut size = 0;
        let characters = self.response.chars().map(|c| match c {
            '\n' | '\t' => c,
            c => shown(c),
        });
        let kept: String = characters
            .take_while(|c| {
                size += size::of_char(*c);
                size <= most
            })
            .collect();
        Some(kept).filter(|text| !text.is_empty())
    }

    /// Whether the event was delivered: a 2xx status line arrived in time.
    pub fn is_success(&self) -> bool {
        self.error.is_none()
    }

    /// `success`, or the label of the error.
    pub fn label(&self) -> &'static str {
        self.error.as_ref().map_or("success", AttemptError::label)
    }
}

/// The value of a `Retry-After` header (RFC 9110, section 10.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// This long after the response, at most a year.
    Delay(Duration),
    At(Timestamp),
}

impl RetryAfter {
    /// Parses a header value. Returns `None` if it is neither a number of seconds nor an HTTP date.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            let seconds = text.parse().unwrap_or(u64::MAX);
            return Some(Self::Delay(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER)));
        }
        let time = httpdate::parse_http_date(text).ok()?;
        Timestamp::try_from(time).ok().map(Self::At)
    }

    /// The delay from `now`, the time of the response; zero if the time is in the past.
    pub fn delay(self, now: Timestamp) -> Duration {
        match self {
            Self::Delay(delay) => delay,
            Self::At(time) => Duration::try_from(time.duration_since(now))
                .map_or(Duration::ZERO, |delay| delay.min(LONGEST_RETRY_AFTER)),
        }
    }
}

/// Why an attempt failed. `Display` is for the account holder.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AttemptError {
    /// The URL is not allowed, or no longer allowed.
    #[error("the URL {0}")]
    Url(#[from] UrlError),
    /// All addresses of the host are forbidden.
    #[error("the URL's host has no address that is allowed; it must have a public one")]
    ForbiddenAddress,
    /// The host has no address.
    #[error("the URL's host has no address in DNS")]
    NoAddress,
    /// The DNS lookup failed.
    #[error("the DNS lookup of the URL's host failed")]
    Dns,
    /// The TCP connection failed, for this reason.
    #[error("cannot connect to the receiver: {0}")]
    Connect(&'static str),
    /// The TCP connection timed out.
    #[error("no connection to the receiver within {} s", .0.as_secs_f64())]
    ConnectTimeout(Duration),
    /// The operator's proxy could not or would not connect to this receiver, for this reason.
    #[error("the proxy of this service made no connection to the receiver: {0}")]
    Proxy(&'static str),
    /// The operator's proxy does not work, for this reason. The receiver was not called.
    #[error("the proxy of this service made no connection to the receiver: {0}")]
    BrokenProxy(&'static str),
    /// The TLS handshake timed out.
    #[error("the TLS handshake with the receiver did not finish within {} s", .0.as_secs_f64())]
    TlsTimeout(Duration),
    /// The certificate has expired, or is not valid yet.
    #[error("the receiver's certificate has expired or is not valid yet; renew it")]
    TlsExpired,
    /// The issuer of the certificate is not trusted.
    #[error(
        "the receiver's certificate is self-signed or from an unknown issuer; use a public certificate authority and \
         send its intermediate certificates too"
    )]
    TlsUnknownIssuer,
    /// The certificate is for another host.
    #[error("the receiver's certificate is not for the URL's host; get one whose subjectAltName has it")]
    TlsWrongName,
    /// The certificate is for no host at all.
    #[error(
        "the receiver's certificate has no subjectAltName; get one whose subjectAltName has the URL's host (its common name does \
         not count)"
    )]
    TlsNoName,
    /// Any other failure of TLS, for this reason.
    #[error("TLS with the receiver failed: {0}")]
    Tls(Cow<'static, str>),
    /// No response in time.
    #[error("the receiver did not answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
    /// The connection ended before the status line.
    #[error("the receiver closed the connection before it answered")]
    Reset,
    /// The request ended before the status line, for this reason.
    #[error("the receiver ended the request before it answered: {0}")]
    Cancelled(Cow<'static, str>),
    /// The response is not valid HTTP, or exceeds a limit.
    #[error("the receiver's answer is not valid HTTP: {0}")]
    Protocol(Cow<'static, str>),
    /// A 3xx, which is never followed.
    #[error("the receiver answered {status}, a redirect, which is never followed{}", .location.as_ref().map(|l| format!("; it points to {l}")).unwrap_or_default())]
    Redirect {
        /// The status code.
        status: u16,
        /// The `Location` header, cut to 200 characters, without control characters.
        location: Option<String>,
    },
    /// Any other status than 2xx.
    #[error("the receiver answered {0}")]
    Status(u16),
}

impl AttemptError {
    /// Whether the receiver had no part in the failure. Such an attempt does not count.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::BrokenProxy(_))
    }

    /// A static label for metrics and logs.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Url(error) => error.label(),
            Self::ForbiddenAddress => "forbidden_address",
            Self::NoAddress | Self::Dns => "dns",
            Self::Connect(_) => "connect",
            Self::ConnectTimeout(_) => "connect_timeout",
            Self::Proxy(_) | Self::BrokenProxy(_) => "proxy",
            Self::TlsTimeout(_) => "tls_timeout",
            Self::TlsExpired => "tls_expired",
            Self::TlsUnknownIssuer => "tls_unknown_issuer",
            Self::TlsWrongName | Self::TlsNoName => "tls_wrong_name",
            Self::Tls(_) => "tls",
            Self::Timeout(_) => "timeout",
            Self::Reset | Self::Cancelled(_) => "reset",
            Self::Protocol(_) => "protocol",
            Self::Redirect { .. } => "redirect",
            Self::Status(_) => "status",
        }
    }

    /// The error for a response with this status; `None` for 2xx.
    pub(super) fn of_status(status: u16, location: Option<&[u8]>) -> Option<Self> {
        match status {
            200..=299 => None,
            300..=399 => Some(Self::Redirect {
                status,
                location: location.map(quoted),
            }),
            _ => Some(Self::Status(status)),
        }
    }
}

/// Text from a receiver as errors quote it: cut, since errors are stored in objects, and without control characters.
fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    text.chars().take(MAX_TEXT).map(shown).collect()
}

/// The character, or a replacement if it changes how the text around it is shown.
fn shown(c: char) -> char {
    if is_control(c) {
        char::REPLACEMENT_CHARACTER
    } else {
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_of_a_response_is_bounded_as_it_is_stored() {
        let recorded_of = |response: String, most| {
            let outcome = AttemptOutcome {
                duration: Duration::ZERO,
                status: Some(500),
                response,
                retry_after: None,
                error: None,
            };
            outcome.recorded_response(most)
        };
        let recorded = |response| recorded_of(response, 1024);
        assert_eq!(recorded(String::new()), None);
        assert_eq!(
            recorded("busy,\n\ttry later".to_owned()).unwrap(),
            "busy,\n\ttry later"
        );
        assert_eq!(
            recorded("a\u{0}b\u{1b}[2Jc\u{85}\r\u{202e}d".to_owned()).unwrap(),
            "a\u{fffd}b\u{fffd}[2Jc\u{fffd}\u{fffd}\u{fffd}d"
        );
        assert_eq!(recorded("x".repeat(4096)).unwrap().len(), 1024);
        assert_eq!(recorded_of("x".repeat(4096), 100).unwrap().len(), 100);
        assert_eq!(recorded_of("x".to_owned(), 0), None);
        for (text, kept) in [("\u{1}", 341), ("\"", 512), ("<", 170), ("é", 512), ("😀", 256)] {
            let recorded = recorded(text.repeat(4096)).unwrap();
            assert_eq!(recorded.chars().count(), kept, "{text:?}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let parse = |text: &str| RetryAfter::parse(text.as_bytes());
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let seconds = |text| parse(text).map(|after| after.delay(now).as_secs());
        assert_eq!(seconds("120"), Some(120));
        assert_eq!(seconds(" 0 "), Some(0));
        assert_eq!(seconds("99999999999999999999999"), Some(366 * 24 * 3600));
        assert_eq!(seconds("Sat, 21 Nov 2026 10:01:30 GMT"), Some(90));
        assert_eq!(seconds("Sat, 21 Nov 2020 10:01:30 GMT"), Some(0));
        assert_eq!(seconds("Thu, 31 Dec 9998 10:01:30 GMT"), Some(366 * 24 * 3600));
        for nonsense in ["", "-1", "1.5", "soon", "+5", "1 minute"] {
            assert_eq!(parse(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn only_2xx_is_a_success_and_a_redirect_names_its_location() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(AttemptError::of_status(status, None), None);
        }
        for status in [100, 101, 199, 400, 401, 404, 410, 429, 500, 503, 599, 600, 999] {
            assert_eq!(
                AttemptError::of_status(status, None),
                Some(AttemptError::Status(status))
            );
        }
        let error = AttemptError::of_status(302, Some(b"https://elsewhere.example/")).unwrap();
        assert_eq!(error.label(), "redirect");
        assert_eq!(
            error.to_string(),
            "the receiver answered 302, a redirect, which is never followed; it points to https://elsewhere.example/"
        );
        let long = AttemptError::of_status(308, Some("x".repeat(5000).as_bytes()));
        assert!(long.unwrap().to_string().len() < 400);
        let hostile = "https://\u{202e}moc\u{2066}.example\t\u{1b}[2J\u{85}\r\n/";
        let error = AttemptError::of_status(301, Some(hostile.as_bytes())).unwrap();
        let AttemptError::Redirect { location, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(
            location.unwrap(),
            "https://\u{fffd}moc\u{fffd}.example\u{fffd}\u{fffd}[2J\u{fffd}\u{fffd}\u{fffd}/"
        );
    }
}
