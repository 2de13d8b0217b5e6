//! What is built, and how: the pins are `control-plane/modules/go.mod` and `go.sum`, compiled in.

use crate::random::digits;
use sha2::{Digest as _, Sha256};
use std::env::consts::{ARCH, OS};

pub(super) const GO_MOD: &str = include_str!("../../modules/go.mod");
pub(super) const GO_SUM: &str = include_str!("../../modules/go.sum");

/// A binary and the package that it is built from. etcd first: it takes seconds, and a toolchain that does not
/// work shows at once.
pub(super) const BINARIES: [(&str, &str); 4] = [
    ("etcd", "go.etcd.io/etcd/server/v3"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    (
        "kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
    ),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// The version of a required module, with its `v`.
pub(super) fn version_of(module: &str) -> &'static str {
    GO_MOD
        .lines()
        .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
        .find(|(name, _)| *name == module)
        .and_then(|(_, version)| version.split_whitespace().next())
        .unwrap_or_default()
}

/// The least Go version.
pub(super) fn go_version() -> &'static str {
    GO_MOD
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .unwrap_or_default()
        .trim()
}

/// Without the version the server calls itself v0.0.0, and clients complain.
pub(super) fn linker_flags() -> String {
    format!(
        "-s -w -X k8s.io/component-base/version.gitVersion={}",
        version_of("k8s.io/kubernetes")
    )
}

/// Names the cache folder: another pin, flag or machine is another folder.
pub(super) fn key() -> String {
    let packages = BINARIES.map(|(_, package)| package).join(" ");
    let digest = Sha256::digest([GO_MOD, GO_SUM, &linker_flags(), &packages, OS, ARCH].join("\n"));
    digits(&digest[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_are_read_from_go_mod() {
        assert!(version_of("k8s.io/kubernetes").starts_with("v1."));
        assert!(version_of("go.etcd.io/etcd/server/v3").starts_with("v3."));
        assert!(linker_flags().ends_with(version_of("k8s.io/kubernetes")));
        assert!(go_version().starts_with("1."));
        assert_eq!(key().len(), 12);
    }
}
