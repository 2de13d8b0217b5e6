//! (e): memory and CPU time of `stellage run`. Each number of instances is measured twice: with a new process that finds them
//! running, and with one that has brought them to run, because an allocator does not return all memory.

use std::time::Instant;

use crate::{
    Result,
    processes::{processor_time, resident_mib},
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

/// Resident memory in MiB of a process after it has been idle for a while.
pub async fn settled(product: &Product, sizes: &Sizes) -> Result<f64> {
    tokio::time::sleep(sizes.settling).await;
    let resident = resident_mib(product.pid)?;
    say(&format!("resident memory: {resident:.1} MiB"));
    Ok(resident)
}

/// The share of one core that an idle process uses.
pub async fn idle(product: &Product, sizes: &Sizes) -> Result<f64> {
    say(&format!("idle for {} s", sizes.idle.as_secs()));
    let (before, begun) = (processor_time(product.pid)?, Instant::now());
    tokio::time::sleep(sizes.idle).await;
    let used = processor_time(product.pid)? - before;
    Ok(used / begun.elapsed().as_secs_f64())
}

/// The lines of (e).
pub fn report(
    table: &mut Table,
    sizes: &Sizes,
    empty: f64,
    [small_fresh, small_after]: [f64; 2],
    [large_fresh, large_after]: [f64; 2],
    idle: f64,
) {
    let Sizes { small, large, .. } = sizes;
    // The last process.
    let made = sizes.large - sizes.small - sizes.converging * (sizes.rounds.saturating_sub(1) as u64);
    let mut memory = |what: &str, resident: f64, aim| {
        table.value(what, &resident.into(), samples::MEBIBYTES, aim);
    };
    let aim = Some(Aim::AtMost(64.0));
    memory("(e) resident, 0 instances", empty, None);
    memory(&format!("    {small} instances, new process"), small_fresh, None);
    memory(
        &format!("    {small} instances, having created them"),
        small_after,
        None,
    );
    memory(&format!("    {large} instances, new process"), large_fresh, aim);
    memory(
        &format!("    {large} instances, having created {made} of them"),
        large_after,
        aim,
    );
    let seconds = sizes.idle.as_secs();
    let what = format!("    CPU while idle at {large} instances, over {seconds} s");
    table.value(&what, &(idle * 100.0).into(), Unit(" % of a core", 2), None);
}
