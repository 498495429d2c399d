//! Other users.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Does something in a thread that is another user's, with this group and these others; only root can. What is connected or created
/// there is that user's. Files are looked at with that user's rights.
///
/// # Panics
/// The thread cannot become that user's, or panics.
pub fn as_user<T: Send>((uid, gid): (u32, u32), groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups: Vec<Gid> = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
    // System calls change one thread alone; only the C library makes all threads of them.
    let become_user = move || {
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            become_user().expect("a thread of another user");
            work()
        });
        thread.join().expect("the thread of another user")
    })
}
