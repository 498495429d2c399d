//! libpcap's compiler of filter expressions, loaded when the first expression comes.
//!
//! The library is not linked: whoever writes no expression needs none, and where it is missing the message says what to install.
//! Four of its functions are used, whose signatures have not changed since 1998 (pcap(3PCAP)).
#![allow(unsafe_code)] // Calls of a C library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::classic::{CheckError, Classic};
use crate::tcpdump::{self, Failed};

/// Why an expression gives no filter.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FilterError {
    /// libpcap is not installed.
    #[error("filter expressions need libpcap, or tcpdump, which has it: {cause}")]
    Missing {
        /// What the loader said, and what came of asking tcpdump.
        cause: String,
    },
    /// libpcap does not understand the expression.
    #[error("filter `{expression}`: {cause}")]
    Expression {
        /// The expression.
        expression: String,
        /// What libpcap says.
        cause: String,
    },
    /// It means something that is not in the packet.
    #[error("filter `{expression}`: {cause}")]
    Untranslated {
        /// The expression.
        expression: String,
        /// What is wrong with its program.
        cause: CheckError,
    },
}

impl FilterError {
    /// What to do about it.
    pub const fn hint(&self) -> &'static str {
        match self {
            FilterError::Missing { .. } => {
                "install it: apt install libpcap0.8 (Debian, Ubuntu), dnf install libpcap (Fedora), apk add libpcap (Alpine); a static \
                 xway needs tcpdump"
            }
            FilterError::Expression { .. } => "the language is that of tcpdump: man pcap-filter",
            FilterError::Untranslated { .. } => {
                "filter on what the packet's bytes say; --at, --verdict and --queue say the rest"
            }
        }
    }
}

