//! What to build: programs of pinned Go modules, whose `go.mod` and `go.sum` are compiled in, and the linker flags.

use sha2::{Digest as _, Sha256};
use std::env::consts::{ARCH, OS};

/// A program that its publisher provides for Linux. In paths, `{version}` stands for the version of the module, with
/// its `v`, and `{platform}` for Go's name of the processor.
pub(super) struct Download {
    pub(super) program: &'static str,
    pub(super) module: &'static str,
    /// Base URL of the paths.
    publisher: &'static str,
    /// Path of the program, or of a `.tar.gz` with it.
    pub(super) path: &'static str,
    /// Path of its SHA-256, or of a list with it in the format of `sha256sum`.
    pub(super) checksums: &'static str,
}

impl Download {
    /// A path of this download for a version and a platform.
    pub(super) fn fill(path: &str, version: &str, platform: &str) -> String {
        path.replace("{version}", version).replace("{platform}", platform)
    }

    /// The URL of one of the publisher's paths.
    pub(super) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.publisher)
    }

    const fn of_kubernetes(program: &'static str, path: &'static str, checksums: &'static str) -> Self {
        Self {
            program,
            module: "k8s.io/kubernetes",
            publisher: "https://dl.k8s.io/release",
            path,
            checksums,
        }
    }
}

/// Programs that are built together from one `go.mod`.
pub(super) struct Bundle {
    /// Prefix of the name of its folder in the cache.
    pub(super) name: &'static str,
    /// What is being built and for what purpose, as in "Building …".
    pub(super) purpose: &'static str,
    /// Observed time to build it on two cores.
    pub(super) takes: &'static str,
    /// The environment variable for users who already have the programs, if there is one.
    pub(super) instead: Option<&'static str>,
    /// Observed disk usage of a build, in GB: modules, build cache, the linker's temporary files and the programs.
    pub(super) disk_gb: u64,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Paths and texts of programs of its own, beside `go.mod`.
    pub(super) sources: &'static [(&'static str, &'static str)],
    /// The package of one of them, and the file beside the programs that its output is written to.
    pub(super) prints: Option<(&'static str, &'static str)>,
    /// Each program and its package.
    pub(super) binaries: &'static [(&'static str, &'static str)],
    /// Downloads for all of them, in the same order, as an alternative to building; empty if there are none.
    pub(super) downloads: &'static [Download],
    /// Build tags, separated by commas.
    pub(super) tags: &'static str,
    /// The module whose version the programs report.
    versioned: Option<&'static str>,
}

/// The servers and kubectl. etcd is first, because it takes seconds, so that a broken toolchain shows at once.
pub(super) const CONTROL_PLANE: Bundle = Bundle {
    name: "control-plane",
    purpose: "etcd and Kubernetes (a real control plane for the local run and the tests)",
    takes: "about ten minutes",
    instead: Some("KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-controller-manager"),
    disk_gb: 6,
    go_mod: include_str!("../../modules/go.mod"),
    go_sum: include_str!("../../modules/go.sum"),
    sources: &[],
    prints: None,
    binaries: &[
        ("etcd", "go.etcd.io/etcd/server/v3"),
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        (
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
        ),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ],
    downloads: &[
        Download {
            program: "etcd",
            module: "go.etcd.io/etcd/server/v3",
            publisher: "https://github.com/etcd-io/etcd/releases/download",
            path: "{version}/etcd-{version}-linux-{platform}.tar.gz",
            checksums: "{version}/SHA256SUMS",
        },
        Download::of_kubernetes(
            "kube-apiserver",
            "{version}/bin/linux/{platform}/kube-apiserver",
            "{version}/bin/linux/{platform}/kube-apiserver.sha256",
        ),
        Download::of_kubernetes(
            "kube-controller-manager",
            "{version}/bin/linux/{platform}/kube-controller-manager",
            "{version}/bin/linux/{platform}/kube-controller-manager.sha256",
        ),
        Download::of_kubernetes(
            "kubectl",
            "{version}/bin/linux/{platform}/kubectl",
            "{version}/bin/linux/{platform}/kubectl.sha256",
        ),
    ],
    tags: "",
    versioned: Some("k8s.io/kubernetes"),
};

/// Helm, and what makes volumes and snapshots: external-provisioner, external-snapshotter, and a CSI driver for tests. They need newer
/// Kubernetes libraries than the servers: the same ones, which are compiled once for all of them.
pub(super) const TOOLS: Bundle = Bundle {
    name: "tools",
    purpose: "Helm, external-provisioner and external-snapshotter (for the tests of the chart and of backups of real servers)",
    takes: "about five minutes",
    instead: Some("STELLAGE_HELM to a program of Helm 4 where only that is needed"),
    disk_gb: 6,
    go_mod: include_str!("../../tools/go.mod"),
    go_sum: include_str!("../../tools/go.sum"),
    sources: &[("driver/main.go", include_str!("../../tools/driver/main.go"))],
    prints: None,
    binaries: &[
        ("csi-driver", "./driver"),
        ("helm", "helm.sh/helm/v4/cmd/helm"),
        (
            "csi-provisioner",
            "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
        ),
        (
            "csi-snapshotter",
            "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
        ),
        (
            "snapshot-controller",
            "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
        ),
    ],
    downloads: &[],
    tags: "",
    versioned: None,
};

