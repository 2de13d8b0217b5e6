//! `image` or `backup` in a request: what to install on a server.

use std::borrow::Cow;

use crate::{
    facade::{App, extract::fields::Fields, response::error::Detail},
    service::{
        error::{Error, ErrorCode},
        id::{BackupId, PublicId as _},
        instances::{Installation, RestorableBackup},
    },
};
use domain::catalogue::Offer;
use resources::validation;

/// Reads `image` and `backup`, for a region that offers this, if it is known. If the request does not have exactly one of them, `fields` has a problem.
pub(super) fn read(fields: &mut Fields, offer: Option<Offer<'_>>) -> (Option<String>, Option<String>) {
    let image = fields.string("image", &|text| check_image(text, offer));
    let backup = fields.string("backup", &|text| match BackupId::parse(text) {
        Some(_) => Ok(()),
        None => Err("is not the id of a backup of this account"),
    });
    let has_problem = fields.has_problem("image") || fields.has_problem("backup");
    match (&image, &backup) {
        (Some(_), Some(_)) => {
            let message = "cannot be given together with image; leave one of them out";
            fields.problem(Detail::new("backup", "invalid_value", message));
        }
        (None, None) if !has_problem => {
            let message = "is required, unless backup is given";
            fields.problem(Detail::new("image", "missing", message));
        }
        _ => {}
    }
    (image, backup)
}

/// What a request names, for the answer.
pub(super) fn in_words(fields: &Fields) -> String {
    match (fields.peek("image"), fields.peek("backup")) {
        (Some(image), _) => image.to_owned(),
        (None, backup) => format!("backup {}", backup.unwrap_or_default()),
    }
}

/// The backup that a request names, if the text can be an id.
pub(super) struct NamedBackup(Option<Result<RestorableBackup, Error>>);

impl NamedBackup {
    /// Looks up the backup. This must happen before all fields are read, so that one answer names every invalid field.
    pub(super) async fn find(app: &App, namespace: &str, fields: &Fields) -> Self {
        Self(match fields.peek("backup").and_then(BackupId::parse) {
            Some(id) => Some(app.service.backup_to_restore(namespace, Some(id)).await),
            None => None,
        })
    }

    /// If there is no such backup, adds that to the problems.
    pub(super) fn check(&self, fields: &mut Fields) {
        if let Some(Err(error)) = &self.0
            && error.code == ErrorCode::InvalidInput
        {
            for detail in &error.details {
                fields.problem(detail.clone());
            }
        }
    }

    /// What to install, according to a request whose fields are valid; `invalid_state` if the backup is not completed.
    pub(super) fn or(self, image: Option<String>) -> Result<Installation, Error> {
        match (image, self.0) {
            (Some(image), _) => Ok(Installation::Image(image)),
            (None, Some(backup)) => Ok(Installation::Backup(backup?)),
            // Unreachable: `read` reports it.
            (None, None) => Err(Error::fault()),
        }
    }
}

fn check_image(text: &str, offer: Option<Offer<'_>>) -> Result<(), Cow<'static, str>> {
    validation::image(text)?;
    match offer {
        Some(offer) if !offer.has_image(text) => Err(format!(
            "is not available in region {region}; GET /v1/images?region={region} lists the images",
            region = offer.region
        )
        .into()),
        _ => Ok(()),
    }
}