/// Names of the library: as it is called upstream, and on Debian.
const NAMES: [&CStr; 3] = [c"libpcap.so.1", c"libpcap.so.0.8", c"libpcap.so"];
/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// What a matching filter returns: more than any packet has.
const SNAPLEN: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN`.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    len: u32,
    insns: *mut Raw,
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Raw {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, u32) -> c_int;
type GetErr = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut Program);
type Close = unsafe extern "C" fn(*mut c_void);

struct Library {
    open_dead: OpenDead,
    compile: Compile,
    get_err: GetErr,
    free_code: FreeCode,
    close: Close,
}

/// One at a time: older releases keep the parser's state in global variables.
fn library() -> Result<&'static Mutex<Library>, String> {
    static LOADED: OnceLock<Result<Mutex<Library>, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| Library::load(&NAMES).map(Mutex::new));
    loaded.as_ref().map_err(Clone::clone)
}

impl Library {
    fn load(names: &[&CStr]) -> Result<Library, String> {
        let mut why = String::new();
        for name in names {
            // SAFETY: the name ends in a zero. The library is the system's own, found where the system keeps libraries; it is
            // never unloaded, so the addresses below stay good.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if handle.is_null() {
                // SAFETY: behind a failed dlopen it returns null or a string that lives until the next call on this thread.
                let said = unsafe { libc::dlerror() };
                if why.is_empty() && !said.is_null() {
                    // SAFETY: not null, and a C string as dlerror(3) says.
                    why = unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned();
                }
                continue;
            }
            let symbol = |name: &CStr| {
                // SAFETY: the handle is an open library's, the name ends in a zero.
                let at = unsafe { libc::dlsym(handle, name.as_ptr()) };
                if at.is_null() { Err(format!("the library has no {}", name.to_string_lossy())) } else { Ok(at) }
            };
            let (open_dead, compile) = (symbol(c"pcap_open_dead")?, symbol(c"pcap_compile")?);
            let (get_err, free_code, close) =
                (symbol(c"pcap_geterr")?, symbol(c"pcap_freecode")?, symbol(c"pcap_close")?);
            // SAFETY: these names have these signatures in every release of libpcap (pcap(3PCAP)).
            return Ok(unsafe {
                Library {
                    open_dead: std::mem::transmute::<*mut c_void, OpenDead>(open_dead),
                    compile: std::mem::transmute::<*mut c_void, Compile>(compile),
                    get_err: std::mem::transmute::<*mut c_void, GetErr>(get_err),
                    free_code: std::mem::transmute::<*mut c_void, FreeCode>(free_code),
                    close: std::mem::transmute::<*mut c_void, Close>(close),
                }
            });
        }
        Err(why)
    }

    fn compile(&self, text: &CStr) -> Result<Vec<Classic>, String> {
        // SAFETY: takes two numbers; gives a handle of our own, or null when there is no memory.
        let pcap = unsafe { (self.open_dead)(ETHERNET, SNAPLEN) };
        if pcap.is_null() {
            return Err("no memory".into());
        }
        let mut program = Program { len: 0, insns: std::ptr::null_mut() };
        // SAFETY: the handle is open, the program and the text live during the call, the text ends in a zero.
        let done = unsafe { (self.compile)(pcap, &raw mut program, text.as_ptr(), 1, NETMASK_UNKNOWN) };
        let answer = if done == 0 && !program.insns.is_null() {
            // SAFETY: behind success the program has `len` instructions, which live until they are freed below.
            let insns = unsafe { std::slice::from_raw_parts(program.insns, program.len as usize) };
            Ok(insns.iter().map(|i| Classic { code: i.code, jt: i.jt, jf: i.jf, k: i.k }).collect())
        } else {
            // SAFETY: the handle is open; the message is its own and is copied before it is closed.
            let said = unsafe { CStr::from_ptr((self.get_err)(pcap)) };
            Err(said.to_string_lossy().into_owned())
        };
        // SAFETY: the program is the one that was compiled, or empty; the handle is open, and is used no more.
        unsafe {
            (self.free_code)(&raw mut program);
            (self.close)(pcap);
        }
        answer
    }
}

/// Compiles an expression for Ethernet, as `tcpdump -d` shows it. An empty one matches every packet.
///
/// Names of hosts are looked up as libpcap does it, which may ask the network.
///
/// Where the library cannot be loaded, as in a statically linked binary, the command `tcpdump` is asked, which has it.
///
/// # Errors
/// libpcap is missing; what it says to the expression.
pub fn compile(expression: &str) -> Result<Vec<Classic>, FilterError> {
    let refused = |cause: String| FilterError::Expression { expression: expression.to_owned(), cause };
    let text = CString::new(expression).map_err(|_| refused("it holds a zero byte".into()))?;
    match library() {
        Ok(library) => library.lock().unwrap_or_else(PoisonError::into_inner).compile(&text).map_err(refused),
        Err(cause) => tcpdump::compile("tcpdump", expression, SNAPLEN as u32).map_err(|failed| match failed {
            Failed::Missing(also) => FilterError::Missing { cause: format!("{cause}; {also}") },
            Failed::Refused(cause) => refused(cause),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let Err(why) = Library::load(&[c"libno-such-library.so.1"]) else { panic!("it is there") };
        assert!(why.contains("libno-such-library.so.1"), "{why}");
        let missing = FilterError::Missing { cause: why };
        assert!(missing.to_string().contains("need libpcap"), "{missing}");
        assert!(missing.hint().contains("apt install libpcap0.8"));
        let Err(why) = Library::load(&[c"libc.so.6"]) else { panic!("libc has no filters") };
        assert!(why.contains("pcap_open_dead"), "{why}");
    }

    #[test]
    fn the_command_compiles_what_the_library_does() {
        let ready = xway_testkit::Needs::of("filter::libpcap::the_command_compiles").command("tcpdump");
        if !ready.that(library().is_ok(), "libpcap").met() {
            return;
        }
        let library = library().unwrap().lock().unwrap_or_else(PoisonError::into_inner);
        for text in
            ["", "tcp port 80 and net 10.0.0.0/8", "vlan and ip6", "tcp[13] & 2 != 0", "less 100 or arp", "not ip"]
        {
            let (ours, asked) = (CString::new(text).unwrap(), tcpdump::compile("tcpdump", text, SNAPLEN as u32));
            assert_eq!(asked, Ok(library.compile(&ours).unwrap()), "{text}");
        }
        for wrong in ["tcp prot 80", "-w /tmp/no-file-of-that-name"] {
            let Err(Failed::Refused(why)) = tcpdump::compile("tcpdump", wrong, 96) else {
                panic!("{wrong} is compiled")
            };
            assert!(why.contains("syntax error"), "{why}");
        }
    }

    #[test]
    fn a_zero_byte_is_no_expression() {
        assert!(matches!(compile("tcp\0udp"), Err(FilterError::Expression { .. })));
    }
}
