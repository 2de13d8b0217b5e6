//! Downloads the publishers' own binaries of the pinned versions, which takes seconds where building them takes
//! minutes. Each is checked against the SHA-256 that its publisher provides with it.

use super::pins::{Bundle, Download};
use crate::{Error, ProcessGroup};
use reqwest::{Client, Response};
use sha2::{Digest as _, Sha256};
use std::{
    env::consts,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::Duration,
};

/// Timeout for a connection: a machine without Internet access should find out soon.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Timeout for the next bytes of an answer.
const NEXT_BYTES_WITHIN: Duration = Duration::from_secs(30);
/// Timeout for all programs: as long as building them takes.
const ALL_WITHIN: Duration = Duration::from_mins(10);
/// Maximum size of a program or an archive, in bytes; kube-apiserver has some 100 MB.
const MAX_BYTES: u64 = 512 * 1024 * 1024;
/// Maximum size of a list of checksums, in bytes.
const MAX_CHECKSUMS: usize = 64 * 1024;

/// Why nothing was downloaded.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("there are none for {} on {}", consts::OS, consts::ARCH)]
    NoneForPlatform,
    #[error("{}", with_causes(.0))]
    Http(#[from] reqwest::Error),
    #[error("it takes longer than {} minutes", ALL_WITHIN.as_secs() / 60)]
    TooSlow,
    #[error("{0} is larger than {MAX_BYTES} bytes")]
    TooLarge(String),
    #[error("{url} has no SHA-256 of {file}")]
    NoChecksum { url: String, file: String },
    #[error("{url} has the SHA-256 {found}, but its publisher says {expected}")]
    WrongChecksum {
        url: String,
        found: String,
        expected: String,
    },
    #[error("{0} has no program {1}")]
    NotInArchive(String, &'static str),
    #[error(transparent)]
    Own(#[from] Error),
}

/// Downloads all programs of a bundle into `target`, which is created only when they are complete. `false` if that is not
/// possible; `say` has been called with the reason. The caller holds the lock. Blocks.
pub(super) fn into(bundle: &Bundle, target: &Path, say: &impl Fn(&str)) -> Result<bool, Error> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    match try_into(bundle, &Download::url, target, say) {
        Ok(()) => Ok(true),
        Err(Failure::Own(error)) => Err(error),
        Err(failure) => {
            say(&format!(
                "Cannot download {} ({failure}), so build them.",
                bundle.purpose
            ));
            Ok(false)
        }
    }
}

fn try_into(
    bundle: &Bundle,
    url: &impl Fn(&Download, &str) -> String,
    target: &Path,
    say: &impl Fn(&str),
) -> Result<(), Failure> {
    let platform = match (consts::OS, consts::ARCH) {
        ("linux", "x86_64") => "amd64",
        ("linux", "aarch64") => "arm64",
        _ => return Err(Failure::NoneForPlatform),
    };
    let parent = target.parent().unwrap_or(Path::new("."));
    let work = tempfile::Builder::new()
        .prefix(".downloading-")
        .tempdir_in(parent)
        .map_err(Error::file("create a folder in", parent))?;
    // However this process ends, the folder is removed.
    let _group = ProcessGroup::new(&[work.path().to_owned()], None)?;
    let programs = work.path().join("bin");
    fs::create_dir(&programs).map_err(Error::file("create", &programs))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Error::file("start a runtime in", parent))?;
    let all = async {
        let client = Client::builder()
            .connect_timeout(CONNECT_WITHIN)
            .read_timeout(NEXT_BYTES_WITHIN)
            // This also applies to redirects.
            .https_only(!cfg!(test))
            .build()?;
        for download in bundle.downloads {
            let version = bundle.version_of(download.module);
            let path = Download::fill(download.path, version, platform);
            let from = url(download, &path);
            let checksums = url(download, &Download::fill(download.checksums, version, platform));
            let expected = checksum(&client, &checksums, &path).await?;
            say(&format!("Downloading {from}"));
            let file = work.path().join("download");
            fetch(&client, &from, &expected, &file).await?;
            place(download, &from, &file, &programs.join(download.program))?;
        }
        Ok::<_, Failure>(())
    };
    runtime.block_on(async {
        let downloaded = tokio::time::timeout(ALL_WITHIN, all).await;
        downloaded.unwrap_or(Err(Failure::TooSlow))
    })?;
    fs::rename(&programs, target).map_err(Error::file("create", target))?;
    say(&format!("The programs are in {}.", target.display()));
    Ok(())
}

