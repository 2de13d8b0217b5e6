//! Usage, with a stand-in for Prometheus that answers what a test says.
