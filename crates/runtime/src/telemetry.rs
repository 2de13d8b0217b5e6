//! Logging to standard error, filtered by `RUST_LOG` (default `info`), as text or JSON lines.

use tracing_subscriber::{EnvFilter, filter::Directive};

use crate::audit;

/// The log filter if `RUST_LOG` is not set.
const DEFAULT_FILTER: &str = "info,kube_runtime=warn,kube_client=error";

/// Starts logging. A second call does nothing.
pub fn init(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    // Who did what is told whatever the filter.
    let audit = format!("{}=info", audit::TARGET).parse::<Directive>();
    let filter = audit.into_iter().fold(filter, EnvFilter::add_directive);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    // An error means that logging has been set up already, for example by a test.
    let _ = if json {
        // The span is the request's; a list with only that span would show it twice.
        subscriber.json().with_span_list(false).try_init()
    } else {
        subscriber.with_ansi(false).try_init()
    };
}
