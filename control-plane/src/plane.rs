//! The control plane: starts the servers in order, kills and restarts them on request, stops them.

use crate::{
    Assets, Daemon, Error, Identity, Options, ProcessGroup, audit,
    credentials::Tokens,
    panics, ports,
    servers::{self, APISERVER, CONTROLLER_MANAGER, ETCD, Etcd, Layout},
};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rustix::process::Signal;
use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::{sleep, timeout};

/// How long a server may take to become ready. It takes three seconds on two idle cores, and up to a minute next to a
/// compiler.
const READY_WITHIN: Duration = Duration::from_mins(2);
const POLL_EVERY: Duration = Duration::from_millis(50);
/// How long a server may take to stop before it is killed; its data is removed in any case.
const GRACE: Duration = Duration::from_secs(2);
const PORT_ATTEMPTS: u32 = 5;
const SIGKILL: i32 = Signal::KILL.as_raw();
const SIGTERM: i32 = Signal::TERM.as_raw();

/// A running etcd, kube-apiserver and, usually, kube-controller-manager. Dropping it kills them and removes their data.
#[derive(Debug)]
pub struct ControlPlane {
    // The order of the fields is the order of dropping.
    controller_manager: Slot,
    apiserver: Slot,
    etcd: Slot,
    group: ProcessGroup,
    layout: Layout,
    assets: Assets,
    options: Options,
    tokens: Tokens,
    etcd_server: Etcd,
    port: u16,
}

/// A server, or nothing if it was killed on purpose.
#[derive(Debug)]
struct Slot(Mutex<Option<Daemon>>);

