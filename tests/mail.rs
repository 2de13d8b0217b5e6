//! Notification e-mails to a mail server on loopback, and to a folder.

use controllers::mail::{MailError, MailSettings, Mailer, Notification, Step};
use mail_parser::{Message, MessageParser};
use mailin::{
    AuthMechanism, Response,
    response::{NO_MAILBOX, OUT_OF_SPACE, TEMP_AUTH_FAILURE, TRANSACTION_FAILED},
};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, TcpSocket},
    time::timeout,
};

use crate::support::{
    PATIENCE,
    smtp::{Behaviour, Encryption, SmtpServer},
};

const PASSWORD: &str = "p:ss/w@rd";
const PASSWORD_IN_URL: &str = "p%3Ass%2Fw%40rd";

fn notification() -> Notification {
    Notification {
        to: "ada@example.com".into(),
        subject: "Webhook wh_0123456789abcdef is disabled: instance.started could not be delivered".into(),
        id: "webhooks.0123456789abcdef".into(),
        date: "2026-11-21T10:00:00.5Z".parse().unwrap(),
        body: "The account demo has 1 disabled webhook.\n\n1. Fix the receiver.\n".into(),
    }
}

fn settings(url: &str) -> MailSettings {
    MailSettings {
        smtp_url: url.parse().ok(),
        mail_from: "Stellage Größe <stellage@example.com>".parse().unwrap(),
        smtp_ca: None,
        mail_timeout_seconds: 60,
        mail_interval_minutes: 60,
        mails_per_day: 10,
    }
}

/// Sends [`notification`] with a URL in which PORT is the server's port.
async fn send(server: &SmtpServer, url: &str) -> Result<(), MailError> {
    let url = url.replace("PORT", &server.address.port().to_string());
    let settings = MailSettings {
        smtp_ca: Some(server.authority()),
        ..settings(&url)
    };
    Mailer::new(&settings).unwrap().send(&notification()).await
}

fn parse(content: &[u8]) -> Message<'_> {
    MessageParser::default().parse(content).unwrap()
}

fn header<'a>(message: &'a Message<'_>, name: &str) -> &'a str {
    message.header_raw(name.to_owned()).unwrap_or_default().trim()
}

#[tokio::test]
async fn a_mail_arrives_with_its_headers_and_its_words() {
    let mut server = SmtpServer::start(Behaviour::default()).await;
    send(&server, "smtp://127.0.0.1:PORT/stellage.example.com")
        .await
        .unwrap();
    let received = server.next().await;
    assert_eq!(received.hello, "stellage.example.com");
    assert_eq!((received.user, received.encrypted), (None, false));
    assert_eq!(received.from, "stellage@example.com");
    assert_eq!(received.to, ["ada@example.com"]);
    let message = parse(&received.content);
    let from = message.from().unwrap().first().unwrap();
    assert_eq!(from.name(), Some("Stellage Größe"), "non-ASCII names survive");
    assert_eq!(from.address(), Some("stellage@example.com"));
    assert_eq!(
        message.to().unwrap().first().unwrap().address(),
        Some("ada@example.com")
    );
    assert_eq!(
        message.subject(),
        Some("Webhook wh_0123456789abcdef is disabled: instance.started could not be delivered")
    );
    assert_eq!(
        message.message_id(),
        Some("webhooks.0123456789abcdef@stellage.dev")
    );
    assert_eq!(message.date().unwrap().to_rfc3339(), "2026-11-21T10:00:00Z");
    assert_eq!(header(&message, "Auto-Submitted"), "auto-generated");
    assert_eq!(header(&message, "MIME-Version"), "1.0");
    let body = message.body_text(0).unwrap().replace("\r\n", "\n");
    assert_eq!(body.trim_end(), notification().body.trim_end());
    assert!(server.is_idle(), "it is one mail");
}

