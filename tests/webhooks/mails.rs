//! What account holders are told about their webhooks by e-mail, through a real mail server.

use mail_parser::MessageParser;
use resources::{Webhook, conditions, webhook::BACKLOG};

use crate::support::{
    Operator, Tenant, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
    smtp::{Behaviour, Received, SmtpServer},
};

/// Recipient, subject and text of a mail.
fn read(mail: &Received) -> (String, String, String) {
    let message = MessageParser::default().parse(&mail.content).unwrap();
    let text = message.body_text(0).unwrap().replace("\r\n", "\n");
    (mail.to[0].clone(), message.subject().unwrap().to_owned(), text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_befalls_several_webhooks_is_one_mail_and_limits_and_backlogs_outlast_the_process() {
    let plane = own_plane().await;
    let mut server = SmtpServer::start(Behaviour::default()).await;
    let mut arguments = vec![
        "run".to_owned(),
        "--provisioning-seconds=0".to_owned(),
        "--mail-interval-minutes=0".to_owned(),
        "--pending-deliveries=1".to_owned(),
        "--held-deliveries=1".to_owned(),
        format!("--smtp-url=smtp://{}", server.address),
    ];
    let receiving = receiver_arguments(&plane).into_iter();
    arguments.extend(receiving.filter(|argument| !argument.starts_with("--smtp-url")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut operator = Operator::start(&plane, &arguments).await;

    let merged = Tenant::on(&plane, &operator, "mails-merged").await;
    let gone = Receiver::start(|_| Answer::status(410)).await;
    for name in ["one", "two", "three"] {
        merged.webhook(name, &gone.url("/"), &["instance.created"]).await;
    }
    for name in ["one", "two", "three"] {
        let is_ready = |webhook: &Webhook| {
            let status = webhook.status.as_ref();
            status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        };
        merged.wait_for_webhook(name, "it to be ready", is_ready).await;
    }
    merged.apply("web", |_| {}).await;
    let (to, subject, text) = read(&server.next().await);
    assert_eq!(to, "mails-merged@example.com");
    assert_eq!(subject, "The account mails-merged has 3 disabled webhooks");
    for name in ["(one)", "(two)", "(three)"] {
        assert!(text.contains(name), "{text}");
    }
    for name in ["one", "two", "three"] {
        let is_told = |webhook: &Webhook| webhook.disabled().is_some_and(|it| it.notified_at.is_some());
        merged
            .wait_for_webhook(name, "the mail to be recorded", is_told)
            .await;
    }

    // One delivery waits, one is held, and the others are dropped.
    let tenant = Tenant::on(&plane, &operator, "mails-backlog").await;
    let failing = Receiver::start(|_| Answer::status(500)).await;
    tenant.webhook("slow", &failing.url("/"), &super::ALL).await;
    tenant.apply("web-1", |_| {}).await;
    tenant.apply("web-2", |_| {}).await;
    let (to, subject, text) = read(&server.next().await);
    assert_eq!(to, "mails-backlog@example.com");
    assert!(subject.contains(" has too many deliveries: 1 held"), "{subject}");
    assert!(text.contains("(slow)"), "{text}");
    let is_told = |webhook: &Webhook| {
        let status = webhook.status.as_ref();
        let backlog = status.and_then(|status| status.backlog.as_ref());
        backlog.is_some_and(|backlog| backlog.notified_at.is_some())
    };
    let told = tenant
        .wait_for_webhook("slow", "the mail to be recorded", is_told)
        .await
        .status
        .unwrap();

    // Another process drops more, and sends fewer mails.
    operator.stop().await;
    let arguments: Vec<&str> = arguments
        .into_iter()
        .filter(|argument| !argument.starts_with("--mail-interval"))
        .chain(["--mail-interval-minutes=60", "--mails-per-day=2"])
        .collect();
    let mut operator = Operator::start(&plane, &arguments).await;
    tenant.apply("web-3", |_| {}).await;
    let more = |webhook: &Webhook| {
        let status = webhook.status.as_ref();
        status.is_some_and(|status| status.dropped > told.dropped)
    };
    let after = tenant
        .wait_for_webhook("slow", "more to be dropped", more)
        .await
        .status
        .unwrap();
    assert!(conditions::is_true(&after.conditions, BACKLOG));
    assert_eq!(after.backlog, told.backlog);

    // A second 410 within the hour is not reported, and neither is anything after the second mail of the day: another
    // account's mails, which come later, reach the server when it still has none of these.
    let enable = serde_json::json!({ "enableRequestedAt": "2026-11-21T10:00:00Z" });
    merged.change_webhook("one", enable).await;
    let is_enabled = |webhook: &Webhook| webhook.is_active();
    merged
        .wait_for_webhook("one", "it to be enabled", is_enabled)
        .await;
    merged.apply("again", |_| {}).await;
    let is_disabled = |webhook: &Webhook| webhook.disabled().is_some();
    merged
        .wait_for_webhook("one", "its second 410", is_disabled)
        .await;
    let other = Tenant::on(&plane, &operator, "mails-other").await;
    for (tenant, name, mails) in [(&merged, "four", 1), (&merged, "five", 0), (&other, "six", 1)] {
        tenant.webhook(name, &gone.url("/"), &["instance.created"]).await;
        tenant.apply(&format!("web-{name}"), |_| {}).await;
        tenant.wait_for_webhook(name, "its 410", is_disabled).await;
        for _ in 0..mails {
            let (_, subject, text) = read(&server.next().await);
            assert!(subject.contains("is disabled: "), "{subject}");
            assert!(text.contains(&format!("({name})")), "{text}");
        }
    }
    for name in ["one", "five"] {
        let webhook = merged.webhooks().get(name).await.unwrap();
        assert_eq!(webhook.disabled().unwrap().notified_at, None, "{name}");
    }
    operator.stop().await;
    assert!(server.is_idle(), "it was told once");
}
