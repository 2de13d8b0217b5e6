//! How a backup is packed: compressed with gzip and, with a key, encrypted in the format of `age`, which any program for it can read.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use age::{
    DecryptError, Decryptor, Encryptor,
    stream::StreamWriter,
    x25519::{Identity, Recipient},
};
use clap::Args;
use flate2::{Compression, bufread::GzDecoder, write::GzEncoder};
use parking_lot::Mutex;

use crate::CliError;

/// How an encrypted file begins.
const AGE: &[u8] = b"age-encryption.org/";
/// How a compressed file begins.
const GZIP: &[u8] = &[0x1f, 0x8b];

/// The keys of backups.
#[derive(Args, Debug)]
pub(super) struct KeyArgs {
    /// File with keys of `age`, one per line: to encrypt, public ones (age1…) are enough; to read, it needs the private one
    /// (AGE-SECRET-KEY-1…)
    #[arg(long, value_name = "FILE")]
    pub(super) key_file: Option<PathBuf>,
}

impl KeyArgs {
    pub(super) fn read(&self) -> Result<Option<Keys>, CliError> {
        self.key_file.as_deref().map(Keys::read).transpose()
    }
}

/// The keys in a file.
pub(super) struct Keys {
    /// For whom a backup is encrypted: each can read it alone.
    recipients: Vec<Recipient>,
    identities: Vec<Identity>,
    path: PathBuf,
}

impl Keys {
    fn read(path: &Path) -> Result<Self, CliError> {
        let flag = "--key-file";
        let text = std::fs::read_to_string(path).map_err(|source| CliError::Unreadable {
            flag,
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path).map_err(|why| CliError::Value { flag, why })
    }

    fn parse(text: &str, path: &Path) -> Result<Self, String> {
        let (mut recipients, mut identities) = (Vec::new(), Vec::new());
        let lines = text.lines().map(str::trim).enumerate();
        for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            if let Ok(identity) = line.parse::<Identity>() {
                recipients.push(identity.to_public());
                identities.push(identity);
            } else if let Ok(recipient) = line.parse() {
                recipients.push(recipient);
            } else {
                // Not what is there: it may be half a private key.
                return Err(format!(
                    "line {} of {} is no key: `age-keygen` makes one, AGE-SECRET-KEY-1…, and prints its public key, age1…",
                    index + 1,
                    path.display()
                ));
            }
        }
        if recipients.is_empty() {
            return Err(format!("{} has no key", path.display()));
        }
        Ok(Self {
            recipients,
            identities,
            path: path.to_owned(),
        })
    }
}

/// Writes into a file or a buffer, packed or as it is.
pub(super) enum Packer<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
    Sealed(GzEncoder<StreamWriter<W>>),
}

impl<W: Write> Packer<W> {
    /// Packs what is written, and encrypts it if there are keys.
    pub(super) fn new(out: W, keys: Option<&Keys>) -> io::Result<Self> {
        let Some(keys) = keys else {
            return Ok(Self::Gzip(GzEncoder::new(out, Compression::fast())));
        };
        let recipients = keys.recipients.iter().map(|key| key as &dyn age::Recipient);
        let encryptor = Encryptor::with_recipients(recipients).map_err(io::Error::other)?;
        let sealed = encryptor.wrap_output(out)?;
        Ok(Self::Sealed(GzEncoder::new(sealed, Compression::fast())))
    }

    /// Writes what is missing at the end, without which nothing packed can be read.
    pub(super) fn finish(self) -> io::Result<W> {
        match self {
            Self::Plain(out) => Ok(out),
            Self::Gzip(out) => out.finish(),
            Self::Sealed(out) => out.finish()?.finish(),
        }
    }
}

