//! Rules for spec values, shared by REST (which reports every invalid field at once) and the controller (which reports
//! what admission cannot check in a condition). Each function returns, as an error, what the value must be.

use std::borrow::Cow;

use ssh_key::{Algorithm, PublicKey, public::KeyData};

use super::{
    invoice::{MAX_ADDRESS_LINE, MAX_ADDRESS_LINES},
    text,
};

/// Longest name and tag, in bytes (decisions, section 6).
pub const MAX_NAME: usize = 63;
/// Most tags of an instance.
pub const MAX_TAGS: usize = 50;
/// Most SSH keys of an instance.
pub const MAX_SSH_KEYS: usize = 20;
/// Most characters of all SSH keys of an instance together: room for twenty of RSA with 4,096 bits. Every process keeps them in
/// memory.
pub const MAX_SSH_KEYS_CHARACTERS: usize = 16_384;
/// Fewest bits of an RSA key.
const MIN_RSA_BITS: usize = 2048;

/// The complaint about SSH keys that are too long together.
pub fn too_long_ssh_keys() -> String {
    format!(
        "must be at most {MAX_SSH_KEYS_CHARACTERS} characters in all; leave out keys or shorten their comments"
    )
}

/// How long SSH keys may be together.
pub fn length_of_ssh_keys(keys: &[String]) -> Result<(), String> {
    let characters = keys.iter().map(|key| normalised_ssh_key(key).chars().count());
    if characters.sum::<usize>() > MAX_SSH_KEYS_CHARACTERS {
        return Err(too_long_ssh_keys());
    }
    Ok(())
}

/// A display name: 1–63 letters, digits, `.`, `-`, with a letter or digit at both ends.
pub fn name(value: &str) -> Result<(), &'static str> {
    let inner = value
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    if value.len() <= MAX_NAME && inner && ends(value.bytes().next()) && ends(value.bytes().last()) {
        Ok(())
    } else {
        Err("must be 1 to 63 letters, digits, '.' or '-', with a letter or digit at both ends")
    }
}

/// Most characters of a webhook's description.
pub const MAX_DESCRIPTION: usize = 255;

/// A text of the account holder's choice, of up to `most` characters, which does not confuse those who read it on a terminal.
pub fn label(value: &str, most: usize) -> Result<(), String> {
    if value.chars().count() <= most && !value.contains(text::is_control) {
        Ok(())
    } else {
        Err(format!(
            "must be at most {most} characters, without control and bidirectional ones such as line breaks"
        ))
    }
}

/// Checks the name of an installation, which its API keys begin with.
pub fn installation(value: &str) -> Result<(), &'static str> {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let begins_well = value.starts_with(|first: char| first.is_ascii_lowercase());
    if begins_well && value.len() <= 12 && value.bytes().all(is_good) {
        Ok(())
    } else {
        Err("must be 1 to 12 lower-case letters and digits, the first a letter, such as eu1")
    }
}

/// A region code `<country>-<city>-<n>`.
pub fn region(value: &str) -> Result<(), &'static str> {
    let mut parts = value.split('-');
    let lower = |part: &str| part.bytes().all(|b| b.is_ascii_lowercase());
    let well_formed = value.len() <= MAX_NAME
        && parts
            .next()
            .is_some_and(|country| country.len() == 2 && lower(country))
        && parts.next().is_some_and(|city| city.len() >= 3 && lower(city))
        && parts
            .next()
            .is_some_and(|n| !n.starts_with('0') && !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        && parts.next().is_none();
    if well_formed {
        Ok(())
    } else {
        Err("must be a region code <country>-<city>-<n> such as fr-par-1; GET /v1/regions lists them")
    }
}

/// An image identifier such as `debian-13`.
pub fn image(value: &str) -> Result<(), &'static str> {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let well_formed = !value.is_empty()
        && value.len() <= MAX_NAME
        && value.bytes().all(|b| alphanumeric(b) || b == b'.' || b == b'-')
        && value.bytes().next().is_some_and(alphanumeric)
        && value.bytes().last().is_some_and(alphanumeric);
    if well_formed {
        Ok(())
    } else {
        Err("must be an image identifier such as debian-13; GET /v1/images lists them")
    }
}

