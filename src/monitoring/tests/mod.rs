//! Any history of samples, against a reference that looks at all of them each time; and the bounds of the monitor.

mod histories;
mod monitor;