impl<W: Write> Write for Packer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(out) => out.write(bytes),
            Self::Gzip(out) => out.write(bytes),
            Self::Sealed(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a file, whether it is packed or not.
pub(super) fn unpacked(file: File, keys: Option<&Keys>) -> Result<Box<dyn BufRead>, String> {
    let lines = BufReader::new(file);
    unpacked_from(lines, keys)
}

fn unpacked_from(file: impl BufRead + 'static, keys: Option<&Keys>) -> Result<Box<dyn BufRead>, String> {
    let mut file: Box<dyn BufRead> = Box::new(file);
    if begins(&mut file, AGE)? {
        let Some(keys) = keys else {
            return Err("it is encrypted: pass --key-file with its private key".to_owned());
        };
        if keys.identities.is_empty() {
            return Err(format!(
                "it is encrypted, and {} has only public keys; reading needs the private one, AGE-SECRET-KEY-1…",
                keys.path.display()
            ));
        }
        let identities = keys.identities.iter().map(|key| key as &dyn age::Identity);
        let decrypted = Decryptor::new_buffered(file).and_then(|decryptor| decryptor.decrypt(identities));
        let decrypted = decrypted.map_err(|error| match error {
            DecryptError::NoMatchingKeys => format!("none of the keys in {} opens it", keys.path.display()),
            error => format!("it cannot be decrypted: {error}"),
        })?;
        file = Box::new(BufReader::new(decrypted));
    }
    if begins(&mut file, GZIP)? {
        file = Box::new(BufReader::new(GzDecoder::new(file)));
    }
    Ok(file)
}

/// Whether a file begins with these bytes, which stay to be read.
fn begins(file: &mut Box<dyn BufRead>, with: &[u8]) -> Result<bool, String> {
    let begin = file.fill_buf().map_err(|error| error.to_string())?;
    if begin.len() >= with.len() || begin.is_empty() {
        return Ok(begin.starts_with(with));
    }
    // A short read, perhaps in the middle.
    let mut begin = Vec::new();
    let rest = std::mem::replace(file, Box::new(io::empty()));
    let mut head = rest.take(with.len() as u64);
    head.read_to_end(&mut begin).map_err(|error| error.to_string())?;
    let is_so = begin == with;
    *file = Box::new(io::Cursor::new(begin).chain(head.into_inner()));
    Ok(is_so)
}

/// Packed bytes that are not sent yet.
#[derive(Clone, Default)]
pub(super) struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    /// Takes the first `size` bytes, if there are so many.
    pub(super) fn part(&self, size: usize) -> Option<Vec<u8>> {
        let mut bytes = self.0.lock();
        (bytes.len() >= size).then(|| {
            let rest = bytes.split_off(size);
            std::mem::replace(&mut *bytes, rest)
        })
    }

    /// Takes all that is left.
    pub(super) fn rest(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Keys {
        Keys::parse(text, Path::new("keys")).unwrap()
    }

    fn packed(text: &str, keys: Option<&Keys>) -> Vec<u8> {
        let mut packer = Packer::new(Vec::new(), keys).unwrap();
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    fn read(bytes: Vec<u8>, keys: Option<&Keys>) -> Result<String, String> {
        let mut text = String::new();
        let mut file = unpacked_from(io::Cursor::new(bytes), keys)?;
        file.read_to_string(&mut text)
            .map_err(|error| error.to_string())?;
        Ok(text)
    }

    fn private(identity: &Identity) -> String {
        use age::secrecy::ExposeSecret as _;
        identity.to_string().expose_secret().to_owned()
    }

    #[test]
    fn a_packed_file_is_read_with_each_of_its_keys_and_with_no_other() {
        let [first, second, other] = [(); 3].map(|()| Identity::generate());
        let public = keys(&format!(
            "# two\n{}\n\n{}\n",
            first.to_public(),
            second.to_public()
        ));
        let text = "lines\n".repeat(50_000);
        let bytes = packed(&text, Some(&public));
        assert!(bytes.starts_with(AGE) && bytes.len() < text.len() / 10);
        for identity in [&first, &second] {
            let private = keys(&private(identity));
            assert!(read(bytes.clone(), Some(&private)).unwrap() == text);
        }
        for (keys, why) in [
            (Some(keys(&private(&other))), "none of the keys in keys"),
            (Some(public), "only public keys"),
            (None, "--key-file"),
        ] {
            let refused = read(bytes.clone(), keys.as_ref()).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let plain = packed(&text, None);
        assert!(read(plain, None).unwrap() == text);
        assert_eq!(read(b"{}".to_vec(), None).unwrap(), "{}");
        assert_eq!(read(Vec::new(), None).unwrap(), "");
    }

    #[test]
    fn a_packed_file_that_is_cut_off_anywhere_is_not_read_to_its_end() {
        let key = keys(&private(&Identity::generate()));
        // With less than its mark, it is another file, which is no export.
        for (keys, mark) in [(None, GZIP), (Some(&key), AGE)] {
            let whole = packed("a line\n", keys);
            for length in 1..whole.len() {
                let text = read(whole[..length].to_vec(), keys);
                assert!(text.is_err() || length < mark.len(), "{length} bytes");
            }
        }
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        let half = &private(&Identity::generate())[..40];
        let refused = Keys::parse(&format!("# made today\n{half}\n"), Path::new("keys"))
            .err()
            .unwrap();
        assert!(
            refused.contains("line 2 of keys") && !refused.contains(half),
            "{refused}"
        );
        let refused = Keys::parse("# nothing\n", Path::new("keys")).err().unwrap();
        assert_eq!(refused, "keys has no key");
    }

    #[test]
    fn parts_have_one_size_but_the_last() {
        let mut buffer = Buffer::default();
        buffer.clone().write_all(&[7; 25]).unwrap();
        assert_eq!(
            (buffer.part(10).unwrap().len(), buffer.part(10).unwrap().len()),
            (10, 10)
        );
        assert_eq!(buffer.part(10), None);
        buffer.write_all(&[7; 2]).unwrap();
        assert_eq!((buffer.rest().len(), buffer.rest().len()), (7, 0));
    }
}