/// A tag: 1–63 of `[A-Za-z0-9_.:-]`.
pub fn tag(value: &str) -> Result<(), &'static str> {
    let inner = value
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b));
    if !value.is_empty() && value.len() <= MAX_NAME && inner {
        Ok(())
    } else {
        Err("must be 1 to 63 letters, digits, '_', '.', ':' or '-'")
    }
}

/// The identifier of a private network: `pn-` and lower-case letters and digits, in parts joined by `-`.
pub fn private_network(value: &str) -> Result<(), &'static str> {
    let part = |p: &str| !p.is_empty() && p.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if value.len() <= MAX_NAME
        && value
            .strip_prefix("pn-")
            .is_some_and(|rest| rest.split('-').all(part))
    {
        Ok(())
    } else {
        Err("must be the identifier of a private network, pn- followed by lower-case letters and digits")
    }
}

/// An SSH key with one blank between its parts and nothing at its ends. `sshd` takes any blanks and tabs there, and key files
/// end in a line break.
pub fn normalised_ssh_key(value: &str) -> String {
    let blank = [' ', '\t'];
    let (kind, rest) = value
        .trim_ascii()
        .split_once(blank)
        .unwrap_or((value.trim_ascii(), ""));
    let rest = rest.trim_start_matches(blank);
    let (key, comment) = rest.split_once(blank).unwrap_or((rest, ""));
    let parts = [kind, key, comment.trim_start_matches(blank)];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(" ")
}

/// How key files in other formats begin, and what to do about it.
pub const OTHER_SSH_FORMATS: [(&str, &str); 4] = [
    (
        "---- BEGIN SSH2 PUBLIC KEY",
        "must be an OpenSSH public key; this one has the SSH2 format, and ssh-keygen -i -f FILE converts it",
    ),
    (
        "-----BEGIN PUBLIC KEY",
        "must be an OpenSSH public key; this one has the PKCS8 format, and ssh-keygen -i -m PKCS8 -f FILE converts it",
    ),
    (
        "-----BEGIN RSA PUBLIC KEY",
        "must be an OpenSSH public key; this one has the PEM format, and ssh-keygen -i -m PEM -f FILE converts it",
    ),
    (
        "PuTTY-User-Key-File",
        "must be an OpenSSH public key; this is a file of PuTTY with the private key, which you should never share, and puttygen FILE -L prints the public one",
    ),
];

/// The names of the options in front of a key in a line of `authorized_keys`.
fn ssh_options(value: &str) -> Option<Vec<&str>> {
    let mut is_quoted = false;
    let mut unquoted = value.match_indices(['"', ',', ' ', '\t']).filter(|(at, text)| {
        if *text == "\"" && !value[..*at].ends_with('\\') {
            is_quoted = !is_quoted;
        }
        !is_quoted && *text != "\""
    });
    let (mut names, mut start) = (Vec::new(), 0);
    let name = |option: &'_ str| option.split('=').next().map(str::len).unwrap_or_default();
    let end = loop {
        let (at, separator) = unquoted.next()?;
        names.push(&value[start..start + name(&value[start..at])]);
        if separator != "," {
            break at;
        }
        start = at + 1;
    };
    let is_key = ["ssh-", "ecdsa-", "sk-"]
        .iter()
        .any(|kind| value[end..].trim_ascii_start().starts_with(kind));
    is_key.then_some(names)
}

