//! Logs: to standard error, filtered by `RUST_LOG` (default `info`), as text or JSON lines.

use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise.
const DEFAULT_FILTER: &str = "info,kube_runtime=warn,kube_client=error";

/// Starts logging. Called once, at the top of the program; a second call does nothing.
pub fn init(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An error means that somebody else, such as a test, logs already.
    let _ = if json {
        subscriber.json().try_init()
    } else {
        subscriber.with_ansi(false).try_init()
    };
}
