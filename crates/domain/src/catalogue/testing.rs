//! A catalogue for tests.

use std::path::Path;

use super::Catalogue;

/// A catalogue with two simulated regions and `de-fra-1`, whose servers are real: it has one image, and neither backups nor private
/// networks.
pub fn catalogue() -> Catalogue {
    let text = "
regions:
  - fr-par-1
  - nl-ams-1
  - code: de-fra-1
    kubevirt:
      kubeconfig: /kubeconfig
      installation: tests
      storageClass: local
      images: {debian-13: {pvc: images/debian-13, user: debian}}
      network: {profile: pod}
";
    Catalogue::parse(text, Path::new("testing")).unwrap_or_default()
}
