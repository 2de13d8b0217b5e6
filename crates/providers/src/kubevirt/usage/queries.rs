//! What Prometheus is asked: one expression a figure, the same for all servers of a region and for one. Metrics and labels are
//! those of virt-handler.
//!
//! Always `max by`, never `sum`: during a live migration two nodes report the same server.

use super::measured::Figure;
use crate::kubevirt::names::Server;

/// How long a sample counts. Prometheus itself shows the last one for five minutes.
pub(super) const STALE_SECONDS: i64 = 180;

/// A label value as a string of PromQL, which takes the escapes of JSON.
fn text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}

/// Selects the servers of an installation, in the braces of a selector.
pub(super) fn of_installation(installation: &str) -> String {
    format!(
        "kubernetes_vmi_label_stellage_dev_installation={}",
        text(installation)
    )
}

/// Selects one server.
pub(super) fn of_server(installation: &str, server: &Server) -> String {
    let all = of_installation(installation);
    format!(
        "{all},namespace={},name={}",
        text(&server.namespace),
        text(&server.name)
    )
}

/// The expression for a figure of the servers that are selected. CPU usage is that of the last `seconds`.
pub(super) fn query(figure: Figure, selected: &str, seconds: i64) -> String {
    let newest =
        |metric: &str, more: &str| format!("max by (namespace, name) ({metric}{{{selected}{more}}})");
    let root = |metric: &str| {
        format!(
            r#"sum by (namespace, name) (max by (namespace, name, mount_point) ({metric}{{{selected},mount_point=~"/|C:\\\\"}}))"#
        )
    };
    let public = r#",interface=~"default|public""#;
    match figure {
        Figure::SampledAt => format!(
            "max by (namespace, name) (timestamp(kubevirt_vmi_cpu_usage_seconds_total{{{selected}}})) > time() - {STALE_SECONDS}"
        ),
        Figure::Cores => format!(
            "max by (namespace, name) (rate(kubevirt_vmi_cpu_usage_seconds_total{{{selected}}}[{seconds}s]))"
        ),
        Figure::Memory => format!(
            "100 * (1 - {} / {})",
            newest("kubevirt_vmi_memory_usable_bytes", ""),
            newest("kubevirt_vmi_memory_available_bytes", "")
        ),
        Figure::Disk => format!(
            "100 * {} / {}",
            root("kubevirt_vmi_filesystem_used_bytes"),
            root("kubevirt_vmi_filesystem_capacity_bytes")
        ),
        Figure::Received => newest("kubevirt_vmi_network_receive_bytes_total", public),
        Figure::Sent => newest("kubevirt_vmi_network_transmit_bytes_total", public),
    }
}

/// The expression for the number of servers that are selected.
pub(super) fn count(selected: &str) -> String {
    format!("count(kubevirt_vmi_cpu_usage_seconds_total{{{selected}}})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_so_that_no_name_says_anything_but_itself() {
        let server = Server {
            namespace: r#"acme"} or up{a=""#.to_owned(),
            name: "web\\1\n".to_owned(),
            uid: String::new(),
        };
        let selected = of_server("prod-1", &server);
        assert_eq!(
            selected,
            r#"kubernetes_vmi_label_stellage_dev_installation="prod-1",namespace="acme\"} or up{a=\"",name="web\\1\n""#
        );
    }
}