impl Slot {
    const fn empty() -> Self {
        Self(Mutex::new(None))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Daemon>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pid(&self) -> Option<u32> {
        self.lock().as_ref().map(Daemon::pid)
    }

    /// Kills the server. An error if it had already exited by itself.
    fn kill(&self) -> Result<(), Error> {
        let ended = self.check();
        if let Some(mut daemon) = self.lock().take() {
            daemon.kill();
        }
        ended
    }

    /// An error if the server has exited by itself.
    fn check(&self) -> Result<(), Error> {
        match self.lock().as_mut() {
            Some(daemon) => match daemon.exited() {
                Some(status) => Err(daemon.error(format!("exited ({status})"))),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Empties the slot of a server that has exited by itself and should be restarted. Returns its exit status.
    fn take_ended(&self) -> Result<Option<ExitStatus>, Error> {
        let mut slot = self.lock();
        let Some(daemon) = slot.as_mut() else {
            return Ok(None);
        };
        let ended = daemon.to_be_restarted()?;
        if ended.is_some() {
            *slot = None;
        }
        Ok(ended)
    }

    /// Stops the server. An error if it had exited by itself, or does not end as requested.
    async fn stop(&self) -> Result<(), Error> {
        self.check()?;
        let daemon = self.lock().take();
        let Some(mut daemon) = daemon else { return Ok(()) };
        match daemon.stop(GRACE).await {
            // etcd ends with the signal that it received, and a server that is too slow gets SIGKILL.
            Some(status) if status.success() || matches!(status.signal(), Some(SIGTERM | SIGKILL)) => Ok(()),
            status => Err(daemon.error(format!("did not end well after SIGTERM: {status:?}"))),
        }
    }
}

impl Options {
    /// Starts a control plane with these options, and returns when the API server is ready.
    pub async fn start(self) -> Result<ControlPlane, Error> {
        ControlPlane::start_with(self).await
    }
}

impl ControlPlane {
    /// Options for a control plane; [`Options::start`] starts it.
    pub fn options() -> Options {
        Options::default()
    }

    /// Starts a control plane with the default options.
    pub async fn start() -> Result<Self, Error> {
        Self::options().start().await
    }

    async fn start_with(mut options: Options) -> Result<Self, Error> {
        let assets = match options.assets.take() {
            Some(assets) => assets,
            None => find_assets().await?,
        };
        let (layout, temporary) = if let Some(folder) = options.folder.take() {
            fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
            let folder = fs::canonicalize(&folder).map_err(Error::file("find", &folder))?;
            (Layout { folder }, None)
        } else {
            let folder = tempfile::Builder::new()
                .prefix("stellage-control-plane-")
                .tempdir()
                .map_err(Error::file("create a folder in", std::env::temp_dir()))?;
            (
                Layout {
                    folder: folder.path().to_owned(),
                },
                Some(folder),
            )
        };
        let mut remove = std::mem::take(&mut options.remove);
        if temporary.is_some() {
            remove.push(layout.folder.clone());
        } else {
            remove.extend(layout.disposable());
            for path in layout.disposable() {
                let _ = if path.is_dir() {
                    fs::remove_dir_all(path)
                } else {
                    fs::remove_file(path)
                };
            }
        }
        let group = ProcessGroup::new(&remove, options.lock.take())?;
        // From here on, the group removes it.
        let _ = temporary.map(tempfile::TempDir::keep);
        let tokens = servers::prepare(&layout, &options)?;
        let mut plane = Self {
            controller_manager: Slot::empty(),
            apiserver: Slot::empty(),
            etcd: Slot::empty(),
            group,
            layout,
            assets,
            options,
            tokens,
            etcd_server: Etcd::new(0, 0)?,
            port: 0,
        };
        plane.first_start().await?;
        Ok(plane)
    }

    async fn first_start(&mut self) -> Result<(), Error> {
        let mut attempts = 0..PORT_ATTEMPTS;
        loop {
            self.etcd_server = Etcd::new(ports::free()?, ports::free()?)?;
            match self.start_etcd().await {
                Err(error) if is_port_clash(&error) && attempts.next().is_some() => {
                    self.forget(&self.etcd, ETCD);
                }
                result => break result?,
            }
        }
        loop {
            self.port = ports::free()?;
            match self.start_apiserver().await {
                Err(error) if is_port_clash(&error) && attempts.next().is_some() => {
                    self.forget(&self.apiserver, APISERVER);
                }
                result => break result?,
            }
        }
        if self.options.without_controller_manager {
            return Ok(());
        }
        self.start_controller_manager()
    }

    /// Starts kube-controller-manager. Does nothing if it runs.
    pub fn start_controller_manager(&self) -> Result<(), Error> {
        if self.controller_manager.pid().is_some() {
            return self.controller_manager.check();
        }
        let command =
            servers::controller_manager(&self.assets, &self.layout, &self.options.controller_manager_args);
        self.spawn(&self.controller_manager, CONTROLLER_MANAGER, command)
    }

    /// Removes a server that did not get its port, together with its log, which would mislead the next attempt, and the
    /// files that contain the port.
    fn forget(&self, slot: &Slot, name: &str) {
        // An error would only say that it has ended, which is why it is removed.
        let _ = slot.kill();
        for path in [
            self.layout.log(name),
            self.kubeconfig(Identity::Admin),
            self.kubeconfig(Identity::Operator),
        ] {
            let _ = fs::remove_file(path);
        }
    }

    fn spawn(&self, slot: &Slot, name: &str, command: Command) -> Result<(), Error> {
        *slot.lock() = Some(Daemon::spawn(name, command, &self.group, &self.layout.log(name))?);
        Ok(())
    }

    /// Starts etcd with its previous port and data, and returns when it is ready. Does nothing if it runs.
    pub async fn start_etcd(&self) -> Result<(), Error> {
        if self.etcd.pid().is_some() {
            return self.etcd.check();
        }
        let command = self
            .etcd_server
            .command(&self.assets, &self.layout, &self.options.etcd_args);
        self.spawn(&self.etcd, ETCD, command)?;
        until_ready(&self.etcd, async || self.etcd_server.is_ready().await).await
    }

    /// Starts the API server on its previous port, and returns when it is ready. Does nothing if it runs.
    pub async fn start_apiserver(&self) -> Result<(), Error> {
        if self.apiserver.pid().is_some() {
            return self.apiserver.check();
        }
        let command = servers::apiserver(
            &self.assets,
            &self.layout,
            &self.tokens,
            &self.etcd_server.url(),
            self.port,
            &self.options,
        );
        self.spawn(&self.apiserver, APISERVER, command)?;
        until_ready(&self.apiserver, async || {
            self.apiserver_is_ready().await.unwrap_or(false)
        })
        .await
    }

    async fn apiserver_is_ready(&self) -> Result<bool, Error> {
        let Some(certificates) = self.layout.read_certificates() else {
            return Ok(false);
        };
        // Only once: a restart keeps port and certificates, and clients may be reading the files.
        if !self.kubeconfig(Identity::Operator).is_file() {
            self.tokens
                .write_kubeconfigs(&self.layout.folder, &self.url(), &certificates)?;
        }
        let client = self.client(Identity::Admin).await?;
        let request = http::Request::get("/readyz").body(Vec::new());
        let Ok(request) = request else { return Ok(false) };
        Ok(matches!(
            timeout(Duration::from_secs(5), client.request_text(request)).await,
            Ok(Ok(_))
        ))
    }

    /// Sends SIGKILL to the API server. An error, with the end of its log, if it had exited by itself.
    pub fn kill_apiserver(&self) -> Result<(), Error> {
        self.apiserver.kill()
    }

    /// Sends SIGKILL to etcd. An error, with the end of its log, if it had exited by itself.
    pub fn kill_etcd(&self) -> Result<(), Error> {
        self.etcd.kill()
    }

    /// An error, with the end of its log, if a server has exited without having been killed through this value.
    pub fn check(&self) -> Result<(), Error> {
        let servers = [&self.controller_manager, &self.apiserver, &self.etcd];
        servers.into_iter().try_for_each(Slot::check)
    }

    /// The lines about panics in the logs of the servers, of all their processes, prefixed with the server's name.
    pub fn panics(&self) -> Vec<String> {
        [ETCD, APISERVER, CONTROLLER_MANAGER]
            .into_iter()
            .flat_map(|name| {
                let found = panics::panics(&self.layout.log(name)).into_iter();
                found.map(move |line| format!("{name}: {line}"))
            })
            .collect()
    }

    /// Stops everything in order, within seconds, and removes the data. An error if a server had exited by itself, or
    /// did not end as requested.
    pub async fn stop(self) -> Result<(), Error> {
        let controller_manager = self.controller_manager.stop().await;
        let apiserver = self.apiserver.stop().await;
        let etcd = self.etcd.stop().await;
        controller_manager.and(apiserver).and(etcd)
    }

    /// Restarts the servers that have exited without having been killed through this value, as the kubelet does, and returns
    /// their names and exit statuses when they are ready. An error, with the end of the log, if one exits by itself soon after
    /// its start.
    pub async fn revive(&mut self) -> Result<Vec<(&'static str, ExitStatus)>, Error> {
        let mut revived = Vec::new();
        if let Some(status) = self.etcd.take_ended()? {
            self.start_etcd().await?;
            revived.push((ETCD, status));
        }
        if let Some(status) = self.apiserver.take_ended()? {
            self.start_apiserver().await?;
            revived.push((APISERVER, status));
        }
        if let Some(status) = self.controller_manager.take_ended()? {
            self.start_controller_manager()?;
            revived.push((CONTROLLER_MANAGER, status));
        }
        if !self.group.is_guarded() {
            return Err(Error::Missing(
                "the watchdog process has ended; without it, a killed run would leave servers behind"
                    .to_owned(),
            ));
        }
        Ok(revived)
    }

    /// A client for the API server; it belongs to the runtime that this is called on.
    pub async fn client(&self, identity: Identity) -> Result<Client, Error> {
        let config = self.config(identity).await?;
        Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))
    }

    /// The configuration of [`client`](Self::client), for callers that change it first.
    pub async fn config(&self, identity: Identity) -> Result<Config, Error> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig(identity))?;
        Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }

