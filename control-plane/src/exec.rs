//! `control-plane exec -- CMD…`: runs a command against a control plane.

use crate::{Failure, assets, runtime, stop::Stop};
use control_plane::{ControlPlane, Error, Identity};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    ffi::OsString,
    io::IsTerminal as _,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// How long a command may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Argument for kube-apiserver, such as --apiserver-arg=--v=3; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    apiserver_arg: Vec<String>,
    /// Argument for etcd; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    etcd_arg: Vec<String>,
    /// The command to run, with KUBECONFIG set and kubectl in PATH
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn exec(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let assets = assets()?;
    runtime()?.block_on(async {
        let mut stop = Stop::listen(None)?;
        let mut options = ControlPlane::options().assets(assets);
        for arg in &arguments.apiserver_arg {
            options = options.apiserver_arg(arg);
        }
        for arg in &arguments.etcd_arg {
            options = options.etcd_arg(arg);
        }
        let plane = tokio::select! {
            plane = options.start() => plane?,
            _ = stop.requested() => return Ok(ExitCode::FAILURE),
        };
        let result = within(&plane, &arguments.command, &mut stop).await;
        let stopped = plane.stop().await;
        let status = result?;
        stopped?;
        Ok(exit_code(status))
    })
}

async fn within(plane: &ControlPlane, words: &[OsString], stop: &mut Stop) -> Result<ExitStatus, Failure> {
    let (program, arguments) = words
        .split_first()
        .ok_or_else(|| Failure::Other("no command was given".to_owned()))?;
    let path = env::join_paths(
        std::iter::once(plane.assets().kubectl_folder().to_owned())
            .chain(env::split_paths(&env::var_os("PATH").unwrap_or_default())),
    )
    .map_err(|error| Failure::Other(format!("cannot put kubectl in PATH: {error}")))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .env("PATH", path);
    // In the servers' group, the command ends with them, whatever happens here. But only the terminal's foreground group may
    // read from the terminal.
    if !std::io::stdin().is_terminal() {
        command.process_group(plane.group().id());
    }
    let mut child = command.spawn().map_err(|source| Error::Spawn {
        program: program.to_string_lossy().into_owned(),
        source,
    })?;
    tokio::select! {
        status = ended(&mut child) => return status,
        _ = stop.requested() => {}
    }
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::TERM);
    }
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        if let Ok(Some(status)) = child.try_wait() {
            return Ok(status);
        }
        sleep(Duration::from_millis(20)).await;
    }
    let _ = child.kill();
    ended(&mut child).await
}

async fn ended(child: &mut Child) -> Result<ExitStatus, Failure> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => sleep(Duration::from_millis(20)).await,
            Err(error) => return Err(Failure::Other(format!("cannot wait for the command: {error}"))),
        }
    }
}

/// The exit code by the convention of shells: 128 plus the signal's number for a command that a signal ended.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