/// An OpenSSH public key on one line: ed25519, ECDSA, RSA of at least 2048 bits, or a security key. The key data is
/// decoded too.
pub fn ssh_key(value: &str) -> Result<(), Cow<'static, str>> {
    let line = value.trim_ascii();
    if line.contains("PRIVATE KEY") {
        return Err("must be a public key; this is a private key, which you should never share".into());
    }
    let mut others = OTHER_SSH_FORMATS.iter();
    if let Some((_, must)) = others.find(|(begin, _)| line.starts_with(begin)) {
        return Err((*must).into());
    }
    if line.contains(['\r', '\n']) {
        return Err("must be one line; put each key into its own element".into());
    }
    let Ok(key) = PublicKey::from_openssh(&normalised_ssh_key(line)) else {
        return Err(match ssh_options(line) {
            Some(names) => format!(
                "must have no options in front of the key; leave out {}",
                names.join(", ")
            )
            .into(),
            None => "must be an OpenSSH public key such as 'ssh-ed25519 AAAA… you@example.com'".into(),
        });
    };
    let must: Result<(), &'static str> = match (key.algorithm(), key.key_data()) {
        (Algorithm::Rsa { .. }, KeyData::Rsa(rsa)) => {
            let bits = rsa.n.as_positive_bytes().map_or(0, |n| {
                let leading = n.first().map_or(8, |b| b.leading_zeros() as usize);
                n.len() * 8 - leading.min(n.len() * 8)
            });
            if bits < MIN_RSA_BITS {
                Err("must be an RSA key of at least 2048 bits, or preferably an ed25519 key")
            } else {
                Ok(())
            }
        }
        (
            Algorithm::Ed25519
            | Algorithm::Ecdsa { .. }
            | Algorithm::SkEd25519
            | Algorithm::SkEcdsaSha2NistP256,
            _,
        ) => Ok(()),
        _ => Err("must be an ed25519, ecdsa, rsa or security key"),
    };
    must.map_err(Cow::Borrowed)
}

