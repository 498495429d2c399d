//! Linux error numbers (`asm-generic/errno-base.h`, `asm-generic/errno.h`).

/// An errno value, positive. Helpers hand it to programs negated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $num:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($num);)*

            /// The symbolic name, `None` for a number that is not in the table.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 { $($num => Some(stringify!($name)),)* _ => None }
            }

            /// What the number says, in words.
            pub const fn text(self) -> &'static str {
                match self.0 { $($num => $text,)* _ => "unknown error" }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such entry";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument or table too big";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "busy";
    EEXIST = 17, "already exists";
    EXDEV = 18, "not on the same map or device";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many files open on the machine";
    EMFILE = 24, "too many files open in the process";
    ENOSPC = 28, "no space left";
    ERANGE = 34, "out of range";
    EDEADLK = 35, "deadlock";
    ENOSYS = 38, "not implemented";
    ENOTEMPTY = 39, "not empty";
    ELOOP = 40, "too many levels";
    EBADFD = 77, "descriptor in a bad state";
    ENOTSOCK = 88, "not a socket";
    EBADRQC = 56, "invalid request code";
    EMSGSIZE = 90, "message too long";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    EAFNOSUPPORT = 97, "address family not supported";
    ENETDOWN = 100, "network is down";
    ENETUNREACH = 101, "network unreachable";
    ENOBUFS = 105, "no buffer space";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTUNREACH = 113, "no route to host";
    ENOTSUPP = 524, "not supported (kernel internal)";
}

impl Errno {
    /// The value that a helper returns for this error: the negated number, sign-extended.
    pub const fn as_ret(self) -> u64 {
        -(self.0 as i64) as u64
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl std::error::Error for Errno {}
