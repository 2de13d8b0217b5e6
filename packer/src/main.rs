//! `packer`: packs a static program as a container image. `make image` uses it.

mod archive;
mod image;
mod program;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use image::Image;
use jiff::Timestamp;
use program::Program;

/// The most bytes of an image for one architecture, compressed: a cluster fetches it before a pod starts.
const LARGEST: usize = 25_000_000;

/// Packs a static program as a container image: an OCI layout in a tar archive, which `docker load`, `ctr images import`,
/// `kind load image-archive` and `skopeo` read. The image has the program, which is its entrypoint, Mozilla's certificate authorities and
/// licences; no shell. The same arguments always give the same bytes, and one that would be larger than 25 MB is refused.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    /// Name of the image, with its registry and tag, such as localhost/stellage:0.1.0
    #[arg(long)]
    name: String,
    /// The program, statically linked; one for each architecture that the image is for
    #[arg(long = "program", value_name = "FILE", required = true)]
    programs: Vec<PathBuf>,
    /// A licence, which the image has in /licenses under the same name; may be repeated
    #[arg(long, value_name = "FILE")]
    licenses: Vec<PathBuf>,
    /// The commit that it was built from
    #[arg(long)]
    commit: String,
    /// Time of that commit, in seconds since 1970
    #[arg(long, env = "SOURCE_DATE_EPOCH", value_parser = timestamp)]
    created: Timestamp,
    /// The archive to write
    #[arg(long)]
    output: PathBuf,
}

fn timestamp(text: &str) -> Result<Timestamp, String> {
    let seconds = text.parse().map_err(|_| "must be a number of seconds")?;
    Timestamp::from_second(seconds).map_err(|error| error.to_string())
}

/// Why no image was written.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    #[error("{0}: {1}")]
    Program(PathBuf, program::Unfit),
    #[error("cannot pack: {0}")]
    Pack(#[from] io::Error),
}

fn pack(arguments: &Arguments) -> Result<String, Failure> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |error| Failure::File(path, error)
    };
    let read = |path: &Path| {
        let bytes = fs::read(path).map_err(file(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok::<_, Failure>((name.into_owned(), bytes))
    };
    let mut programs = Vec::new();
    for path in &arguments.programs {
        let (name, bytes) = read(path)?;
        programs.push(Program::new(name, bytes).map_err(|unfit| Failure::Program(path.clone(), unfit))?);
    }
    let mut licenses = Vec::new();
    for path in &arguments.licenses {
        let (name, text) = read(path)?;
        // Where OpenShift's certification looks for them.
        licenses.push((format!("licenses/{name}"), text));
    }
    let image = Image {
        name: &arguments.name,
        version: env!("CARGO_PKG_VERSION"),
        commit: &arguments.commit,
        created: arguments.created,
        licenses,
        largest: LARGEST,
    };
    let (digest, archive) = image.pack(&programs)?;
    fs::write(&arguments.output, &archive).map_err(file(&arguments.output))?;
    Ok(format!(
        "{} {digest}, {} bytes, in {}",
        arguments.name,
        archive.len(),
        arguments.output.display()
    ))
}

fn main() -> ExitCode {
    match pack(&Arguments::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("packer: {failure}");
            ExitCode::FAILURE
        }
    }
}
