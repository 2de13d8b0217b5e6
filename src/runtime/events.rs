//! Kubernetes Events, so that `kubectl describe` tells the story. They are told in the background and dropped when the API
//! server cannot keep up: no reconcile ever waits for one, or fails with one.
//!
//! kube's own `Recorder` keeps every Event in memory for six minutes to count repetitions; here a repetition is not
//! published in the first place, because callers compare with the status that they are about to write.

use std::sync::Arc;

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, Resource, api::PostParams};
use tokio::sync::{Semaphore, mpsc};

use super::client::bounded;

/// Events that may wait to be written; more are dropped.
const BACKLOG: usize = 4096;
/// Events written at the same time.
const WRITERS: usize = 4;
/// Longest note that the API server takes, in bytes.
const MAX_NOTE: usize = 1024;

/// Publishes Events of one controller. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(String, Event)>,
    controller: &'static str,
    instance: Arc<str>,
}

impl Events {
    /// Starts the background task. `controller` and `instance` name the reporter.
    pub fn new(client: Client, controller: &'static str, instance: &str) -> Self {
        let (queue, waiting) = mpsc::channel(BACKLOG);
        tokio::spawn(write(client, waiting));
        Self {
            queue,
            controller,
            instance: instance.into(),
        }
    }

    /// Publishes one Event about `object`; `action` is what the controller was doing.
    pub fn publish<K>(&self, object: &K, warning: bool, reason: &str, action: &str, note: &str)
    where
        K: Resource<DynamicType = ()>,
    {
        let namespace = object
            .meta()
            .namespace
            .clone()
            .unwrap_or_else(|| "default".to_owned());
        let end = (0..=note.len().min(MAX_NOTE))
            .rev()
            .find(|i| note.is_char_boundary(*i))
            .unwrap_or(0);
        let now = jiff::Timestamp::now();
        // Named as client-go names them.
        let name = format!(
            "{}.{:x}",
            object.meta().name.as_deref().unwrap_or_default(),
            now.as_nanosecond()
        );
        let event = Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            type_: Some(if warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(reason.to_owned()),
            action: Some(action.to_owned()),
            note: Some(note[..end].to_owned()),
            event_time: Some(MicroTime(now)),
            regarding: Some(ObjectReference {
                resource_version: None,
                ..object.object_ref(&())
            }),
            reporting_controller: Some(format!("stellage.dev/{}", self.controller)),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        };
        if self.queue.try_send((namespace, event)).is_err() {
            tracing::debug!(reason, "an Event was dropped: the API server does not keep up");
        }
    }
}

async fn write(client: Client, mut waiting: mpsc::Receiver<(String, Event)>) {
    let writers = Arc::new(Semaphore::new(WRITERS));
    while let Some((namespace, event)) = waiting.recv().await {
        let Ok(permit) = Arc::clone(&writers).acquire_owned().await else {
            return;
        };
        let api: Api<Event> = Api::namespaced(client.clone(), &namespace);
        tokio::spawn(async move {
            let _permit = permit;
            // A namespace that is going away takes no Events; nothing to be done about it.
            if let Err(error) = bounded(api.create(&PostParams::default(), &event)).await {
                tracing::debug!(%error, namespace, "an Event could not be written");
            }
        });
    }
}
