//! Makes glibc's allocator keep less unused memory. Other C libraries are left as they are.

/// Makes all threads allocate from one heap, whose end is returned to the system as soon as 128 KiB of it are free.
/// That is also glibc's default, but unless it is set it grows with what is allocated. Call this before there are other
/// threads.
///
/// By default each thread gets its own heap. Lists of the API server are parsed on whichever thread is free, so in
/// every heap long-lived objects end up among short-lived text: with 10,000 instances, up to a tenth of all memory was
/// such gaps.
pub fn keep_little() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: mallopt has no requirements, and takes only numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 128 * 1024);
    }
}

/// Returns all pages in which nothing is left to the system. Takes some milliseconds per 100 MB, during which nobody
/// can allocate.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[allow(unsafe_code)]
    // SAFETY: malloc_trim has no requirements.
    unsafe {
        libc::malloc_trim(0);
    }
}