/// Checks the lines of an address: at most six, each 1 to 100 characters, none of them a control character. The error is the
/// index of the wrong line, if it is one, and what is wrong.
pub fn address(lines: &[String]) -> Result<(), (Option<usize>, String)> {
    if lines.len() > MAX_ADDRESS_LINES {
        let problem = format!(
            "has {} lines; must have at most {MAX_ADDRESS_LINES} lines",
            lines.len()
        );
        return Err((None, problem));
    }
    let is_wrong = |line: &String| {
        line.is_empty() || line.chars().count() > MAX_ADDRESS_LINE || line.chars().any(char::is_control)
    };
    match lines.iter().position(is_wrong) {
        Some(index) => Err((
            Some(index),
            format!("must have 1 to {MAX_ADDRESS_LINE} characters, and no control characters"),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER_KEYS: [&str; 4] = [
        "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBJeyxv7vFirwP2PRWKEGGhsXi6a0BRrclt2P+THAoG/HhUyKgiABWml23b+OGHk5y/7FfBM6rB7OxeZbBRbFbIE= test@example.com",
        "ecdsa-sha2-nistp384 AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBJ6jt8yZc0tbDgKakqiQDI6La+/VZQAEK+Op27JWxGJJ3QVbVUdY1s/t38Ggb+DwW1XQKFfSITGYj1tvAOHwDqPTqXVbywVPEE5uBbIGaPZDdwPoDc0zmquKc+Fu7A752Q== test@example.com",
        "ecdsa-sha2-nistp521 AAAAE2VjZHNhLXNoYTItbmlzdHA1MjEAAAAIbmlzdHA1MjEAAACFBAEVYaf2dWm8z/c7TCuUOf4hRsv2PApq07PcwOIey0UGBPRh1DLDHrN5oiJFV6MLJO8pqbhzGM6RRGC/jqe6gO7noQAWdIJaWwur4+zXejvwanjGyVfGY94n3ZuM9KqV6OpVS5zRWpx8Ubexw9IigmBGC7smpmmVJdDzn+lV5q0S8gPycw== test@example.com",
        "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQDfi1Q4ZzoDvIle9/7L+xoVSkzt7eFBnj3FYa5yxfJ1fE/Soi5WLjZOiC2NYjsHMTBv9ZVa1GUBlZQ4yU88YGjLcGZ3cqHmZmHKJFf/sCNoy4fEX+CG7c+I+va/Kg4XpuP7Uy/Fs/6+psFJ5+xg87LxZ/QNL6sUZyHLKZfL1KxEGz5uXZxQyD8+pomg6rjMt6CI/b4uosjPGYh1ukm7Qbh4C2cevELo4zwSD7ULsqupzxy4BNOpV4/xIzrxsndgWM467pFiHwj8MFIocouTefSj+zZqivFA6zLGGxjGS9p1mjoFnaNzjAdpMjmRpKuz5u4Ej45jM1MwxWtDkc9EPX2l test@example.com",
    ];

    #[test]
    fn names_follow_the_decided_rule() {
        for good in ["a", "web-1", "Web.example.com", &"x".repeat(63)] {
            assert_eq!(name(good), Ok(()), "{good}");
        }
        for bad in ["", "-a", "a-", ".a", "a.", "a_b", "ä", "a b", &"x".repeat(64)] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn regions_have_three_parts() {
        for good in ["fr-par-1", "de-fra-12"] {
            assert_eq!(region(good), Ok(()), "{good}");
        }
        for bad in [
            "",
            "fr",
            "fr-par",
            "fr-par-0",
            "fr-par-01",
            "FR-par-1",
            "fr-pa-1",
            "fra-par-1",
            "fr-par-1-2",
            "fr-par-x",
        ] {
            assert!(region(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_networks_and_images_follow_their_rules() {
        assert!(
            tag("env:prod_1.x-y").is_ok()
                && tag("").is_err()
                && tag("a b").is_err()
                && tag(&"t".repeat(64)).is_err()
        );
        assert!(
            private_network("pn-abc1").is_ok()
                && private_network("pn-").is_err()
                && private_network("x").is_err()
        );
        assert!(
            image("ubuntu-24.04").is_ok()
                && image("").is_err()
                && image("Debian").is_err()
                && image("-x").is_err()
        );
    }

    #[test]
    fn ssh_keys_are_really_decoded() {
        let ed25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";
        assert_eq!(ssh_key(ed25519), Ok(()));
        for other in OTHER_KEYS {
            assert_eq!(ssh_key(other), Ok(()), "{other}");
        }
        assert!(ssh_key("ssh-ed25519 AAAA").is_err());
        assert!(
            ssh_key(&ed25519.replace("ssh-ed25519", "ssh-rsa")).is_err(),
            "the inner type must agree"
        );
        assert!(
            ssh_key("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----")
                .unwrap_err()
                .contains("private")
        );
        assert!(ssh_key(&format!("{ed25519}\n{ed25519}")).is_err());
    }

    #[test]
    fn ssh_keys_may_have_the_blanks_that_sshd_takes() {
        let parts = [
            "ssh-ed25519",
            "AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti",
            "ada  at home",
        ];
        let [kind, key, comment] = parts;
        let normal = parts.join(" ");
        for good in [
            format!("{kind}  {key} {comment}"),
            format!("{kind}\t{key}\t{comment}"),
            format!(" \t{kind} {key}   {comment} \t"),
            format!("{kind} {key} {comment}\n"),
            format!("{kind} {key} {comment}\r\n"),
        ] {
            assert_eq!(ssh_key(&good), Ok(()), "{good:?}");
            assert_eq!(normalised_ssh_key(&good), normal, "{good:?}");
        }
        for good in [
            format!("{kind} {key}"),
            format!("{kind} \t{key}\r\n"),
            format!("{kind} {key} "),
        ] {
            assert_eq!(ssh_key(&good), Ok(()), "{good:?}");
            assert_eq!(normalised_ssh_key(&good), format!("{kind} {key}"));
        }
        for bad in ["", " ", "ssh-ed25519", "\u{a0}ssh-ed25519 AAAA"] {
            assert!(ssh_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn keys_in_other_formats_are_told_what_converts_them_and_options_are_named() {
        let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti ada";
        for (text, fix) in [
            (
                "---- BEGIN SSH2 PUBLIC KEY ----\nComment: x\nAAAA\n---- END SSH2 PUBLIC KEY ----",
                "ssh-keygen -i -f FILE",
            ),
            (
                "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
                "ssh-keygen -i -m PKCS8 -f FILE",
            ),
            (
                "-----BEGIN RSA PUBLIC KEY-----\nAAAA\n-----END RSA PUBLIC KEY-----",
                "ssh-keygen -i -m PEM -f FILE",
            ),
            (
                "PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none",
                "puttygen FILE -L",
            ),
            ("-----BEGIN RSA PRIVATE KEY-----\nAAAA", "private key"),
            (&format!("{key}\n{key}"), "own element"),
            (&format!("no-pty {key}"), "leave out no-pty"),
            (
                &format!("from=\"10.0.0.1,::1\",command=\"echo \\\"a, b\\\"\",restrict {key}"),
                "leave out from, command, restrict",
            ),
            (&format!("hello {}", "x".repeat(20)), "such as 'ssh-ed25519"),
        ] {
            let must = ssh_key(text).unwrap_err();
            assert!(must.ends_with(fix) || must.contains(fix), "{text}: {must}");
        }
    }
}
