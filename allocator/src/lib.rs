//! Has glibc's allocator keep less memory that is not in use. Other C libraries stay as they are.

/// Has all threads allocate from one heap, whose end is given back to the system as soon as 128 KiB of it are free: that is glibc's
/// default, too, but it grows with what is allocated unless it is set. Call it before there are other threads.
///
/// By default each thread gets a heap of its own. Lists of the API server are parsed on whichever thread is free, so that objects
/// that stay come to lie among text that does not, in each of the heaps: with 10,000 instances up to a tenth of all memory was such gaps.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: mallopt has no requirements, and takes numbers alone.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

/// Gives the system back all pages in which nothing is left. Takes some milliseconds for each 100 MB, in which nobody can allocate.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: malloc_trim has no requirements.
    unsafe {
        libc::malloc_trim(0);
    }
}
