//! Fuzzes what reads the answers of receivers: any bytes, in any pieces.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sender::{AttemptOutcome, RetryAfter, answer::AnswerHead};

/// Length up to which a line is read whole.
const WHOLE: usize = 1000;

fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> AnswerHead {
    let mut head = AnswerHead::default();
    pieces.into_iter().for_each(|piece| head.read(piece));
    head
}

fn status(head: &AnswerHead) -> Option<u16> {
    head.status().map(|(status, _)| status)
}

/// What a strict parser accepts is read as it reads it.
fn compare(answer: &[u8], head: &AnswerHead) {
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut strict = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(_)) = strict.parse(answer) else {
        return;
    };
    let Some(code @ (101 | 200..=999)) = strict.code else {
        return;
    };
    assert_eq!(status(head), Some(code));
    let value = |name: &str| {
        let header = strict.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
        header.map(|header| header.value)
    };
    for (read, value) in [
        (head.location(), value("location")),
        (head.retry_after(), value("retry-after")),
    ] {
        if value.is_none_or(|value| value.len() < WHOLE) {
            assert_eq!(read, value);
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((length, answer)) = input.split_first() else {
        return;
    };
    let whole = read([answer]);
    let pieces = read(answer.chunks(usize::from(*length).max(1)));
    assert_eq!(status(&whole), status(&pieces));
    assert_eq!(whole.location(), pieces.location());
    assert_eq!(whole.retry_after(), pieces.retry_after());
    if answer.split(|byte| *byte == b'\n').all(|line| line.len() < WHOLE) {
        compare(answer, &whole);
    }
    if let Some(RetryAfter::Delay(delay)) = RetryAfter::parse(answer) {
        assert!(delay <= Duration::from_secs(366 * 24 * 3600));
    }
    let outcome = AttemptOutcome {
        duration: Duration::ZERO,
        status: status(&whole),
        response: String::from_utf8_lossy(answer).into_owned(),
        retry_after: None,
        error: None,
    };
    let recorded = outcome.recorded_response(1024).unwrap_or_default();
    assert!(recorded.len() <= 1024);
    assert!(recorded.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
});
