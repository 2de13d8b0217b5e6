//! The versions to build, from `control-plane/modules/go.mod` and `go.sum`, which are compiled in, and the linker flags.

use crate::random::digits;
use sha2::{Digest as _, Sha256};
use std::env::consts::{ARCH, OS};

pub(super) const GO_MOD: &str = include_str!("../../modules/go.mod");
pub(super) const GO_SUM: &str = include_str!("../../modules/go.sum");

/// Each binary and its package. etcd is first, because it takes seconds, so that a broken toolchain shows at once.
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

/// The minimum Go version.
pub(super) fn go_version() -> &'static str {
    GO_MOD
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .unwrap_or_default()
        .trim()
}

/// Sets the version; otherwise the server reports v0.0.0, and clients warn.
pub(super) fn linker_flags() -> String {
    format!(
        "-s -w -X k8s.io/component-base/version.gitVersion={}",
        version_of("k8s.io/kubernetes")
    )
}

/// Name of the cache folder, which depends on versions, flags and the platform.
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