/// The hexadecimal SHA-256 of a file in a list of checksums; a list for a single file may lack its name.
async fn checksum(client: &Client, url: &str, path: &str) -> Result<String, Failure> {
    let mut answer = get(client, url).await?;
    let mut list = Vec::new();
    while let Some(bytes) = answer.chunk().await? {
        list.extend_from_slice(&bytes);
        if list.len() > MAX_CHECKSUMS {
            break;
        }
    }
    let file = path.rsplit('/').next().unwrap_or_default();
    let list = String::from_utf8_lossy(&list);
    let found = list.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let sum = words.next()?;
        (sum.len() == 64 && words.next().is_none_or(|name| name == file)).then(|| sum.to_lowercase())
    });
    found.ok_or_else(|| Failure::NoChecksum {
        url: url.to_owned(),
        file: file.to_owned(),
    })
}

/// Downloads a file that must have this SHA-256.
async fn fetch(client: &Client, url: &str, expected: &str, to: &Path) -> Result<(), Failure> {
    let mut answer = get(client, url).await?;
    let mut file = File::create(to).map_err(Error::file("create", to))?;
    let mut digest = Sha256::new();
    let mut length = 0;
    while let Some(bytes) = answer.chunk().await? {
        length += bytes.len() as u64;
        if length > MAX_BYTES {
            return Err(Failure::TooLarge(url.to_owned()));
        }
        digest.update(&bytes);
        file.write_all(&bytes).map_err(Error::file("write", to))?;
    }
    let found = hex::encode(digest.finalize());
    if found == expected {
        return Ok(());
    }
    Err(Failure::WrongChecksum {
        url: url.to_owned(),
        found,
        expected: expected.to_owned(),
    })
}

async fn get(client: &Client, url: &str) -> Result<Response, Failure> {
    Ok(client.get(url).send().await?.error_for_status()?)
}

/// Puts a downloaded program, or the one in a downloaded archive, in its place.
fn place(download: &Download, url: &str, file: &Path, to: &Path) -> Result<(), Failure> {
    if url.ends_with(".tar.gz") {
        let is_there = extract(download.program, file, to).map_err(Error::file("unpack", file))?;
        if !is_there {
            return Err(Failure::NotInArchive(url.to_owned(), download.program));
        }
    } else {
        fs::rename(file, to).map_err(Error::file("create", to))?;
    }
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(Error::file("make executable", to))?;
    Ok(())
}

