//! Randomness for tokens and names, from the kernel, in hexadecimal.

use crate::Error;
use std::{fs::File, io::Read as _};

/// `2 * bytes` hexadecimal digits.
pub(crate) fn hex(bytes: usize) -> Result<String, Error> {
    let mut buffer = vec![0; bytes];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut buffer))
        .map_err(Error::file("read", "/dev/urandom"))?;
    Ok(hex::encode(buffer))
}
