//! All watches of the API server go through this module. Objects that do not match their schema are set aside, managedFields are
//! pruned, the server ends a watch after 200 s, every watch has its own backoff, and errors are counted.

use std::{fmt::Debug, hash::Hash, sync::Arc, time::Duration};

use backon::ExponentialBuilder;
use futures::{Stream, StreamExt as _, TryStreamExt as _, pin_mut};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Config, Resource,
    core::error_boundary::InvalidObject,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event, watcher},
    },
};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Health, Metrics, ObjectRef,
    client::{self, Observers},
    metrics::KindLabels,
    objects::{Store, Writer, store},
    unparsed::Unparsed,
};
use resources::tracking::prune;

/// Load balancers close idle connections after 240 s at the earliest (Azure's); the server ends a watch before that.
const SERVER_TIMEOUT_SECONDS: u32 = 200;
/// First delay after a failed watch; it doubles with each failure.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
/// Longest delay after a failed watch, and so how long a store may stay stale once the API server is back.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The pauses after failures of a watch.
pub fn backoff() -> watcher::ExponentialBackoff {
    let backoff = ExponentialBuilder::new()
        .with_min_delay(MIN_BACKOFF)
        .with_max_delay(MAX_BACKOFF)
        .with_jitter();
    backoff.without_max_times().into()
}

/// What happened to the objects of a watch.
#[derive(Clone, Debug)]
pub enum Change<K> {
    /// A new list of all objects; any other object known so far is gone.
    Replaced(Vec<Arc<K>>),
    /// An object is new or has changed.
    Applied(Arc<K>),
    /// An object is gone.
    Deleted(Arc<K>),
    /// An object exists but does not match its schema. Follows a `Deleted` of its last readable version, if there was one.
    Unreadable(Arc<InvalidObject>),
}

/// Receives every change of a watch, in order. Called in the watch's own task, so it must not block.
pub trait Listener<K>: Send + 'static {
    /// Called after each change; the [`Store`] already shows it.
    fn changed(&mut self, change: &Change<K>);
}

impl<K, F: FnMut(&Change<K>) + Send + 'static> Listener<K> for F {
    fn changed(&mut self, change: &Change<K>) {
        self(change);
    }
}

/// The listeners of components that need a watch for only part of its life, such as controllers that start afresh.
/// Cheap to clone.
pub struct ListenerSlot<K>(Arc<Mutex<Slot<K>>>);

struct Slot<K> {
    listeners: Vec<Box<dyn Listener<K>>>,
    /// Whether the watch has shown its first list.
    is_listed: bool,
}

impl<K> Default for ListenerSlot<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Slot {
            listeners: Vec::new(),
            is_listed: false,
        })))
    }
}

impl<K> Clone for ListenerSlot<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> ListenerSlot<K>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    /// Makes these listeners listen from now on, and drops the previous ones. They begin with what is in `store`, the
    /// watch's store.
    pub fn fill(&self, mut listeners: Vec<Box<dyn Listener<K>>>, store: &Store<K>) {
        // Anything that the store does not show yet comes after this.
        let mut slot = self.0.lock();
        if slot.is_listed {
            let list = Change::Replaced(store.state());
            for listener in &mut listeners {
                listener.changed(&list);
            }
        }
        slot.listeners = listeners;
    }
}

impl<K: Send + Sync + 'static> Listener<K> for ListenerSlot<K> {
    fn changed(&mut self, change: &Change<K>) {
        let mut slot = self.0.lock();
        slot.is_listed |= matches!(change, Change::Replaced(_));
        for listener in &mut slot.listeners {
            listener.changed(change);
        }
    }
}

/// Starts watches, and holds what they share.
#[derive(Clone)]
pub struct Watches {
    /// The client for those who use the watches.
    pub client: Client,
    /// The client of the watches themselves.
    pub streams: Client,
    /// Where readiness is reported.
    pub health: Health,
    /// Where errors are counted.
    pub metrics: Metrics,
    /// Ends the watches.
    pub shutdown: CancellationToken,
}