#[tokio::test]
async fn lines_that_begin_with_a_dot_and_text_beyond_ascii_arrive_as_they_were() {
    let mut server = SmtpServer::start(Behaviour::default()).await;
    let mailer = Mailer::new(&settings(&format!("smtp://{}", server.address))).unwrap();
    let mut mail = notification();
    for body in [
        "first\n.\n..\n.hidden\nQUIT\nlast\n".to_owned(),
        "Größe ≥ 10 – 日本語\n.\n..ende\n".to_owned(),
        format!("{}\n.\n", "日本語".repeat(500)),
        format!("{}\n", "a long line ".repeat(200)),
    ] {
        mail.body.clone_from(&body);
        mail.subject = "Störung\r\nBcc: eve@example.com".to_owned();
        mailer.send(&mail).await.unwrap();
        let received = server.next().await;
        assert_eq!(received.to, ["ada@example.com"]);
        assert!(received.content.is_ascii(), "no server has to know 8BITMIME");
        assert!(
            received
                .content
                .split(|b| *b == b'\n')
                .all(|line| line.len() < 1000)
        );
        let message = parse(&received.content);
        assert_eq!(message.subject(), Some("Störung Bcc: eve@example.com"));
        assert!(message.bcc().is_none());
        let text = message.body_text(0).unwrap().replace("\r\n", "\n");
        assert_eq!(text.trim_end(), body.trim_end());
    }
}

