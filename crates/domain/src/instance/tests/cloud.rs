//! A provider that does what it is asked, however unwise.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use jiff::Timestamp;

use crate::provider::{
    Addresses, Notice, Observation, OffCause, Power, Progress, ProviderError, Timings, Trouble,
};
use resources::{Instance, Operation, OperationKind, Plan, PowerState};

/// What tells one operation from another: its kind and its beginning.
type Id = (OperationKind, Timestamp);

/// A server, named after the operation that made it.
#[derive(Clone, Debug)]
pub struct Server {
    made_by: Id,
    address: String,
    pub plan: Plan,
    pub image: String,
    pub on: bool,
    /// Why it is off, if not because that was requested.
    pub exit: Option<OffCause>,
}

/// What is wrong with the provider.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fault {
    #[default]
    None,
    /// Does not answer.
    Unreachable,
    /// Its region is cut off, and the provider knows it.
    CutOff,
    /// Gives impossible answers.
    Nonsense,
    /// Fails at everything that it is asked.
    Fails,
    /// Guests do not shut down when asked.
    HangsSoftStop,
    /// Operations never end.
    Stuck,
    /// Does not say which addresses a server has.
    ForgetsAddresses,
}

/// A provider of servers for one instance. It makes a server for each operation that creates one, without checking
/// whether there is one already. It does only what [`Provider`](providers::Provider) asks of it: a repeated
/// operation is the same operation, a creation repeated with another plan or image changes what it made, and once the
/// server has been deleted none is made again.
#[derive(Debug, Default)]
pub struct Cloud {
    pub servers: Vec<Server>,
    pub fault: Fault,
    /// Servers ever made.
    pub made: usize,
    /// Operations that have begun, and when in the cloud's own time, which no wall clock changes.
    begun: HashMap<Id, Duration>,
    /// The last operation done. Earlier ones are forgotten, so that repeating one runs it again.
    done: Option<Id>,
    deleted: bool,
    pub steps: usize,
    pub boots: usize,
    pub power_cuts: usize,
    pub rebuilds: usize,
    /// Why it has power-cycled the server by itself; said once.
    pub restarted: Option<OffCause>,
    /// What it says is wrong.
    pub notice: Option<Notice>,
    /// Whether the guest was the last to turn the server off. Remains true for a server made in place of a lost one and
    /// left off.
    pub shut_itself_down: bool,
}

impl Cloud {
    /// The server; there never are two when a test looks.
    pub fn server(&self) -> Option<&Server> {
        self.servers.first()
    }

    pub fn is_on(&self) -> bool {
        self.server().is_some_and(|server| server.on)
    }

    /// The guest ends by itself.
    pub fn exit(&mut self, cause: OffCause) {
        for server in self.servers.iter_mut().filter(|server| server.on) {
            server.on = false;
            server.exit = Some(cause);
            self.shut_itself_down = cause == OffCause::GuestShutdown;
        }
    }

    /// One step, `uptime` after the cloud began.
    pub fn step(
        &mut self,
        instance: &Instance,
        uptime: Duration,
        timings: &Timings,
    ) -> Result<Observation, ProviderError> {
        self.steps += 1;
        match self.fault {
            Fault::Unreachable => return Err(ProviderError::Timeout(Duration::from_secs(10))),
            Fault::CutOff => {
                return Err(ProviderError::Unreachable {
                    region: "fr-par-1".into(),
                    since: Timestamp::UNIX_EPOCH,
                });
            }
            Fault::Nonsense => return Err(ProviderError::Nonsense("-1 CPUs".into())),
            _ => {}
        }
        let (mut progress, mut recheck_after) = (Progress::Idle, None);
        if let Some(operation) = instance.status.as_ref().and_then(|s| s.operation.as_ref()) {
            (progress, recheck_after) = self.advance(operation, uptime, timings);
        }
        let address = self.server().map(|server| server.address.clone());
        Ok(Observation {
            power: self.server().map(|server| match server {
                Server { on: true, .. } => Power::On,
                Server { exit, .. } => Power::Off(exit.unwrap_or(OffCause::Requested)),
            }),
            plan: self.server().map(|server| server.plan),
            restarted: self.restarted.take(),
            notice: self.notice.clone(),
            progress,
            addresses: Addresses {
                ipv4: address.filter(|_| self.fault != Fault::ForgetsAddresses),
                ..Addresses::default()
            },
            state: BTreeMap::new(),
            recheck_after,
        })
    }

    fn advance(
        &mut self,
        operation: &Operation,
        uptime: Duration,
        timings: &Timings,
    ) -> (Progress, Option<Duration>) {
        let id = operation.id();
        if operation.kind == OperationKind::Create {
            for server in self.servers.iter_mut().filter(|server| server.made_by == id) {
                server.plan = operation.plan;
                server.image.clone_from(&operation.image);
            }
        }
        if self.done == Some(id) {
            return (Progress::Done, None);
        }
        if self.fault == Fault::Fails {
            return (
                Progress::Failed(Trouble::failed(operation.kind, "broken".into())),
                None,
            );
        }
        let begun = *self.begun.entry(id).or_insert(uptime);
        // A server is there from the beginning of the operation that makes it.
        let creates = match operation.kind {
            OperationKind::Create => self.servers.iter().all(|server| server.made_by != id),
            OperationKind::Stop | OperationKind::PowerOff | OperationKind::Delete => false,
            OperationKind::Start | OperationKind::Reboot | OperationKind::Resize | OperationKind::Rebuild => {
                self.servers.is_empty()
            }
        };
        if creates && !self.deleted {
            self.made += 1;
            self.servers.push(Server {
                made_by: id,
                address: format!("198.18.0.{}", self.made),
                plan: operation.plan,
                image: operation.image.clone(),
                on: false,
                exit: None,
            });
        }
        let hangs = match self.fault {
            Fault::Stuck => true,
            Fault::HangsSoftStop => operation.kind == OperationKind::Stop,
            _ => false,
        };
        let left = timings
            .duration(operation.kind)
            .saturating_sub(uptime.saturating_sub(begun));
        if operation.forced || (left.is_zero() && !hangs) {
            self.finish(operation);
            self.done = Some(id);
            return (Progress::Done, None);
        }
        (Progress::Busy, (!hangs).then_some(left))
    }

    fn finish(&mut self, operation: &Operation) {
        match operation.kind {
            OperationKind::Delete => {
                self.servers.clear();
                self.deleted = true;
            }
            OperationKind::Stop | OperationKind::PowerOff => self.power_cuts += 1,
            OperationKind::Rebuild => self.rebuilds += 1,
            _ => {}
        }
        let off = matches!(operation.kind, OperationKind::Stop | OperationKind::PowerOff);
        for server in &mut self.servers {
            server.plan = operation.plan;
            server.image.clone_from(&operation.image);
            server.on = operation.ends_in == PowerState::Running;
            if server.on || off {
                server.exit = None;
                self.shut_itself_down = false;
            }
            self.boots += usize::from(server.on);
        }
    }
}