impl Watches {
    /// Makes the clients of an API server. Its answers and the watches are told to `observers`.
    pub fn connect(config: Config, observers: Observers, shutdown: CancellationToken) -> kube::Result<Self> {
        Ok(Self {
            streams: client::connect_with_pings(config.clone(), observers.clone())?,
            health: observers.health.clone(),
            metrics: observers.metrics.clone(),
            client: client::connect(config, observers)?,
            shutdown,
        })
    }

    /// Watches all objects of a kind, in every namespace, until shutdown. Listeners and the returned store share `Arc`s, so
    /// each object is in memory once, however many listeners there are.
    pub fn spawn<K>(&self, listeners: Vec<Box<dyn Listener<K>>>) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        self.spawn_selected(watcher::Config::default(), listeners)
    }

    /// Like [`spawn`](Self::spawn), but only for the objects that `config` selects by label or field. With a
    /// [`PartialObjectMeta`](kube::core::PartialObjectMeta) only metadata is kept in memory.
    pub fn spawn_selected<K>(&self, config: watcher::Config, listeners: Vec<Box<dyn Listener<K>>>) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        self.spawn_without(config, |_| (), listeners)
    }

    /// Like [`spawn_selected`](Self::spawn_selected), but what `leave_out` takes out of an object is not kept in memory.
    pub fn spawn_without<K>(
        &self,
        config: watcher::Config,
        leave_out: fn(&mut K),
        listeners: Vec<Box<dyn Listener<K>>>,
    ) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        self.start(Api::all(self.streams.clone()), config, leave_out, listeners)
    }

    /// Like [`spawn_without`](Self::spawn_without), but only for the objects in a namespace.
    pub fn spawn_in<K>(
        &self,
        namespace: &str,
        config: watcher::Config,
        leave_out: fn(&mut K),
        listeners: Vec<Box<dyn Listener<K>>>,
    ) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let api = Api::namespaced(self.streams.clone(), namespace);
        self.start(api, config, leave_out, listeners)
    }

    fn start<K>(
        &self,
        api: Api<Unparsed<K>>,
        config: watcher::Config,
        leave_out: fn(&mut K),
        listeners: Vec<Box<dyn Listener<K>>>,
    ) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        let (reader, writer) = store::<K>();
        let kind: &'static str = K::kind(&K::DynamicType::default()).into_owned().leak();
        self.health.expect(
            format!("watch {kind}"),
            "the first list from the API server (are the CRDs installed?)",
        );
        let events = self.read_ahead(kind, api, config);
        tokio::spawn(
            self.clone()
                .run(kind, events, leave_out, reader.clone(), writer, listeners),
        );
        reader
    }

    async fn run<K>(
        self,
        kind: &'static str,
        mut events: mpsc::Receiver<watcher::Result<Event<Unparsed<K>>>>,
        leave_out: fn(&mut K),
        reader: Store<K>,
        writer: Writer<K>,
        mut listeners: Vec<Box<dyn Listener<K>>>,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        let labels = KindLabels { kind };
        let errors = self.metrics.watch_errors.get_or_create_owned(&labels);
        let invalid = self.metrics.invalid_objects.get_or_create_owned(&labels);
        let objects = self.metrics.objects.get_or_create_owned(&labels);
        let (mut listed, mut unreadable) = (Vec::new(), Vec::new());
        loop {
            let event = tokio::select! {
                () = self.shutdown.cancelled() => return,
                event = events.recv() => event,
            };
            let event = match event {
                None => return,
                Some(Err(error)) => {
                    self.health.watch_progressed();
                    errors.inc();
                    tracing::warn!(kind, %error, "watch failed; will retry");
                    continue;
                }
                Some(Ok(event)) => event,
            };
            let mut notify = |change: Change<K>| {
                for listener in &mut listeners {
                    listener.changed(&change);
                }
            };
            let set_aside = |object: Arc<InvalidObject>| {
                invalid.inc();
                let ObjectMeta { name, namespace, .. } = &object.metadata;
                tracing::error!(kind, ?namespace, ?name, error = %object.error, "ignoring an object that does not match its schema");
                object
            };
            match event {
                Event::Init => {
                    listed.clear();
                    unreadable.clear();
                }
                Event::InitApply(object) => match object.parse() {
                    Ok(mut object) => {
                        prune(object.meta_mut());
                        leave_out(&mut object);
                        listed.push(Arc::new(object));
                    }
                    Err(object) => unreadable.push(set_aside(object)),
                },
                Event::InitDone => {
                    let listed = std::mem::take(&mut listed);
                    writer.replace(listed.iter().cloned());
                    notify(Change::Replaced(listed));
                    unreadable
                        .drain(..)
                        .for_each(|object| notify(Change::Unreadable(object)));
                    self.health.ready(&format!("watch {kind}"));
                }
                Event::Apply(object) => match object.parse() {
                    Ok(mut object) => {
                        prune(object.meta_mut());
                        leave_out(&mut object);
                        let object = Arc::new(object);
                        writer.apply(object.clone());
                        notify(Change::Applied(object));
                    }
                    Err(object) => {
                        // Nothing may act on outdated data.
                        if let Some(last) = writer.delete(&object.metadata) {
                            notify(Change::Deleted(last));
                        }
                        notify(Change::Unreadable(set_aside(object)));
                    }
                },
                Event::Delete(object) => match object.parse() {
                    Ok(object) => {
                        writer.delete(object.meta());
                        notify(Change::Deleted(Arc::new(object)));
                    }
                    Err(object) => {
                        if let Some(last) = writer.delete(&object.metadata) {
                            notify(Change::Deleted(last));
                        }
                    }
                },
            }
            objects.set(i64::try_from(reader.len()).unwrap_or(i64::MAX));
        }
    }

    /// The events of a watch, read ahead: the API server sends more of a list, or prepares its next page, while earlier
    /// objects are parsed. Otherwise each side would be idle half of the time, waiting for the other.
    fn read_ahead<K>(
        &self,
        kind: &'static str,
        api: Api<Unparsed<K>>,
        config: watcher::Config,
    ) -> mpsc::Receiver<watcher::Result<Event<Unparsed<K>>>>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone + Debug + Unpin + Send + Sync,
    {
        // A page of objects, plus the beginning and the end of the list.
        let capacity = usize::try_from(config.page_size.unwrap_or_default()).unwrap_or_default() + 2;
        let (sender, events) = mpsc::channel(capacity);
        let config = config.timeout(SERVER_TIMEOUT_SECONDS);
        let (health, metrics) = (self.health.clone(), self.metrics.clone());
        tokio::spawn(async move {
            let resource = K::plural(&K::DynamicType::default()).into_owned();
            // Noted here, because the next answer may come before the event of this error is processed.
            let watch = |config| {
                watcher(api.clone(), config)
                    .inspect_err(|_| health.watch_lost(&resource))
                    .backoff(backoff())
            };
            if !forward_streamed(watch(config.clone().streaming_lists()), &sender).await {
                forward(watch(config), &sender).await;
            }
            // The stream is gone, so no answer comes after this. Nobody receives events, so nobody counts objects any more.
            metrics.watch_ended(kind, &resource);
        });
        events
    }
}