/// Extracts the file of this name, in whatever folder it is; `false` if there is none.
fn extract(name: &str, archive: &Path, to: &Path) -> io::Result<bool> {
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() && entry.path()?.file_name() == Some(name.as_ref()) {
            io::copy(&mut entry, &mut File::create(to)?)?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// The text of a request error with its causes: the error alone does not say why there was no connection.
fn with_causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assets::pins::CONTROL_PLANE;
    use std::{
        cell::RefCell,
        collections::HashMap,
        io::{BufRead as _, BufReader},
        net::TcpListener,
        thread,
    };

    /// A publisher's files, by path.
    type Files = HashMap<String, Vec<u8>>;

    /// Answers requests for these files until the process ends, and returns the base of their URLs.
    fn serve(files: Files) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let request = lines.next().unwrap().unwrap();
                while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                let path = request.split(' ').nth(1).unwrap();
                let (status, body) = match files.get(path) {
                    Some(body) => ("200 OK", body.as_slice()),
                    None => ("404 Not Found", &b"no such file"[..]),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(body).unwrap();
            }
        });
        format!("http://{address}")
    }

    fn sum(bytes: &[u8]) -> String {
        hex::encode(Sha256::digest(bytes))
    }

    /// The publishers' files of the pinned versions, under one host.
    fn published() -> Files {
        let mut files = Files::new();
        for download in CONTROL_PLANE.downloads {
            let version = CONTROL_PLANE.version_of(download.module);
            let platform = if consts::ARCH == "aarch64" {
                "arm64"
            } else {
                "amd64"
            };
            let in_full = |path: &str| format!("/{}", Download::fill(path, version, platform));
            let path = in_full(download.path);
            let program = format!("this is {}", download.program).into_bytes();
            let file = if path.ends_with(".tar.gz") {
                let mut archive = tar::Builder::new(flate2::write::GzEncoder::new(
                    Vec::new(),
                    flate2::Compression::fast(),
                ));
                for (name, contents) in [("x/README.md", &b"read me"[..]), ("x/etcd", &program)] {
                    let mut header = tar::Header::new_gnu();
                    header.set_size(contents.len() as u64);
                    header.set_entry_type(tar::EntryType::Regular);
                    archive.append_data(&mut header, name, contents).unwrap();
                }
                archive.into_inner().unwrap().finish().unwrap()
            } else {
                program
            };
            let name = path.rsplit('/').next().unwrap();
            let list = if download.checksums.ends_with(".sha256") {
                sum(&file)
            } else {
                format!("{}  another.tar.gz\n{}  {name}\n", sum(b"another"), sum(&file))
            };
            files.insert(in_full(download.checksums), list.into_bytes());
            files.insert(path, file);
        }
        files
    }

    /// Downloads from a server with these files: the outcome, and what was said.
    fn download(files: Files, target: &Path) -> (Result<(), Failure>, Vec<String>) {
        let base = serve(files);
        let said = RefCell::new(Vec::new());
        let _ = rustls::crypto::ring::default_provider().install_default();
        let outcome = try_into(
            &CONTROL_PLANE,
            &|_: &Download, path: &str| format!("{base}/{path}"),
            target,
            &|line: &str| said.borrow_mut().push(line.to_owned()),
        );
        (outcome, said.into_inner())
    }

    #[test]
    fn the_publishers_programs_are_downloaded_and_can_be_executed() {
        let cache = tempfile::tempdir().unwrap();
        let target = cache.path().join("programs");
        let (outcome, said) = download(published(), &target);
        outcome.unwrap();
        for (name, _) in CONTROL_PLANE.binaries {
            let program = target.join(name);
            assert_eq!(fs::read_to_string(&program).unwrap(), format!("this is {name}"));
            assert_eq!(
                fs::metadata(&program).unwrap().permissions().mode() & 0o777,
                0o755
            );
        }
        assert_eq!(said.len(), CONTROL_PLANE.binaries.len() + 1, "{said:?}");
        assert_eq!(
            fs::read_dir(cache.path()).unwrap().count(),
            1,
            "nothing else is left"
        );
    }

    #[test]
    fn a_program_whose_checksum_is_another_is_not_kept() {
        let mut files = published();
        let path = files
            .keys()
            .find(|path| path.ends_with("/kube-apiserver"))
            .unwrap()
            .clone();
        let cache = tempfile::tempdir().unwrap();
        let target = cache.path().join("programs");
        files.insert(path.clone(), b"forged".to_vec());
        let (outcome, _) = download(files, &target);
        let failure = outcome.unwrap_err().to_string();
        assert!(
            failure.contains(&path) && failure.contains("its publisher says"),
            "{failure}"
        );
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_there_is_named() {
        let cache = tempfile::tempdir().unwrap();
        let target = cache.path().join("programs");
        for missing in published().into_keys() {
            let mut files = published();
            files.remove(&missing);
            let (outcome, _) = download(files, &target);
            let failure = outcome.unwrap_err().to_string();
            assert!(failure.contains(&missing) && failure.contains("404"), "{failure}");
        }
        let mut files = published();
        let list = files
            .keys()
            .find(|path| path.ends_with("SHA256SUMS"))
            .unwrap()
            .clone();
        files.insert(list.clone(), b"nothing".to_vec());
        let failure = download(files, &target).0.unwrap_err().to_string();
        assert!(failure.contains("has no SHA-256 of etcd-v"), "{failure}");
        assert!(!target.exists());
    }

    #[test]
    fn the_urls_are_the_publishers() {
        let urls: Vec<String> = CONTROL_PLANE
            .downloads
            .iter()
            .map(|download| download.url("x"))
            .collect();
        assert!(urls.iter().all(|url| url.starts_with("https://")), "{urls:?}");
        let programs: Vec<_> = CONTROL_PLANE
            .downloads
            .iter()
            .map(|download| download.program)
            .collect();
        let built: Vec<_> = CONTROL_PLANE.binaries.iter().map(|(name, _)| *name).collect();
        assert_eq!(programs, built, "the same programs as are built");
    }
}
