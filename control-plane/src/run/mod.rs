//! `control-plane run`: the local run. docs/settings.md describes the contract that scripts and documents rely on: its
//! variables, the files in `.run/`, that a process that dies is restarted at the same address, and that only the logs
//! remain when it ends.
//!
//! - `settings`: the settings, from the environment or options;
//! - `folder`: the folder `.run/`;
//! - `product`: the `stellage` program.

mod folder;
mod product;
mod settings;

pub(crate) use settings::Settings;

use crate::{Failure, assets, runtime, say, stop::Stop};
use control_plane::{Assets, ControlPlane, Daemon, Identity, free_port};
use folder::{Folder, quoted};
use product::{GATEWAY, Product, Urls};
use std::{
    env,
    fs::File,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{ExitCode, ExitStatus},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long `stellage` may take to shut down.
const GRACE: Duration = Duration::from_secs(15);

/// The running processes. The fields are in the order of dropping.
struct Session {
    stellage: Daemon,
    gateway: Daemon,
    gateway_port: u16,
    urls: Urls,
    plane: ControlPlane,
}

pub(crate) fn run(settings: &Settings) -> Result<ExitCode, Failure> {
    let stellage = product::find(settings.stellage.as_deref())?;
    let checkout = env::current_dir().map_err(Failure::file("find", "."))?;
    check_port(settings.port)?;
    settings.smtp_url().map_err(Failure::Other)?;
    // Before anything is written to a folder that is not a checkout.
    product::rights(&checkout)?;
    let (folder, lock) = Folder::take(&checkout)?;
    let assets = assets().inspect_err(|_| folder.leave())?;
    runtime()?.block_on(async {
        let mut stop = Stop::listen(settings.parent())?;
        let starting = start(settings, &stellage, &checkout, &folder, assets, lock);
        let mut session = tokio::select! {
            session = starting => session?,
            reason = stop.requested() => {
                say(&format!("Stopped ({reason})."));
                return Ok(ExitCode::SUCCESS);
            }
        };
        let outcome = tokio::select! {
            failure = session.keep_alive(settings, &stellage, &folder) => Err(failure),
            reason = stop.requested() => {
                say(&format!("Stopping ({reason}); the logs stay in .run/."));
                Ok(ExitCode::SUCCESS)
            }
        };
        let stopped = session.stop().await;
        let code = outcome?;
        stopped?;
        Ok(code)
    })
}

async fn start(
    settings: &Settings,
    stellage: &Path,
    checkout: &Path,
    folder: &Folder,
    assets: Assets,
    lock: File,
) -> Result<Session, Failure> {
    let started = Instant::now();
    let step = |text: &str| say(&format!("[{:4.1} s] {text}", started.elapsed().as_secs_f32()));
    step("Starting etcd and kube-apiserver");
    let plane = ControlPlane::options()
        .assets(assets)
        .folder(folder.path())
        .remove(folder.disposable())
        .lock(lock)
        .without_controller_manager()
        .start()
        .await?;
    folder.write_pids(&plane)?;
    let product = Product {
        plane: &plane,
        folder,
        stellage,
    };
    step("Installing the CRDs, the policies and the operator's rights");
    product.install(checkout).await?;
    step("Starting kube-controller-manager");
    plane.start_controller_manager()?;
    folder.write_pids(&plane)?;
    step("Starting stellage");
    let gateway_port = free_port()?;
    let (stellage_run, urls) = product.serve(settings, gateway_port).await?;
    let gateway = product.start_gateway(settings, gateway_port)?;
    step("Creating the account demo and an API key");
    let (account, key) = product.first_key(&urls.api).await?;
    let kubeconfig: PathBuf = plane.kubeconfig(Identity::Admin);
    let kubeconfig = kubeconfig.to_string_lossy();
    folder.link_programs(&[
        ("stellage", stellage),
        // kubectl finds plugins by their file names.
        ("kubectl-stellage", stellage),
        ("kubectl_complete-stellage", stellage),
        ("kubectl", plane.assets().kubectl()),
    ])?;
    folder.write_env(&[
        ("STELLAGE_URL", &urls.api),
        ("STELLAGE_API_KEY", &key),
        ("STELLAGE_ACCOUNT", account),
        ("STELLAGE_METRICS_URL", &urls.metrics),
        ("KUBECONFIG", &kubeconfig),
    ])?;
    step("Ready");
    let mail = match settings.smtp_url() {
        Ok(None) => folder.mail().to_string_lossy().into_owned(),
        _ => "the mail server in SMTP_URL".to_owned(),
    };
    announce(&urls, &key, &kubeconfig, &mail);
    Ok(Session {
        stellage: stellage_run,
        gateway,
        gateway_port,
        urls,
        plane,
    })
}

fn announce(urls: &Urls, key: &str, kubeconfig: &str, mail: &str) {
    use std::io::Write as _;
    let text = format!(
        "\n\
         API      {api}\n\
         Console  {api}/console\n\
         API key  {key}\n\
         Mail     {mail}\n\
         export KUBECONFIG={}\n\
         \n\
         All but the mail is also in .run/env. In another terminal:\n  \
           source .run/env && kubectl get accounts,instances -A\n  \
           curl -H \"Authorization: Bearer $STELLAGE_API_KEY\" $STELLAGE_URL/v1/instances\n\
         Ctrl-C stops everything.\n",
        quoted(kubeconfig),
        api = urls.api,
    );
    // A closed pipe is not an error.
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(text.as_bytes());
    let _ = stdout.flush();
}

impl Session {
    /// Restarts processes that exit, as Kubernetes does. Returns the error once restarting does not help.
    async fn keep_alive(&mut self, settings: &Settings, stellage: &Path, folder: &Folder) -> Failure {
        loop {
            if let Err(failure) = self.revive(settings, stellage, folder).await {
                return failure;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn revive(&mut self, settings: &Settings, stellage: &Path, folder: &Folder) -> Result<(), Failure> {
        let report = |name: &str, status: ExitStatus| {
            say(&format!("{name} exited ({status}) and was restarted."));
        };
        let revived = self.plane.revive().await?;
        if !revived.is_empty() {
            folder.write_pids(&self.plane)?;
        }
        for (name, status) in revived {
            report(name, status);
        }
        let product = Product {
            plane: &self.plane,
            folder,
            stellage,
        };
        if let Some(status) = self.stellage.to_be_restarted()? {
            product.free_lease().await;
            self.stellage = product.start(settings, Some(&self.urls), self.gateway_port)?;
            report("stellage", status);
        }
        if let Some(status) = self.gateway.to_be_restarted()? {
            self.gateway = product.start_gateway(settings, self.gateway_port)?;
            report(GATEWAY, status);
        }
        Ok(())
    }

    /// Stops `stellage` first, because its shutdown needs the API server.
    async fn stop(mut self) -> Result<(), Failure> {
        self.gateway.stop(GRACE).await;
        self.stellage.stop(GRACE).await;
        Ok(self.plane.stop().await?)
    }
}

/// Checks the port before anything is started; otherwise `stellage` would fail a minute later.
fn check_port(port: u16) -> Result<(), Failure> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::Other(format!(
            "cannot use port {port} on 127.0.0.1 ({error}): set PORT to another one, or to 0 for a free one"
        ))),
    }
}
