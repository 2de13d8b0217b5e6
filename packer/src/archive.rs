//! Tar archives whose bytes depend only on names and contents.

use std::io;

use tar::{Builder, EntryType, Header};

/// Makes a tar archive of files, each with its path, mode and contents, in the given order, and of their folders.
/// Everything belongs to root and is dated 1970.
pub fn tar<'a>(files: impl IntoIterator<Item = (&'a str, u32, &'a [u8])>) -> io::Result<Vec<u8>> {
    let mut archive = Builder::new(Vec::new());
    let mut folders: Vec<&str> = Vec::new();
    for (path, mode, contents) in files {
        for (end, _) in path.match_indices('/') {
            let folder = &path[..=end];
            if !folders.contains(&folder) {
                folders.push(folder);
                append(&mut archive, EntryType::Directory, folder, 0o755, &[])?;
            }
        }
        append(&mut archive, EntryType::Regular, path, mode, contents)?;
    }
    archive.into_inner()
}

fn append(
    archive: &mut Builder<Vec<u8>>,
    kind: EntryType,
    path: &str,
    mode: u32,
    contents: &[u8],
) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(contents.len() as u64);
    archive.append_data(&mut header, path, contents)
}
