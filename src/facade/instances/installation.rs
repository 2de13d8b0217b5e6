//! `image` or `backup` in a request: what to install on a server.

use crate::{
    catalogue::Catalogue,
    facade::{
        App,
        error::{ApiError, Detail},
        fields::Fields,
    },
    resources::validation,
    service::{
        id::{BackupId, PublicId as _},
        instances::Installation,
    },
};

/// Reads `image` and `backup`. If the request does not have exactly one of them, `fields` has a problem.
pub(super) fn read(fields: &mut Fields, catalogue: &Catalogue) -> (Option<String>, Option<String>) {
    let image = fields.string("image", &|text| check_image(text, catalogue));
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

/// What to install: `invalid_input` if the backup is not one of the account, `invalid_state` if it is not completed.
pub(super) async fn of(
    app: &App,
    namespace: &str,
    image: Option<String>,
    backup: Option<String>,
) -> Result<Installation, ApiError> {
    if let Some(image) = image {
        return Ok(Installation::Image(image));
    }
    let id = backup.as_deref().and_then(BackupId::parse);
    let backup = app.service.backup_to_restore(namespace, id).await?;
    Ok(Installation::Backup(backup))
}

fn check_image(text: &str, catalogue: &Catalogue) -> Result<(), &'static str> {
    validation::image(text)?;
    if catalogue.serves_image(text) {
        Ok(())
    } else {
        Err("is not available; GET /v1/images lists the images")
    }
}
