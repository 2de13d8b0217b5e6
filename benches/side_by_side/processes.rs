//! Memory and CPU time of processes, from /proc.

use crate::Result;

/// USER_HZ, the unit of the times in /proc/PID/stat: 100 on all supported architectures.
const TICKS_A_SECOND: f64 = 100.0;

/// Resident memory in MiB (VmRSS).
pub fn resident_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmRSS:")
}

/// Most resident memory so far, in MiB (VmHWM).
pub fn peak_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "VmHWM:")
}

/// The part of the resident memory that the process has allocated, in MiB (RssAnon).
pub fn allocated_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "RssAnon:")
}

/// The part of the resident memory that is pages of files, mostly of the program itself, in MiB (RssFile).
pub fn of_files_mib(pid: u32) -> Result<f64> {
    status_mib(pid, "RssFile:")
}

fn status_mib(pid: u32, field: &str) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_suffix("kB"))
        .ok_or_else(|| format!("no {field}"))?
        .trim()
        .parse()?;
    Ok(kib / 1024.0)
}

/// Seconds of CPU time since the start, user and system together.
pub fn processor_time(pid: u32) -> Result<f64> {
    times(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

fn times(stat: &str) -> Result<f64> {
    // The second field is the name in parentheses, which may contain any character.
    let (_, fields) = stat.rsplit_once(')').ok_or("no name")?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut ticks = || -> Result<f64> { Ok(fields.next().ok_or("no times")?.parse()?) };
    Ok((ticks()? + ticks()?) / TICKS_A_SECOND)
}

/// Total CPU time of several processes.
pub fn processor_time_of(pids: &[u32]) -> Result<f64> {
    pids.iter().map(|pid| processor_time(*pid)).sum()
}

/// Seconds of CPU time of everything on the machine since its start.
pub fn processor_time_of_machine() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let all_cores = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let times = all_cores.ok_or("no cpu")?.split_ascii_whitespace();
    let mut ticks = 0.0;
    for (position, time) in times.enumerate() {
        // user, nice, system, irq and softirq; the others are idle, taken by other machines, or already part of user.
        if matches!(position, 0..=2 | 5 | 6) {
            ticks += time.parse::<f64>()?;
        }
    }
    Ok(ticks / TICKS_A_SECOND)
}

/// Seconds of CPU time of one thread of this process.
pub fn processor_time_of_thread(thread: u32) -> Result<f64> {
    times(&std::fs::read_to_string(format!(
        "/proc/self/task/{thread}/stat"
    ))?)
}

/// The id of the calling thread.
pub fn this_thread() -> Result<u32> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat")?;
    Ok(stat.split(' ').next().ok_or("no id")?.parse()?)
}

/// The machine's load averages. They are shown with the results, because a busy machine makes those worse.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}
