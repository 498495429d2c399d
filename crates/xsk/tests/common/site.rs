//! An engine with one port of memory, and a server; and an application that says what it likes.
#![allow(dead_code)] // each test file uses its part

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketType,
};
use xway_engine::{Engine, EngineConfig, PortConfig};
use xway_packet::{Backing, Pages, PoolConfig};
use xway_xsk::{EngineQueues, Policy, Server};
use xway_xsk_client::wire::{ANSWER, Answer, BIND_DIRECT, BindRequest, Request, VERSION};

use crate::wire::Wire;

pub const IFINDEX: u32 = 7;

pub struct Site {
    pub engine: Arc<Engine>,
    pub wire: Wire,
    pub server: Option<Server>,
    pub path: PathBuf,
}

impl Site {
    pub fn new(label: &str, policy: Policy) -> Site {
        Site::with_pages(label, policy, Pages::Base)
    }

    /// With such pages for the queue's memory, if there are.
    pub fn with_pages(label: &str, policy: Policy, pages: Pages) -> Site {
        let engine = Arc::new(Engine::start(EngineConfig { idle_polls: 10, ..EngineConfig::default() }).unwrap());
        let wire = Wire::new(IFINDEX, 1);
        let pool = PoolConfig { backing: Backing::Memfd, pages, ..PoolConfig::new(512) };
        engine.open(wire.device(), PortConfig { pool: Some(pool), ..PortConfig::default() }).unwrap();
        let path = std::env::temp_dir().join(format!("xway-xsk-{label}-{}", std::process::id()));
        let server = Server::listen(&path, Arc::new(EngineQueues(engine.clone())), policy).unwrap();
        Site { engine, wire, server: Some(server), path }
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// What pages the queue's memory has.
    pub fn pages(&self) -> Pages {
        self.engine.queues()[0].memory.effective
    }

    /// Every frame comes home, whatever the applications did.
    pub fn end(mut self) {
        self.server = None;
        let engine = Arc::into_inner(self.engine).expect("the server has let go of the engine");
        for report in engine.stop().queues {
            assert_eq!(report.leak, None);
            assert_eq!(report.pool.outstanding, 0);
            assert_eq!(report.counters.balance(), Ok(()));
        }
    }
}

/// A connection at the level of messages.
pub struct Raw(pub OwnedFd);

impl Raw {
    /// A socket that is not connected.
    pub fn unconnected() -> Raw {
        Raw(rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap())
    }

    pub fn connect(self, path: &Path) -> Raw {
        rustix::net::connect(&self.0, &SocketAddrUnix::new(path).unwrap()).unwrap();
        self
    }

    /// A connection that the server has answered.
    pub fn open(path: &Path) -> Raw {
        let raw = Raw::unconnected().connect(path);
        let (answer, _) = raw.ask(&Request::Hello { version: VERSION }).expect("an answer");
        assert_eq!(answer.errno, None, "{}", answer.reason);
        raw
    }

    /// Sends bytes and descriptors.
    pub fn send(&self, bytes: &[u8], fds: &[&OwnedFd]) -> rustix::io::Result<usize> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    /// The next answer; `None` at the end of the connection.
    pub fn hear(&self) -> Option<(Answer, Vec<OwnedFd>)> {
        let mut bytes = [0; ANSWER];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.0, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(rights) => Some(rights),
            _ => None,
        });
        let fds = rights.flatten().collect();
        Some((Answer::decode(bytes.get(..got.bytes)?)?, fds))
    }

    pub fn ask(&self, request: &Request) -> Option<(Answer, Vec<OwnedFd>)> {
        self.send(&request.encode(), &[]).ok()?;
        self.hear()
    }

    pub fn umem(&self, chunks: u32) -> (Answer, Vec<OwnedFd>) {
        let request = Request::Umem { chunks, chunk_size: 2048, headroom: 0, tx_metadata_len: 0 };
        self.ask(&request).expect("an answer")
    }

    /// Binds the first memory to the queue, past all programs; rings of 64.
    pub fn bind(&self, flags: u16) -> (Answer, Vec<OwnedFd>) {
        let (fill, completion, rx, tx) = (64, 64, 64, 64);
        let flags = u32::from(flags) | BIND_DIRECT;
        let interface = format!("wire{IFINDEX}");
        let bind = BindRequest { interface, flags, fill, completion, rx, tx, chunks: 64, ..BindRequest::default() };
        self.ask(&Request::Bind(bind)).expect("an answer")
    }
}
