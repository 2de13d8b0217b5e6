//! Clients in separate processes, so that their work does not count towards any other process: the bench executes itself
//! again, passes the job as JSON on standard input, and reads the result from standard output.

use std::{
    env,
    io::{Read as _, Write as _},
    process::Stdio,
};

use serde::{Serialize, de::DeserializeOwned};
use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::Result;

/// The environment variable with the kind of the job. If it is set, this program runs as a client.
const KIND: &str = "STELLAGE_BENCH_CLIENT";

/// The kind of job, if this process should run as a client.
pub fn wanted() -> Option<String> {
    env::var(KIND).ok()
}

/// Runs a client and returns its result. If it fails, the error contains its standard error.
pub async fn run<T: DeserializeOwned>(kind: &str, job: &impl Serialize) -> Result<T> {
    let mut child = Command::new(env::current_exe()?)
        .env(KIND, kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&serde_json::to_vec(job)?).await?;
    }
    let output = child.wait_with_output().await?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("a client ({kind}) ended with {}: {complaint}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Does a job in this process, which was started for it.
pub async fn serve<J: DeserializeOwned, T: Serialize>(work: impl AsyncFnOnce(J) -> Result<T>) -> Result<()> {
    let mut job = Vec::new();
    std::io::stdin().read_to_end(&mut job)?;
    let result = work(serde_json::from_slice(&job)?).await?;
    Ok(std::io::stdout().write_all(&serde_json::to_vec(&result)?)?)
}
