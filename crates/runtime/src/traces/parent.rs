//! The `traceparent` of W3C Trace Context, version 00. Values from callers and annotations are not trusted: anything
//! that does not match the format exactly is ignored. `tracestate` is neither read nor sent.

use http::{HeaderMap, HeaderName};
use opentelemetry::{
    SpanId, TraceFlags, TraceId,
    trace::{SpanContext, TraceState},
};

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The span of the caller of a request.
pub(super) fn of_caller(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => parse(value.to_str().ok()?),
        _ => None,
    }
}

/// A valid span of a trace that is sampled.
pub(super) fn sampled(text: &str) -> Option<SpanContext> {
    parse(text).filter(SpanContext::is_sampled)
}

fn parse(text: &str) -> Option<SpanContext> {
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let (trace, rest) = text.strip_prefix("00-")?.split_once('-')?;
    let (span, flags) = rest.split_once('-')?;
    if !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let parent = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    parent.is_valid().then_some(parent)
}

/// The `traceparent` of a span.
pub(super) fn text(span: &SpanContext) -> String {
    let flags = span.trace_flags() & TraceFlags::SAMPLED;
    format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_as_it_is_written() {
        let parent = sampled(GOOD).unwrap();
        assert_eq!(text(&parent), GOOD);
        assert!(parent.is_remote());
        assert!(sampled(&GOOD.replace("-01", "-00")).is_none());
        // Other flags are not known.
        assert_eq!(text(&sampled(&GOOD.replace("-01", "-ff")).unwrap()), GOOD);
    }

    #[test]
    fn whatever_has_another_form_is_ignored() {
        let longer = format!("{GOOD}-01");
        let huge = "0".repeat(1 << 20);
        for bad in [
            "",
            "00",
            "----",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-+bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473ä-00f067aa0ba902b7-01",
            "00-1-1-1",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            " 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            &longer,
            &huge,
        ] {
            assert!(parse(bad).is_none(), "{}", &bad[..bad.len().min(80)]);
        }
    }

    #[test]
    fn of_several_headers_none_counts() {
        let mut headers = HeaderMap::new();
        assert!(of_caller(&headers).is_none());
        headers.append(TRACEPARENT, GOOD.parse().unwrap());
        assert!(of_caller(&headers).is_some());
        headers.append(TRACEPARENT, GOOD.parse().unwrap());
        assert!(of_caller(&headers).is_none());
    }
}
