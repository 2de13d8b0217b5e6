//! Panics in the logs of the servers, which are written in Go.

use std::{
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
};

/// How lines about panics of the Go runtime begin, which end the process.
const BEGINNINGS: [&str; 2] = ["panic:", "fatal error:"];
/// Parts of lines about panics that Kubernetes recovers from, and of those from etcd's logger.
const PARTS: [&str; 4] = [
    "Observed a panic",
    "apiserver panic'd",
    "http: panic serving",
    "\"level\":\"panic\"",
];

/// The lines about panics in a log; none if there is no log.
pub(crate) fn panics(log: &Path) -> Vec<String> {
    let Ok(file) = File::open(log) else {
        return Vec::new();
    };
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    lines
        .map(|line| String::from_utf8_lossy(&line).into_owned())
        .filter(|line| is_panic(line))
        .collect()
}

fn is_panic(line: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning))
        || PARTS.iter().any(|part| line.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_found_whether_the_process_ended_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        assert!(panics(&log).is_empty());
        let panicked = [
            "panic: runtime error: invalid memory address or nil pointer dereference",
            "fatal error: concurrent map writes",
            "E1122 12:00:00.000000   1 panic.go:262] \"Observed a panic\" panic=\"boom\"",
            "E1122 12:00:00.000000   1 wrap.go:57] \"apiserver panic'd\" method=\"GET\"",
            "2026/11/22 12:00:00 http: panic serving 127.0.0.1:1: boom",
            r#"{"level":"panic","msg":"failed to recover v3 backend from snapshot"}"#,
        ];
        let usual = [
            "I1122 12:00:00.000000   1 handler.go:1] request took long: timeout or abort while handling",
            r#"{"level":"warn","msg":"apply request took too long"}"#,
        ];
        std::fs::write(&log, [&panicked[..], &usual].concat().join("\n")).unwrap();
        assert_eq!(panics(&log), panicked);
    }
}
