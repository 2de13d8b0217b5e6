//! The usage of instances: now, and over a window.

use std::time::Duration;

use tokio::time::timeout;

use super::{
    Service,
    error::{Error, no_series, not_monitored},
    id::InstanceId,
    instances::IndexedInstance,
};
use domain::provider::{ProviderError, Series, Usage, Window};
use runtime::watch::key;

/// Maximum number of simultaneous questions about usage, in total and from one account.
pub(super) const ASKED_AT_ONCE: usize = 64;
pub(super) const ASKED_BY_ONE: usize = 16;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

impl Service {
    /// The current usage of an instance; unknown if there is no answer within two seconds.
    pub async fn usage_of(&self, item: &IndexedInstance) -> Usage {
        let question = self.usage.usage(&item.instance, self.clock.now());
        self.answer(item, question).await.unwrap_or_default()
    }

    /// The usage of an instance over a window; `not_found` if it is not in the namespace, `invalid_state` if it is not monitored
    /// or nobody keeps its usage.
    pub async fn series_of(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        window: Window,
    ) -> Result<Series, Error> {
        let item = self.instances.find(namespace, id).await?;
        if !item.instance.spec.monitoring_enabled {
            return Err(not_monitored());
        }
        let question = self.usage.series(&item.instance, window, self.clock.now());
        match self.answer(&item, question).await {
            Some(series) => series.ok_or_else(no_series),
            None => Err(Error::unavailable(
                "the usage of the instance cannot be read at the moment; try again",
            )),
        }
    }

    /// The answer to a question about an instance, if there is one in time.
    async fn answer<T>(
        &self,
        item: &IndexedInstance,
        question: impl Future<Output = Result<T, ProviderError>>,
    ) -> Option<T> {
        let account = item.instance.metadata.namespace.as_deref().unwrap_or_default();
        let asking = async {
            let _permit = self.usage_permits.acquire(account).await;
            question.await
        };
        let answer = timeout(PATIENCE, asking).await;
        let answer = answer.unwrap_or(Err(ProviderError::Timeout(PATIENCE)));
        answer
            .inspect_err(|error| tracing::debug!(instance = key(&*item.instance), %error, "no usage"))
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::{BoxFuture, ready};
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::service::{error::ErrorCode, id::PublicId as _};
    use providers::UsageSource;
    use resources::Instance;
    use runtime::watch::Change;

    /// Keeps no series, and fails for instances without a status.
    struct NoMetricsSystem;

    fn answer<T: Send + 'static>(
        instance: &Instance,
        answer: T,
    ) -> BoxFuture<'static, Result<T, ProviderError>> {
        let failed = ProviderError::Unavailable("away".to_owned());
        Box::pin(ready(instance.status.as_ref().map(|_| answer).ok_or(failed)))
    }

    impl UsageSource for NoMetricsSystem {
        fn usage<'a>(
            &'a self,
            instance: &'a Instance,
            _: Timestamp,
        ) -> BoxFuture<'a, Result<Usage, ProviderError>> {
            let usage = Usage {
                cpu_usage: Some(12.5),
                ..Usage::default()
            };
            answer(instance, usage)
        }

        fn series<'a>(
            &'a self,
            instance: &'a Instance,
            _: Window,
            _: Timestamp,
        ) -> BoxFuture<'a, Result<Option<Series>, ProviderError>> {
            answer(instance, None)
        }
    }

    #[tokio::test]
    async fn without_a_metrics_system_there_is_only_the_current_usage_and_a_failure_is_no_usage() {
        let service = Service {
            usage: Arc::new(NoMetricsSystem),
            ..Service::without_cluster()
        };
        let instance = |name: &str, has_status: bool| {
            let mut object = json!({
                "metadata": { "name": name, "namespace": "demo", "uid": name, "resourceVersion": "1" },
                "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "monitoringEnabled": true },
            });
            if has_status {
                object["status"] = json!({ "state": "running" });
            }
            Arc::new(serde_json::from_value::<Instance>(object).unwrap())
        };
        let (known, failing) = ("i-aaaaaaaaaaaaaaaa", "i-bbbbbbbbbbbbbbbb");
        let all = vec![instance(known, true), instance(failing, false)];
        service.listeners().instances.changed(&Change::Replaced(all));
        let series = |id: &str| service.series_of("demo", InstanceId::parse(id), Window::Hour);
        let refused = series(known).await.unwrap_err();
        assert_eq!(refused.code, ErrorCode::InvalidState);
        assert!(refused.message.starts_with("no metrics system"), "{refused}");
        let refused = series(failing).await.unwrap_err();
        assert!(refused.code == ErrorCode::ServiceUnavailable && refused.retry_after.is_some());
        for (id, cpu_usage) in [(known, Some(12.5)), (failing, None)] {
            let item = service.instance("demo", InstanceId::parse(id)).await.unwrap();
            assert_eq!(service.usage_of(&item).await.cpu_usage, cpu_usage);
        }
    }
}
