//! Why the spec of an instance is rejected, as its conditions say.

/// Why a spec is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cause.
    pub cause: Cause,
    /// The message for the conditions: it names the field and the fix.
    pub message: String,
}

impl Refusal {
    /// Why a spec is refused of which a field is invalid, or names something that is not available.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self {
            cause: Cause::Spec,
            message: message.into(),
        }
    }
}

/// What a spec is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A field is invalid, or names something that is not available.
    Spec,
    /// It is a copy of an older instance.
    OriginTaken,
    /// The backup to restore is gone, or was not completed.
    BackupUnavailable,
    /// The backup to restore has another image.
    BackupImageDiffers,
    /// The backup to restore needs a larger disk.
    BackupTooLarge,
    /// The backup to restore is in another region, and cannot be moved.
    BackupRegionDiffers,
    /// There is no such private network in the region.
    PrivateNetworkUnavailable,
    /// The private network has no addresses yet, or cannot have any.
    PrivateNetworkNotReady,
    /// No address in the private network is free.
    PrivateNetworkFull,
    /// The account's quotas of vCPUs, memory or disk have no room for its plan.
    QuotaExceeded,
    /// The account is suspended, and its servers are kept off.
    AccountSuspended,
}

impl Cause {
    const ALL: [Self; 11] = [
        Self::Spec,
        Self::OriginTaken,
        Self::BackupUnavailable,
        Self::BackupImageDiffers,
        Self::BackupTooLarge,
        Self::BackupRegionDiffers,
        Self::PrivateNetworkUnavailable,
        Self::PrivateNetworkNotReady,
        Self::PrivateNetworkFull,
        Self::QuotaExceeded,
        Self::AccountSuspended,
    ];

    /// Reason of the conditions.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Spec => "InvalidSpec",
            Self::OriginTaken => "OriginTaken",
            Self::BackupUnavailable => "BackupUnavailable",
            Self::BackupImageDiffers => "BackupImageDiffers",
            Self::BackupTooLarge => "BackupTooLarge",
            Self::BackupRegionDiffers => "BackupRegionDiffers",
            Self::PrivateNetworkUnavailable => "PrivateNetworkUnavailable",
            Self::PrivateNetworkNotReady => "PrivateNetworkNotReady",
            Self::PrivateNetworkFull => "PrivateNetworkFull",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::AccountSuspended => "AccountSuspended",
        }
    }

    /// The cause with this reason.
    pub fn of(reason: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.reason() == reason)
    }
}