/// Forwards the events of a watch whose lists are streamed: the API server sends them from its cache, object by object,
/// which takes less than half as long as in pages. Returns whether nobody receives them any more; if not, a list was
/// not streamed to its end and must be read in pages, as with Kubernetes before 1.34.
async fn forward_streamed<K>(
    events: impl Stream<Item = watcher::Result<Event<K>>>,
    receiver: &mpsc::Sender<watcher::Result<Event<K>>>,
) -> bool {
    pin_mut!(events);
    let (mut is_listing, mut was_listed) = (false, false);
    while let Some(event) = next(&mut events, receiver).await {
        match &event {
            // The previous list ended too soon.
            Ok(Event::Init) if is_listing => return false,
            Ok(Event::Init) => is_listing = true,
            Ok(Event::InitDone) => (is_listing, was_listed) = (false, true),
            Err(error) if is_listing || !was_listed => {
                tracing::debug!(%error, "a list was not streamed; reading it in pages");
                return false;
            }
            Ok(_) | Err(_) => {}
        }
        if receiver.send(event).await.is_err() {
            return true;
        }
    }
    true
}

/// Forwards the events of a watch whose lists come in pages, until nobody receives them any more.
async fn forward<T>(events: impl Stream<Item = T>, receiver: &mpsc::Sender<T>) {
    pin_mut!(events);
    while let Some(event) = next(&mut events, receiver).await {
        if receiver.send(event).await.is_err() {
            return;
        }
    }
}

