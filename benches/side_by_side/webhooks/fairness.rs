//! (f): a healthy account, without and with two others of twenty webhooks each. Their receivers answer 200 at once until sixteen attempts
//! at a time are made to them, and then after 29 s, but one in sixteen after a second.

use std::time::Duration;

use super::{
    Stage, create_secret, hook,
    hostile::{AT_A_TIME, INSTANCES, Seen, counted, watch},
    receivers::{self, Receivers},
};
use crate::{
    Result,
    account::Account,
    churn::{Churn, Pace},
    samples::{self, Samples, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

const ATTACKERS: [&str; 2] = ["attacker-1", "attacker-2"];
const WEBHOOKS: usize = 20;
/// Events per second of an attacker: each is an attempt at each of its webhooks, many more than there are slots for.
const RATE: f64 = 4.0;

fn delay(answer: u64) -> Duration {
    match answer {
        0..=15 => Duration::ZERO,
        _ if answer.is_multiple_of(16) => Duration::from_secs(1),
        _ => Duration::from_secs(29),
    }
}

/// Measures without and with the attackers.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (f) a healthy account next to two that hold as many attempts as they can");
    let receivers = Receivers::start(1, receivers::BOTH)?;
    let slow = Receivers::slow(ATTACKERS.len() * WEBHOOKS, receivers::BOTH, delay)?;
    let stage = Stage::start(&[]).await?;
    let (cluster, product) = (&stage.cluster, &stage.product);
    let churn = stage.churn("churn", INSTANCES).await?;
    stage.webhooks(&receivers, 0, 1).await?;
    let mut attackers = Vec::new();
    for (number, name) in ATTACKERS.into_iter().enumerate() {
        let namespace = Account::namespace(cluster, product, name).await?;
        create_secret(cluster, &namespace).await?;
        attackers.push(Churn::prepare(cluster, product, &namespace, "churn", INSTANCES).await?);
        for n in number * WEBHOOKS..(number + 1) * WEBHOOKS {
            stage
                .create_webhook_in(&namespace, &hook(n), &slow.url(n))
                .await?;
        }
    }
    churn.drain(cluster, AT_A_TIME, sizes).await?;
    watch(&stage, &receivers, &churn, sizes.warm_up * 3).await?;
    let (mut quiet, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        quiet.push(counted(&stage, &receivers, &churn, sizes).await?);
    }
    // What the attackers are owed stays in their way, so there is nothing to take turns with.
    let lead = sizes.hostile / 4;
    for _ in 0..sizes.rounds {
        let attack = attackers
            .iter()
            .map(|attacker| attacker.run(Pace::Rate(RATE), lead + sizes.hostile));
        let attack = futures::future::try_join_all(attack);
        let measured = async {
            tokio::time::sleep(lead).await;
            counted(&stage, &receivers, &churn, sizes).await
        };
        let (_, seen) = tokio::try_join!(attack, measured)?;
        beside.push(seen);
    }
    say(&format!(
        "  {} requests to the attackers' receivers",
        slow.count()
    ));
    stage.stop().await?;

    let mut line = |what: &str, unit: Unit, aim, of: fn(&Seen) -> f64| {
        let each = |turns: &[Seen]| -> Samples { turns.iter().map(of).collect() };
        table.compare(what, &each(&beside), &each(&quiet), unit, aim);
    };
    line(
        &format!(
            "webhooks (f) event to receipt p99 of a healthy account, with {} of {WEBHOOKS} webhooks that answer 200 after 29 s : without",
            ATTACKERS.len()
        ),
        samples::MILLIS,
        Some(Aim::AtMost(2.0)),
        |seen| seen.p99,
    );
    line("    the same, p50", samples::MILLIS, None, |seen| seen.p50);
    Ok(())
}
