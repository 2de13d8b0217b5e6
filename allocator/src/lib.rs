//! The program's memory allocator: jemalloc, set to keep little memory that is not in use.
//!
//! What a controller needs for long, the objects of the API server, comes together with much that it needs only for a moment: the
//! text of a list, the events of a burst. glibc's allocator puts both side by side, and can return only what lies in whole unused
//! pages: having brought 10,000 instances to run, a process kept half as much again as it used. jemalloc keeps objects of
//! different sizes apart.

use std::{
    cell::Cell,
    ffi::c_int,
    ptr::null_mut,
    time::{Duration, Instant},
};

use tikv_jemalloc_sys::mallctl;
pub use tikv_jemallocator::Jemalloc;

/// How often a thread empties its cache at most. Emptying and filling it again takes less than 0.1 ms.
const EMPTY_EVERY: Duration = Duration::from_millis(50);

/// jemalloc's settings (jemalloc(3), `malloc_conf`). One arena, because lists are parsed on whichever thread is free, and
/// each arena would have gaps of its own. Unused pages are returned to the system after a second, by a thread, even when
/// the program is idle. Threads keep only small objects for themselves.
#[allow(unsafe_code)]
// SAFETY: jemalloc declares the symbol as `const char *`, and reads a C string from it.
#[unsafe(export_name = "_rjem_malloc_conf")]
#[used]
pub static SETTINGS: &[u8; 87] =
    b"narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:10,background_thread:true\0";

/// Returns the small objects that this thread has freed and keeps for its next allocations, unless it has done so in the last 50 ms.
/// Call it before a thread sleeps. jemalloc empties these caches only as threads allocate, so after a burst, each idle thread would hold
/// on to some thousand objects, and with them to all the pages of the burst that they are scattered over. Now it keeps at most what it
/// has freed in those 50 ms.
pub fn before_sleep() {
    thread_local!(static EMPTIED: Cell<Option<Instant>> = const { Cell::new(None) });
    let now = Instant::now();
    if EMPTIED
        .get()
        .is_none_or(|last| now.duration_since(last) >= EMPTY_EVERY)
    {
        EMPTIED.set(Some(now));
        // If it failed, the thread would merely keep the objects.
        empty_cache();
    }
}

/// Returns 0, or an `errno`.
fn empty_cache() -> c_int {
    #[allow(unsafe_code)]
    // SAFETY: the name is a C string, and `thread.tcache.flush` neither returns a value nor takes one (jemalloc(3)).
    unsafe {
        mallctl(
            c"thread.tcache.flush".as_ptr(),
            null_mut(),
            null_mut(),
            null_mut(),
            0,
        )
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn jemalloc_empties_the_cache_of_a_thread() {
        assert_eq!(super::empty_cache(), 0);
    }
}
