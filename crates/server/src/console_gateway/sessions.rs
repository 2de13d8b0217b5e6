//! The consoles that are open: how many there may be, and why one must end.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ConsoleLimits, ticket::Ticket};
use domain::instance::has_console;
use resources::{ApiKey, Instance, InstanceState, origin};
use runtime::{ObjectRef, Store, events::Events, watch::Change};

/// Why a console ends, or is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client has gone.
    Left,
    /// The server's end of the line was closed.
    LineEnded,
    /// The server is not on any more.
    Stopped,
    /// The instance was deleted.
    Deleted,
    /// The API key was revoked, or has expired.
    Revoked,
    Idle,
    TooLong,
    /// Too many are open: in all, of the account, of the instance.
    TooMany(&'static str),
    /// It is not known any more whether the key is valid.
    Blind,
    Shutdown,
    /// The console cannot be reached.
    Failed(&'static str),
}

impl Ending {
    /// The code of the WebSocket's close frame: those of RFC 6455, and some of our own from 4000 on.
    pub(super) const fn code(self) -> u16 {
        match self {
            Self::Left | Self::LineEnded => 1000,
            Self::Shutdown => 1001,
            Self::Failed(_) => 1011,
            Self::TooMany(_) | Self::Blind => 1013,
            Self::Stopped => 4000,
            Self::Deleted => 4001,
            Self::Revoked => 4002,
            Self::Idle => 4003,
            Self::TooLong => 4004,
        }
    }

    /// For the person in front of the console; at most 123 bytes, as in a close frame.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Left => "you have left",
            Self::LineEnded => "the server's end was closed; perhaps somebody else has opened the console",
            Self::Stopped => {
                "the server is not running any more, or is being rebooted; open the console again once it runs"
            }
            Self::Deleted => "the instance was deleted",
            Self::Revoked => "the API key was revoked, or has expired",
            Self::Idle => "nothing has happened for too long",
            Self::TooLong => "the console was open for as long as one may be; open it again",
            Self::TooMany(reason) | Self::Failed(reason) => reason,
            Self::Blind | Self::Shutdown => "the service is restarting; open the console again",
        }
    }
}

/// A console that somebody wants to open.
pub(super) struct Opening {
    pub(super) ticket: Ticket,
    pub(super) instance: Arc<Instance>,
    pub(super) peer: Option<IpAddr>,
    pub(super) now: Timestamp,
}

struct Open {
    ticket: Ticket,
    instance: ObjectRef,
    key: ObjectRef,
    must_end: Arc<MustEnd>,
}

#[derive(Default)]
struct MustEnd {
    why: OnceLock<Ending>,
    signal: CancellationToken,
}

impl MustEnd {
    fn because(&self, ending: Ending) {
        let _ = self.why.set(ending);
        self.signal.cancel();
    }
}

/// What the watches have shown.
struct Seen {
    instances: Store<Instance>,
    keys: Store<ApiKey>,
}

pub(super) struct Sessions {
    limits: ConsoleLimits,
    events: Events,
    seen: OnceLock<Seen>,
    open: Mutex<HashMap<u64, Open>>,
    next: AtomicU64,
}

impl Sessions {
    pub(super) fn new(limits: ConsoleLimits, events: Events) -> Self {
        Self {
            limits,
            events,
            seen: OnceLock::new(),
            open: Mutex::default(),
            next: AtomicU64::default(),
        }
    }

    pub(super) fn attach(&self, instances: Store<Instance>, keys: Store<ApiKey>) {
        let _ = self.seen.set(Seen { instances, keys });
    }

    /// The instance whose console a ticket opens, if it may be open.
    pub(super) fn check(&self, ticket: &Ticket, now: Timestamp) -> Result<Arc<Instance>, Ending> {
        let seen = self.seen.get().ok_or(Ending::Blind)?;
        let key = seen.keys.named(&ticket.namespace, &ticket.key);
        let key = key.filter(|key| origin::uid(&key.metadata) == ticket.key_uid);
        if key.is_none_or(|key| key.spec.expires_at.is_some_and(|end| end <= now)) {
            return Err(Ending::Revoked);
        }
        let instance = seen.instances.named(&ticket.namespace, &ticket.instance);
        let instance = instance.filter(|instance| {
            origin::uid(&instance.metadata) == ticket.instance_uid
                && instance.metadata.deletion_timestamp.is_none()
        });
        let instance = instance.ok_or(Ending::Deleted)?;
        let status = instance.status.as_ref();
        let state = status.and_then(|status| status.state);
        let power = status.and_then(|status| status.power);
        if !has_console(state.unwrap_or(InstanceState::Provisioning), power) {
            return Err(Ending::Stopped);
        }
        Ok(instance)
    }

