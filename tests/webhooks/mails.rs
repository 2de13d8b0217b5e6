//! What account holders are told of their webhooks by e-mail, by a real mail server.

use mail_parser::MessageParser;
use stellage::resources::{Webhook, conditions, webhook::BACKLOG};

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
async fn what_befalls_several_webhooks_is_one_mail_and_a_backlog_is_told_once_by_whichever_process() {
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

    let tenant = Tenant::on(&plane, &operator, "mails-merged").await;
    let gone = Receiver::start(|_| Answer::status(410)).await;
    for name in ["one", "two", "three"] {
        tenant.webhook(name, &gone.url("/"), &["instance.created"]).await;
    }
    tenant.apply("web", |_| {}).await;
    let (to, subject, text) = read(&server.next().await);
    assert_eq!(to, "mails-merged@example.com");
    assert_eq!(subject, "Webhooks of the account mails-merged: 3 disabled");
    for name in ["(one)", "(two)", "(three)"] {
        assert!(text.contains(name), "{text}");
    }
    for name in ["one", "two", "three"] {
        let is_told = |webhook: &Webhook| webhook.disabled().is_some_and(|it| it.notified_at.is_some());
        tenant
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
    assert!(text.contains("(slow in namespace mails-backlog)"), "{text}");
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

    // Another process drops more.
    operator.stop().await;
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
    operator.stop().await;
    assert!(server.is_idle(), "it was told once");
}
