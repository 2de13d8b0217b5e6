//! The program in the image.

use object::{
    Architecture, Endianness, Object as _,
    elf::{self, FileHeader64},
    read::elf::{ElfFile, ProgramHeader as _},
};

/// A statically linked program.
pub struct Program {
    /// Its file name, also in the image.
    pub name: String,
    /// What it runs on, as images call it: amd64, arm64.
    pub architecture: &'static str,
    pub bytes: Vec<u8>,
}

/// Why a file cannot be the program of an image.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("not a program for Linux: {0}")]
    NotElf(#[from] object::Error),
    #[error("images are for amd64 and arm64, and this is for {0:?}")]
    Architecture(Architecture),
    #[error("needs a dynamic linker and libraries, which the image does not have: link it statically")]
    Dynamic,
}

impl Program {
    /// Looks into the file.
    pub fn new(name: String, bytes: Vec<u8>) -> Result<Self, Unfit> {
        let file = ElfFile::<FileHeader64<Endianness>>::parse(bytes.as_slice())?;
        let architecture = match file.architecture() {
            Architecture::X86_64 => "amd64",
            Architecture::Aarch64 => "arm64",
            other => return Err(Unfit::Architecture(other)),
        };
        let mut segments = file.elf_program_headers().iter();
        if segments.any(|segment| segment.p_type(file.endian()) == elf::PT_INTERP) {
            return Err(Unfit::Dynamic);
        }
        Ok(Self {
            name,
            architecture,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_dynamic_linker_is_refused() {
        let this = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let result = Program::new("test".to_owned(), this);
        assert!(matches!(result, Err(Unfit::Dynamic)));
    }

    #[test]
    fn a_script_is_refused() {
        let result = Program::new("script".to_owned(), b"#!/bin/sh\n".to_vec());
        assert!(matches!(result, Err(Unfit::NotElf(_))));
    }
}