    /// Path of the kubeconfig of an identity.
    pub fn kubeconfig(&self, identity: Identity) -> PathBuf {
        self.layout.kubeconfig(identity)
    }

    /// URL of the API server: `https://127.0.0.1:…`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// URL of etcd for clients: `http://127.0.0.1:…`.
    pub fn etcd_url(&self) -> String {
        self.etcd_server.url()
    }

    /// The folder with data, kubeconfigs and logs.
    pub fn folder(&self) -> &Path {
        &self.layout.folder
    }

    /// The binaries.
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// The process group of the servers. Use it with [`Daemon::spawn`] for other processes that should end with them.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// The running servers, with their process ids.
    pub fn pids(&self) -> Vec<(&'static str, u32)> {
        [
            (ETCD, &self.etcd),
            (APISERVER, &self.apiserver),
            (CONTROLLER_MANAGER, &self.controller_manager),
        ]
        .into_iter()
        .filter_map(|(name, slot)| Some((name, slot.pid()?)))
        .collect()
    }

    /// All requests that the API server has answered so far, oldest first; needs [`Options::audit_log`]. To count the requests
    /// of a period, compare the lengths before and after.
    pub fn requests(&self) -> Result<Vec<audit::Request>, Error> {
        Ok(self.requests_from(0)?.0)
    }

    /// The same from a position in the log, and the position of its end, from which the next call goes on.
    pub fn requests_from(&self, position: u64) -> Result<(Vec<audit::Request>, u64), Error> {
        audit::read(&self.layout.audit_log(), position)
    }
}

async fn find_assets() -> Result<Assets, Error> {
    tokio::task::spawn_blocking(|| Assets::find_or_build(|line| eprintln!("{line}")))
        .await
        .map_err(|error| Error::Missing(format!("the search for the binaries was interrupted: {error}")))?
}

async fn until_ready(slot: &Slot, is_ready: impl AsyncFn() -> bool) -> Result<(), Error> {
    let started = Instant::now();
    loop {
        slot.check()?;
        if is_ready().await {
            return Ok(());
        }
        if started.elapsed() > READY_WITHIN {
            let what = format!("was not ready within {} s", READY_WITHIN.as_secs());
            return Err(match slot.lock().as_ref() {
                Some(daemon) => daemon.error(what),
                None => Error::Missing(format!("a server {what}, because it was killed")),
            });
        }
        sleep(POLL_EVERY).await;
    }
}

fn is_port_clash(error: &Error) -> bool {
    matches!(error, Error::Process { tail, .. } if tail.contains("address already in use"))
}