/// Prometheus and its promtool, without target discovery in clouds, whose libraries would take most of the time.
pub(super) const PROMTOOL: Bundle = Bundle {
    name: "promtool",
    purpose: "Prometheus and its promtool (for the tests of metrics, alerts and usage)",
    takes: "about three minutes",
    instead: Some("STELLAGE_PROMTOOL and STELLAGE_PROMETHEUS to the programs of Prometheus 3"),
    disk_gb: 6,
    go_mod: include_str!("../../promtool/go.mod"),
    go_sum: include_str!("../../promtool/go.sum"),
    sources: &[],
    prints: None,
    binaries: &[
        ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
        ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
    ],
    downloads: &[],
    tags: "remove_all_sd",
    versioned: None,
};

/// KubeVirt's API server and controller, and the objects that they expect in a cluster.
pub(super) const KUBEVIRT: Bundle = Bundle {
    name: "kubevirt",
    purpose: "KubeVirt's virt-api and virt-controller (for the tests of real servers)",
    takes: "about three minutes",
    instead: Some("STELLAGE_KUBEVIRT to a folder with them and kubevirt.json"),
    disk_gb: 4,
    go_mod: include_str!("../../kubevirt/go.mod"),
    go_sum: include_str!("../../kubevirt/go.sum"),
    sources: &[("main.go", include_str!("../../kubevirt/main.go"))],
    prints: Some((".", "kubevirt.json")),
    binaries: &[
        ("virt-api", "kubevirt.io/kubevirt/cmd/virt-api"),
        ("virt-controller", "kubevirt.io/kubevirt/cmd/virt-controller"),
    ],
    downloads: &[],
    tags: "",
    versioned: None,
};

/// The newest of them that can be built.
pub(super) const NEWEST_KUBEVIRT: Bundle = Bundle {
    go_mod: include_str!("../../kubevirt/newest/go.mod"),
    go_sum: include_str!("../../kubevirt/newest/go.sum"),
    ..KUBEVIRT
};

/// The kinds of external-snapshotter and kube-ovn, as the tests of real servers install them. Nothing is compiled but the program that
/// prints them.
pub(super) const KINDS: Bundle = Bundle {
    name: "kinds",
    purpose: "the kinds of external-snapshotter and kube-ovn (for the tests of backups and private networks of real servers)",
    takes: "seconds",
    instead: None,
    disk_gb: 1,
    go_mod: include_str!("../../kinds/go.mod"),
    go_sum: include_str!("../../kinds/go.sum"),
    sources: &[("main.go", include_str!("../../kinds/main.go"))],
    prints: Some((".", "kinds.yaml")),
    binaries: &[],
    downloads: &[],
    tags: "",
    versioned: None,
};

impl Bundle {
    /// The version of a required module, with its `v`.
    pub(super) fn version_of(&self, module: &str) -> &'static str {
        self.go_mod
            .lines()
            .filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '))
            .find(|(name, _)| *name == module)
            .and_then(|(_, version)| version.split_whitespace().next())
            .unwrap_or_default()
    }

    /// The minimum Go version.
    pub(super) fn go_version(&self) -> &'static str {
        self.go_mod
            .lines()
            .find_map(|line| line.strip_prefix("go "))
            .unwrap_or_default()
            .trim()
    }

    /// Sets the version; otherwise the server reports v0.0.0, and clients warn.
    pub(super) fn linker_flags(&self) -> String {
        let version = self.versioned.map(|module| {
            format!(
                " -X k8s.io/component-base/version.gitVersion={}",
                self.version_of(module)
            )
        });
        format!("-s -w{}", version.unwrap_or_default())
    }

    /// The key in the name of the cache folder, which depends on versions, flags and the platform.
    pub(super) fn key(&self) -> String {
        let mut packages: Vec<&str> = self.binaries.iter().map(|(_, package)| *package).collect();
        packages.extend((!self.tags.is_empty()).then_some(self.tags));
        packages.extend(self.sources.iter().map(|(_, source)| *source));
        let digest = Sha256::digest(
            [
                self.go_mod,
                self.go_sum,
                &self.linker_flags(),
                &packages.join(" "),
                OS,
                ARCH,
            ]
            .join("\n"),
        );
        hex::encode(&digest[..6])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pins_are_read_from_go_mod() {
        assert!(CONTROL_PLANE.version_of("k8s.io/kubernetes").starts_with("v1."));
        assert!(
            CONTROL_PLANE
                .version_of("go.etcd.io/etcd/server/v3")
                .starts_with("v3.")
        );
        assert!(
            CONTROL_PLANE
                .linker_flags()
                .ends_with(CONTROL_PLANE.version_of("k8s.io/kubernetes"))
        );
        assert_eq!(TOOLS.linker_flags(), "-s -w");
        for bundle in [CONTROL_PLANE, TOOLS, PROMTOOL, KUBEVIRT, NEWEST_KUBEVIRT, KINDS] {
            assert!(bundle.go_version().starts_with("1."));
            assert_eq!(bundle.key().len(), 12);
        }
        assert_ne!(CONTROL_PLANE.key(), TOOLS.key());
        assert_ne!(TOOLS.key(), PROMTOOL.key());
    }

    #[test]
    fn kubevirts_own_modules_have_its_version() {
        for bundle in [KUBEVIRT, NEWEST_KUBEVIRT] {
            let version = bundle.version_of("kubevirt.io/kubevirt");
            for module in ["kubevirt.io/api", "kubevirt.io/client-go"] {
                let line = format!("\t{module} => {module} {version}\n");
                assert!(bundle.go_mod.contains(&line), "{line}");
            }
        }
    }
}
