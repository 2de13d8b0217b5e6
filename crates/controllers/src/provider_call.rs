//! A call of the provider: with a timeout, and counted.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, timeout};

use domain::provider::ProviderError;
use providers::Provider;
use runtime::{
    Metrics,
    traces::{self, Span},
};

/// Waits for a call of the provider about a server in this region, at most for this long.
pub(crate) async fn within<T>(
    provider: &impl Provider,
    region: &str,
    metrics: &Metrics,
    limit: Duration,
    span: Option<Span>,
    call: impl Future<Output = Result<T, ProviderError>> + Send,
) -> Result<T, ProviderError> {
    let begun = Instant::now();
    let answer = traces::within(span.as_ref(), timeout(limit, call))
        .await
        .unwrap_or(Err(ProviderError::Timeout(limit)));
    let outcome = answer.as_ref().map_or_else(ProviderError::reason, |_| "ok");
    if let Some(span) = span {
        span.set("stellage.provider", provider.name(region));
        if answer.is_err() {
            span.fail(outcome);
        }
    }
    metrics.provider_called(provider.name(region), begun.elapsed(), outcome);
    answer
}
