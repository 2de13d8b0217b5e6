//! What is installed on a server: an image, or a backup with its image.

use thiserror::Error;

use resources::{Backup, BackupPhase, Instance, InstanceSpec, public_id::BackupId};

/// What to install on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Installation {
    Image(String),
    /// A completed backup.
    Backup(RestorableBackup),
}

/// A completed backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorableBackup {
    /// Its public id.
    pub id: BackupId,
    /// Name of the Backup object.
    pub name: String,
    pub image: String,
    /// Code of its region.
    pub region: String,
    /// Size of its disk in GB.
    pub disk_size_gb: i32,
}

/// A backup does not fit on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("has a disk of {backup_gb} GB, which does not fit on one of {disk_gb} GB; choose a larger plan")]
pub struct DoesNotFit {
    backup_gb: i32,
    disk_gb: i32,
}

impl RestorableBackup {
    /// The backup, if it is completed.
    pub fn of(backup: &Backup) -> Option<Self> {
        let source = backup.status.as_ref()?.source.as_ref()?;
        (backup.phase() == BackupPhase::Completed).then(|| Self {
            id: BackupId::of(backup),
            name: backup.metadata.name.clone().unwrap_or_default(),
            image: source.image.clone(),
            region: source.region.clone(),
            disk_size_gb: source.disk_size_gb,
        })
    }
}

impl Installation {
    /// Requests the installation in the spec of an instance whose disk has this size in GB; an error if the backup does
    /// not fit on it.
    pub fn request(&self, spec: &mut InstanceSpec, disk_gb: i32) -> Result<(), DoesNotFit> {
        match self {
            Self::Image(image) => {
                image.clone_into(&mut spec.image);
                spec.restore_from = None;
            }
            Self::Backup(backup) if backup.disk_size_gb > disk_gb => {
                return Err(DoesNotFit {
                    backup_gb: backup.disk_size_gb,
                    disk_gb,
                });
            }
            Self::Backup(backup) => {
                backup.image.clone_into(&mut spec.image);
                spec.restore_from = Some(backup.name.clone());
            }
        }
        Ok(())
    }
}

/// The size of an instance's disk in GB.
pub fn disk_of(instance: &Instance) -> i32 {
    let status = instance.status.as_ref();
    let plan = status
        .and_then(|status| status.plan)
        .unwrap_or(instance.spec.plan);
    status
        .and_then(|status| status.disk_size_gb)
        .unwrap_or_else(|| plan.size().disk_gb)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::public_id::PublicId as _;

    #[test]
    fn a_backup_brings_its_image_fits_on_a_disk_as_large_and_is_forgotten_with_the_next_image() {
        let mut spec: InstanceSpec = serde_json::from_value(json!({
            "plan": "starter", "region": "fr-par-1", "image": "debian-13",
        }))
        .unwrap();
        let backup = Installation::Backup(RestorableBackup {
            id: BackupId::parse("bkp_abcdefgh01234567").unwrap(),
            name: "bkp-abcdefgh01234567".to_owned(),
            image: "debian-12".to_owned(),
            region: "fr-par-1".to_owned(),
            disk_size_gb: 80,
        });
        let error = backup.request(&mut spec, 40).unwrap_err();
        assert_eq!(
            error.to_string(),
            "has a disk of 80 GB, which does not fit on one of 40 GB; choose a larger plan"
        );
        backup.request(&mut spec, 80).unwrap();
        assert_eq!(
            (spec.image.as_str(), spec.restore_from.as_deref()),
            ("debian-12", Some("bkp-abcdefgh01234567"))
        );
        let image = Installation::Image("fedora-42".to_owned());
        image.request(&mut spec, 40).unwrap();
        assert_eq!((spec.image.as_str(), spec.restore_from), ("fedora-42", None));
    }
}
