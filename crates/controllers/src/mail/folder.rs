//! Mails as `.eml` files in a folder.

use std::{fs, io, io::Write as _, path::Path, path::PathBuf};

use tempfile::NamedTempFile;

use super::error::MailError;

/// Creates the folder if it is missing, and checks that a file can be created in it.
pub(super) fn create(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    unfinished(folder).map(drop)
}

/// Writes a file atomically, so that no reader sees half of it. An existing file is replaced.
pub(super) async fn write(folder: PathBuf, name: String, content: Vec<u8>) -> Result<(), MailError> {
    let path = folder.join(name);
    let shown = path.display().to_string();
    let writing = tokio::task::spawn_blocking(move || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        let mut file = unfinished(&folder)?;
        file.write_all(&content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    });
    let written = writing.await.map_err(io::Error::other).and_then(|result| result);
    written.map_err(|error| MailError::File {
        path: shown,
        reason: error.to_string(),
    })
}

fn unfinished(folder: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".")
        .suffix(".tmp")
        .tempfile_in(folder)
}
