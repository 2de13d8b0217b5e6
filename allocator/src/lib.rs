//! The program's memory allocator: jemalloc, set to keep little memory that is not in use.
//!
//! What a controller needs for long, the objects of the API server, comes together with much that it needs only for a moment: the
//! text of a list, the events of a burst. glibc's allocator puts both side by side, and can return only what lies in whole unused
//! pages: having brought 10,000 instances to run, a process kept half as much again as it used. jemalloc keeps objects of
//! different sizes apart.

pub use tikv_jemallocator::Jemalloc;

/// jemalloc's settings (jemalloc(3), `malloc_conf`). One arena, because lists are parsed on whichever thread is free, and
/// each arena would have gaps of its own. Unused pages are returned to the system after a second, by a thread, even when
/// the program is idle. Threads keep only small objects for themselves.
#[allow(unsafe_code)]
// SAFETY: jemalloc declares the symbol as `const char *`, and reads a C string from it.
#[unsafe(export_name = "_rjem_malloc_conf")]
#[used]
pub static SETTINGS: &[u8; 87] =
    b"narenas:1,dirty_decay_ms:1000,muzzy_decay_ms:0,lg_tcache_max:10,background_thread:true\0";
