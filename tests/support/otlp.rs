//! A receiver of OTLP over HTTP, which records what it gets.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    collector::{logs::v1::ExportLogsServiceRequest, trace::v1::ExportTraceServiceRequest},
    common::v1::any_value::Value,
    trace::v1,
};
use prost::Message as _;

use super::receivers::Receiver;

/// A span, with its ids in hexadecimal.
#[derive(Clone, Debug)]
pub struct Span {
    pub service: String,
    pub trace: String,
    pub id: String,
    /// Empty if there is no parent.
    pub parent: String,
    pub name: String,
    pub kind: v1::span::SpanKind,
    pub attributes: BTreeMap<String, String>,
    pub has_failed: bool,
}

fn text(value: &Value) -> String {
    match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn attributes(list: &[opentelemetry_proto::tonic::common::v1::KeyValue]) -> BTreeMap<String, String> {
    let pairs = list.iter().map(|pair| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
        (pair.key.clone(), value.map(text).unwrap_or_default())
    });
    pairs.collect()
}

/// The attributes of the log records of this name that a receiver has got.
pub fn log_records(receiver: &Receiver, event_name: &str) -> Vec<BTreeMap<String, String>> {
    let requests = receiver.received().into_iter();
    let logs = requests.filter(|request| request.path == "/v1/logs");
    let logs = logs.map(|request| ExportLogsServiceRequest::decode(request.body).unwrap());
    let scopes = logs
        .flat_map(|logs| logs.resource_logs)
        .flat_map(|of_service| of_service.scope_logs);
    scopes
        .flat_map(|scope| scope.log_records)
        .filter(|record| record.event_name == event_name)
        .map(|record| attributes(&record.attributes))
        .collect()
}

/// The spans that a receiver has got.
pub fn spans(receiver: &Receiver) -> Vec<Span> {
    let mut spans = Vec::new();
    for request in receiver.received() {
        assert_eq!(
            (request.path.as_str(), request.header("content-type")),
            ("/v1/traces", "application/x-protobuf")
        );
        let sent = ExportTraceServiceRequest::decode(request.body).unwrap();
        for of_service in sent.resource_spans {
            let resource = attributes(&of_service.resource.unwrap().attributes);
            let scopes = of_service.scope_spans.into_iter();
            spans.extend(scopes.flat_map(|scope| scope.spans).map(|span| {
                Span {
                    service: resource["service.name"].clone(),
                    trace: hex::encode(&span.trace_id),
                    id: hex::encode(&span.span_id),
                    parent: hex::encode(&span.parent_span_id),
                    kind: span.kind(),
                    attributes: attributes(&span.attributes),
                    has_failed: span
                        .status
                        .is_some_and(|status| status.code() == v1::status::StatusCode::Error),
                    name: span.name,
                }
            }));
        }
    }
    spans
}