#[tokio::test]
async fn mail_is_encrypted_and_the_certificate_is_checked() {
    for (encryption, url) in [
        (Encryption::StartTls, "smtp://127.0.0.1:PORT?tls=required"),
        (Encryption::StartTls, "smtp://localhost:PORT?tls=opportunistic"),
        (Encryption::FromTheStart, "smtps://127.0.0.1:PORT"),
    ] {
        let behaviour = Behaviour {
            encryption,
            ..Behaviour::default()
        };
        let mut server = SmtpServer::start(behaviour).await;
        send(&server, url).await.unwrap();
        assert!(server.next().await.encrypted, "{url}");

        let url = url.replace("PORT", &server.address.port().to_string());
        let mailer = Mailer::new(&settings(&url)).unwrap();
        let error = mailer.send(&notification()).await.unwrap_err();
        assert!(matches!(error, MailError::Connection { .. }), "{error:?}");
        assert!(
            error.to_string().contains("certificate") && error.to_string().contains("--smtp-ca"),
            "without its authority it is not trusted: {error}"
        );
        assert!(server.is_idle());
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let behaviour = Behaviour {
        encryption: Encryption::StartTls,
        ..Behaviour::default()
    };
    let mut server = SmtpServer::start(behaviour).await;
    let error = send(&server, "smtp://127.1:PORT?tls=required").await.unwrap_err();
    assert!(
        matches!(
            error,
            MailError::Connection {
                step: Step::Encrypt,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(server.is_idle());
}

#[tokio::test]
async fn a_server_without_encryption_gets_nothing_if_it_is_required() {
    let mut server = SmtpServer::start(Behaviour::default()).await;
    let error = send(&server, "smtp://127.0.0.1:PORT?tls=required")
        .await
        .unwrap_err();
    assert!(matches!(error, MailError::NotEncrypted { .. }), "{error:?}");
    assert!(server.is_idle());
    send(&server, "smtp://127.0.0.1:PORT?tls=opportunistic")
        .await
        .unwrap();
    assert!(!server.next().await.encrypted);
}

#[tokio::test]
async fn it_logs_in_with_plain_and_login() {
    for mechanism in [AuthMechanism::Plain, AuthMechanism::Login] {
        for (encryption, url) in [
            (
                Encryption::StartTls,
                "smtp://ada:PASS@127.0.0.1:PORT?tls=required",
            ),
            (Encryption::FromTheStart, "smtps://ada:PASS@127.0.0.1:PORT"),
        ] {
            let behaviour = Behaviour {
                encryption,
                login: Some((mechanism.clone(), "ada", PASSWORD)),
                ..Behaviour::default()
            };
            let mut server = SmtpServer::start(behaviour).await;
            send(&server, &url.replace("PASS", PASSWORD_IN_URL))
                .await
                .unwrap();
            let received = server.next().await;
            assert_eq!(received.user.as_deref(), Some("ada"));
            assert!(received.encrypted);
        }
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_without_showing_it() {
    // A server that echoes the password, in plain text and as it was sent.
    let plain = "AGFkYQBwOnNzL3dAcmQ=";
    let echo = format!("5.7.8 no login with {PASSWORD} or {plain}");
    for (answer, expected) in [
        (None, "535 Invalid credentials"),
        (
            Some(Response::custom(535, echo)),
            "535 5.7.8 no login with *** or ***",
        ),
        (Some(TEMP_AUTH_FAILURE), "454 Temporary authentication failure"),
    ] {
        let behaviour = Behaviour {
            encryption: Encryption::StartTls,
            login: Some((AuthMechanism::Plain, "ada", "another")),
            refuses_login: answer,
            ..Behaviour::default()
        };
        let mut server = SmtpServer::start(behaviour).await;
        let url = format!("smtp://ada:{PASSWORD_IN_URL}@127.0.0.1:PORT?tls=required");
        let error = send(&server, &url).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.ends_with(&format!(
                "refuses the user name and password of --smtp-url: {expected}"
            )),
            "{text}"
        );
        for shown in [text, format!("{error:?}")] {
            assert!(
                ![PASSWORD, PASSWORD_IN_URL, plain]
                    .iter()
                    .any(|secret| shown.contains(secret)),
                "{shown}"
            );
        }
        assert!(server.is_idle());
    }
}

#[tokio::test]
async fn a_refusal_is_reported_with_its_code() {
    let refusing = |recipient: Option<Response>, content: Option<Response>| Behaviour {
        recipient,
        content,
        ..Behaviour::default()
    };
    for (behaviour, code) in [
        (refusing(Some(NO_MAILBOX), None), 550),
        (
            refusing(Some(Response::custom(450, "greylisted\u{7} ".repeat(40))), None),
            450,
        ),
        (refusing(None, Some(TRANSACTION_FAILED)), 554),
        (refusing(None, Some(OUT_OF_SPACE)), 452),
    ] {
        let mut server = SmtpServer::start(behaviour).await;
        let error = send(&server, "smtp://127.0.0.1:PORT").await.unwrap_err();
        let MailError::Refused {
            step: Step::Send,
            code: seen,
            text,
            ..
        } = &error
        else {
            panic!("{error:?}");
        };
        assert_eq!((*seen, error.label()), (code, "refused"));
        assert!(text.len() <= 300 && !text.contains('\u{7}'), "{text:?}");
        assert!(server.is_idle());
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("smtp://{}", listener.local_addr().unwrap());
    let silent = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.read_to_end(&mut Vec::new()).await
    });
    let mailer = Mailer::new(&MailSettings {
        mail_timeout_seconds: 1,
        ..settings(&url)
    });
    let mailer = mailer.unwrap();
    let sent = timeout(PATIENCE, async { mailer.send(&notification()).await }).await;
    let error = sent.expect("to be given up").unwrap_err();
    assert!(
        matches!(error, MailError::Timeout { seconds: 1, .. }),
        "{error:?}"
    );
    let closed = timeout(PATIENCE, silent).await;
    assert!(closed.is_ok(), "the connection is not left open");
}

#[tokio::test]
async fn a_server_that_takes_the_mail_and_falls_silent_has_taken_it() {
    let behaviour = Behaviour {
        never_says_goodbye: true,
        ..Behaviour::default()
    };
    let mut server = SmtpServer::start(behaviour).await;
    let sent = timeout(PATIENCE, send(&server, "smtp://127.0.0.1:PORT")).await;
    sent.expect("not to be waited for").unwrap();
    server.next().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_passing_failure() {
    // Bound, so that nobody else gets its port, but not listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let mailer = Mailer::new(&settings(&format!("smtp://{address}"))).unwrap();
    let error = mailer.send(&notification()).await.unwrap_err();
    assert!(
        matches!(
            error,
            MailError::Connection {
                step: Step::Connect,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_before_anything_is_sent() {
    let mut server = SmtpServer::start(Behaviour::default()).await;
    let mailer = Mailer::new(&settings(&format!("smtp://{}", server.address))).unwrap();
    for wrong in [
        "",
        "ada",
        "ada@example.com, eve@example.com",
        "ada@example.com\r\nBcc: eve@example.com",
    ] {
        let mut mail = notification();
        wrong.clone_into(&mut mail.to);
        let error = mailer.send(&mail).await.unwrap_err();
        assert!(matches!(error, MailError::Recipient(_)), "{error:?}");
    }
    assert!(server.is_idle());
}

#[tokio::test]
async fn without_a_url_sending_says_so() {
    let mailer = Mailer::new(&MailSettings {
        smtp_url: None,
        ..settings("")
    })
    .unwrap();
    assert!(!mailer.is_configured());
    let error = mailer.send(&notification()).await.unwrap_err();
    assert_eq!(error, MailError::NotConfigured);
    assert!(error.to_string().contains("--smtp-url (STELLAGE_SMTP_URL)"));
}

#[tokio::test]
async fn mails_become_files_that_sort_by_date() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("a new/mail ö");
    let url = url::Url::from_file_path(&folder).unwrap();
    let mailer = Mailer::new(&settings(url.as_str())).unwrap();
    assert!(folder.is_dir(), "it is there from the start");
    let mut later = notification();
    later.date += jiff::SignedDuration::from_millis(1);
    later.id = "webhooks.fedcba9876543210".into();
    std::fs::remove_dir(&folder).unwrap();
    mailer.send(&later).await.unwrap();
    mailer.send(&notification()).await.unwrap();
    mailer.send(&notification()).await.unwrap();
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "20261121T100000.500000Z-webhooks.0123456789abcdef.eml",
            "20261121T100000.501000Z-webhooks.fedcba9876543210.eml",
        ],
        "a repetition replaces its like, and nothing unfinished stays"
    );
    let content = std::fs::read(folder.join(&names[0])).unwrap();
    let message = parse(&content);
    assert_eq!(
        message.to().unwrap().first().unwrap().address(),
        Some("ada@example.com")
    );
    assert!(message.body_text(0).unwrap().contains("1 disabled webhook"));
}

#[tokio::test]
async fn who_watches_the_folder_never_reads_half_a_mail() {
    let folder = tempfile::tempdir().unwrap();
    let url = url::Url::from_file_path(folder.path()).unwrap();
    let mailer = Mailer::new(&settings(url.as_str())).unwrap();
    let mut mail = notification();
    mail.body = format!("{}The end.\n", format!("{}\n", "long ".repeat(180)).repeat(500));
    let path = folder.path().to_owned();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let watcher = std::thread::spawn(move || {
        let mut whole = 0;
        loop {
            // It checks once more when all have been sent.
            let is_last = stopped.try_recv().is_ok();
            for entry in std::fs::read_dir(&path).unwrap() {
                let file = entry.unwrap().path();
                if file.extension().is_some_and(|extension| extension == "eml") {
                    let content = std::fs::read(file).unwrap();
                    assert!(
                        content.trim_ascii_end().ends_with(b"The end."),
                        "{} bytes",
                        content.len()
                    );
                    whole += 1;
                }
            }
            if is_last {
                return whole;
            }
        }
    });
    for _ in 0..30 {
        mailer.send(&mail).await.unwrap();
    }
    stop.send(()).unwrap();
    assert!(watcher.join().unwrap() > 0);
}