/// The next event, unless nobody would receive it.
async fn next<S: Stream + Unpin>(events: &mut S, receiver: &mpsc::Sender<S::Item>) -> Option<S::Item> {
    tokio::select! {
        () = receiver.closed() => None,
        event = events.next() => event,
    }
}

/// `namespace/name`, for logs.
pub fn key(object: &impl Resource) -> String {
    ObjectRef::of(object).to_string()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        thread,
        time::Instant,
    };

    use futures::stream;
    use serde_json::json;

    use super::*;
    use crate::testing::answered_by;
    use resources::Instance;

    /// Lists and watches asked for so far.
    static ASKED: AtomicU32 = AtomicU32::new(0);

    fn wait_for_the_second_page(_: &mut Instance) {
        let begun = Instant::now();
        while ASKED.load(Ordering::SeqCst) < 2 && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it is not asked for");
    }

    #[tokio::test]
    async fn a_list_that_is_not_streamed_to_its_end_is_read_in_pages_and_a_later_error_is_only_reported() {
        let failure = || Err(watcher::Error::NoResourceVersion);
        for (events, forwarded, is_over) in [
            (vec![failure()], 0, false),
            (
                vec![Ok(Event::Init), Ok(Event::InitApply(())), Ok(Event::Init)],
                2,
                false,
            ),
            (vec![Ok(Event::Init), failure()], 1, false),
            (
                vec![
                    Ok(Event::Init),
                    Ok(Event::InitDone),
                    failure(),
                    Ok(Event::Init),
                    Ok(Event::InitDone),
                ],
                5,
                true,
            ),
        ] {
            let (sender, mut received) = mpsc::channel(10);
            assert_eq!(forward_streamed(stream::iter(events), &sender).await, is_over);
            drop(sender);
            let mut count = 0;
            while received.recv().await.is_some() {
                count += 1;
            }
            assert_eq!(count, forwarded);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_next_page_of_a_list_is_asked_for_while_the_objects_of_the_last_one_are_parsed() {
        let client = answered_by(|_, path, _| async move {
            let asked = ASKED.fetch_add(1, Ordering::SeqCst);
            if path.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let next = (asked == 0).then_some("next");
            let instance = json!({
                "apiVersion": "stellage.dev/v1", "kind": "Instance",
                "metadata": { "name": format!("i-{asked}"), "namespace": "demo", "resourceVersion": "7" },
                "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
            });
            let list = json!({
                "apiVersion": "stellage.dev/v1", "kind": "InstanceList",
                "metadata": { "resourceVersion": "9", "continue": next }, "items": [instance],
            });
            (200, list)
        });
        let watches = Watches {
            client: client.clone(),
            streams: client,
            health: Health::default(),
            metrics: Metrics::new(),
            shutdown: CancellationToken::new(),
        };
        let pages = watcher::Config::default().page_size(1);
        let store = watches.spawn_without(pages, wait_for_the_second_page, Vec::new());
        let ready = tokio::time::timeout(Duration::from_secs(20), store.wait_until_ready());
        ready.await.unwrap().unwrap();
        assert_eq!(store.len(), 2);
        watches.shutdown.cancel();
    }

    /// Row 39 of the failure matrix (docs/kubevirt.md).
    #[tokio::test]
    async fn a_watch_whose_version_is_too_old_lists_again_and_shows_only_what_is_there() {
        static LISTS: AtomicU32 = AtomicU32::new(0);
        let client = answered_by(|_, path, _| async move {
            if path.contains("watch=true") {
                if LISTS.load(Ordering::SeqCst) > 1 {
                    std::future::pending::<()>().await;
                }
                let expired = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
                    "reason": "Expired", "message": "too old resource version" });
                return (200, json!({ "type": "ERROR", "object": expired }));
            }
            let number = LISTS.fetch_add(1, Ordering::SeqCst);
            let instance = json!({
                "apiVersion": "stellage.dev/v1", "kind": "Instance",
                "metadata": { "name": format!("i-{number}"), "namespace": "demo", "resourceVersion": "7" },
                "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
            });
            let list = json!({
                "apiVersion": "stellage.dev/v1", "kind": "InstanceList",
                "metadata": { "resourceVersion": "9" }, "items": [instance],
            });
            (200, list)
        });
        let watches = Watches {
            client: client.clone(),
            streams: client,
            health: Health::default(),
            metrics: Metrics::new(),
            shutdown: CancellationToken::new(),
        };
        let store = watches.spawn::<Instance>(Vec::new());
        let shows = |name| store.get(&ObjectRef::new("demo", name)).is_some();
        let listed = async {
            while !shows("i-1") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), listed)
            .await
            .unwrap();
        assert!(!shows("i-0"));
        watches.shutdown.cancel();
    }

    #[tokio::test]
    async fn a_watch_that_has_ended_shows_neither_when_it_was_answered_nor_how_many_objects_there_were() {
        let client = answered_by(|_, path, _| async move {
            if path.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let empty = json!({
                "apiVersion": "stellage.dev/v1", "kind": "InstanceList",
                "metadata": { "resourceVersion": "9" }, "items": [],
            });
            (200, empty)
        });
        let metrics = Metrics::new();
        let watches = Watches {
            client: client.clone(),
            streams: client,
            health: Health::default(),
            metrics: metrics.clone(),
            shutdown: CancellationToken::new(),
        };
        let store = watches.spawn::<Instance>(Vec::new());
        store.wait_until_ready().await.unwrap();
        metrics.watch_answered("instances");
        metrics.watch_answered("accounts");
        let of_others = KindLabels { kind: "Account" };
        metrics.objects.get_or_create_owned(&of_others).set(1);
        let shows = |series: &str| {
            metrics
                .render(crate::metrics::Format::OpenMetrics)
                .unwrap()
                .contains(series)
        };
        let answered = "{resource=\"instances\"}";
        let objects = "stellage_objects{kind=\"Instance\"}";
        assert!(shows(answered) && shows(objects));
        watches.shutdown.cancel();
        let is_gone = async {
            while shows(answered) || shows(objects) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), is_gone)
            .await
            .unwrap();
        let others = ["{resource=\"accounts\"}", "stellage_objects{kind=\"Account\"}"];
        assert!(others.into_iter().all(shows), "those of another watch stay");
    }

    #[tokio::test]
    async fn a_process_whose_api_server_is_away_is_not_taken_for_stuck() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = Client::try_from(nowhere).unwrap();
        let health = Health::default();
        health.stall();
        assert!(!health.is_live());
        let watches = Watches {
            client: client.clone(),
            streams: client,
            health: health.clone(),
            metrics: Metrics::new(),
            shutdown: CancellationToken::new(),
        };
        watches.spawn::<Instance>(Vec::new());
        let is_live = async {
            while !health.is_live() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), is_live)
            .await
            .unwrap();
        watches.shutdown.cancel();
    }
}