    /// When the API key of a ticket expires.
    fn expiry(&self, ticket: &Ticket) -> Option<Timestamp> {
        let keys = &self.seen.get()?.keys;
        keys.named(&ticket.namespace, &ticket.key)?.spec.expires_at
    }

    /// Opens a console if there is room. It is closed when what is returned is dropped.
    pub(super) fn enter(self: &Arc<Self>, opening: &Opening) -> Result<Session, Ending> {
        let Opening {
            ticket,
            instance,
            now,
            ..
        } = opening;
        let mut open = self.open.lock();
        let count = |matches: &dyn Fn(&Open) -> bool| open.values().filter(|it| matches(it)).count();
        let wanted = ObjectRef::of(&**instance);
        let limits = &self.limits;
        for (count, limit, reason) in [
            (
                count(&|it| it.instance == wanted),
                limits.max_consoles_per_instance,
                "too many consoles of this instance are open; close one",
            ),
            (
                count(&|it| it.ticket.namespace == ticket.namespace),
                limits.max_consoles_per_account,
                "too many consoles of this account are open; close one",
            ),
            (
                open.len(),
                limits.max_consoles,
                "too many consoles are open; try again later",
            ),
        ] {
            if count >= usize::try_from(limit).unwrap_or(usize::MAX) {
                return Err(Ending::TooMany(reason));
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let must_end = Arc::<MustEnd>::default();
        let entry = Open {
            ticket: ticket.clone(),
            instance: wanted,
            key: ObjectRef::new(&ticket.namespace, &ticket.key),
            must_end: must_end.clone(),
        };
        open.insert(id, entry);
        drop(open);
        // From here on changes are noticed, and this notices those of before.
        if let Err(ending) = self.check(ticket, *now) {
            must_end.because(ending);
        }
        let begun = Instant::now();
        let expires_in = self.expiry(ticket).map(|expiry| expiry.duration_since(*now));
        let expires_in = expires_in.and_then(|left| Duration::try_from(left).ok());
        let note = format!(
            "The {} console was opened with the API key {}",
            ticket.r#type, ticket.key
        );
        self.events
            .publish(&**instance, false, "ConsoleOpened", "OpenConsole", &note);
        Ok(Session {
            sessions: self.clone(),
            id,
            must_end,
            begun,
            idle: Duration::from_secs(limits.console_idle_seconds.into()),
            longest: begun + Duration::from_secs(limits.console_seconds.into()),
            key_expires: expires_in.and_then(|left| begun.checked_add(left)),
        })
    }

    /// Ends those that may not be open any more, of the ones that a change concerns.
    fn review(&self, concerns: impl Fn(&Open) -> bool) {
        let open = self.open.lock();
        if open.is_empty() {
            return;
        }
        // The expiry of keys is watched by each session itself.
        let now = Timestamp::MIN;
        for it in open.values().filter(|it| concerns(it)) {
            if let Err(ending) = self.check(&it.ticket, now) {
                it.must_end.because(ending);
            }
        }
    }

    pub(super) fn instances_changed(&self, change: &Change<Instance>) {
        match change {
            Change::Applied(instance) | Change::Deleted(instance) => {
                let changed = ObjectRef::of(&**instance);
                self.review(|it| it.instance == changed);
            }
            Change::Replaced(_) => self.review(|_| true),
            // A Deleted of what was readable came first.
            Change::Unreadable(_) => {}
        }
    }

    pub(super) fn keys_changed(&self, change: &Change<ApiKey>) {
        match change {
            Change::Applied(key) | Change::Deleted(key) => {
                let changed = ObjectRef::of(&**key);
                self.review(|it| it.key == changed);
            }
            Change::Replaced(_) => self.review(|_| true),
            Change::Unreadable(_) => {}
        }
    }

    pub(super) fn close_all(&self) {
        for it in self.open.lock().values() {
            it.must_end.because(Ending::Shutdown);
        }
    }
}

/// An open console.
pub(super) struct Session {
    sessions: Arc<Sessions>,
    pub(super) id: u64,
    must_end: Arc<MustEnd>,
    pub(super) begun: Instant,
    /// How long nothing may happen.
    pub(super) idle: Duration,
    longest: Instant,
    key_expires: Option<Instant>,
}

impl Session {
    /// Waits until it must end, whatever its client does.
    pub(super) async fn must_end(&self) -> Ending {
        let key_expires = async {
            match self.key_expires {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.must_end.signal.cancelled() => *self.must_end.why.get().unwrap_or(&Ending::Shutdown),
            () = tokio::time::sleep_until(self.longest) => Ending::TooLong,
            () = key_expires => Ending::Revoked,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.open.lock().remove(&self.id);
    }
}
