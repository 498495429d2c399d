# SPDX-License-Identifier: MIT OR Apache-2.0
"""XDP programs over packets in Python's memory: libxway for scripts and tests.

    import xway

    program = xway.Filter("count.o")
    result = program.run(packet)
    print(result.verdict.name, result.data)
    print(program.maps["counters"][bytes(4)])

The program is verified and compiled when it is loaded; a refusal is an `xway.Error` with the verifier's words. The library is the one
that the environment variable XWAY_LIBRARY names, else the `libxway.so` that the system finds.
"""

import ctypes
import ctypes.util
import enum
import errno
import mmap
import os
from collections.abc import MutableMapping
from typing import NamedTuple, Optional

__all__ = ["Error", "Filter", "Map", "Redirect", "Result", "Socket", "Verdict", "verify"]

HEADROOM = 256
"""Bytes in front of a packet, as drivers leave them."""
TAILROOM = 320
"""Bytes behind a packet into which it may grow."""


class Error(OSError):
    """What the library refused, in its words."""


class Verdict(enum.IntEnum):
    """What a program decided; codes that do not exist are ABORTED."""

    ABORTED = 0
    DROP = 1
    PASS = 2
    TX = 3
    REDIRECT = 4


class Redirect(NamedTuple):
    """Where a redirected packet wants to go."""

    kind: str
    """ifindex, devmap, broadcast, cpumap or xskmap."""
    target: int
    """Interface, CPU or key."""
    map: int
    """Number of the map, 0 without one."""


class Result(NamedTuple):
    """A packet behind the program."""

    verdict: Verdict
    code: int
    """What the program returned."""
    data: bytes
    """The packet as the program left it."""
    meta: bytes
    """The metadata in front of it."""
    redirect: Optional[Redirect]


_KINDS = (None, "ifindex", "devmap", "broadcast", "cpumap", "xskmap")


class _Packet(ctypes.Structure):
    """struct xway_packet"""

    _fields_ = [
        ("buffer", ctypes.c_void_p),
        ("size", ctypes.c_uint32),
        ("data", ctypes.c_uint32),
        ("data_end", ctypes.c_uint32),
        ("ingress_ifindex", ctypes.c_uint32),
        ("rx_queue", ctypes.c_uint32),
        ("data_meta", ctypes.c_uint32),
        ("verdict", ctypes.c_uint32),
        ("code", ctypes.c_uint32),
        ("redirect_kind", ctypes.c_uint32),
        ("redirect_target", ctypes.c_uint32),
        ("redirect_map", ctypes.c_uint32),
    ]


class _SocketOptions(ctypes.Structure):
    """struct xway_xsk_options"""

    _fields_ = [
        ("interface", ctypes.c_char_p),
        ("queue", ctypes.c_uint32),
        ("flags", ctypes.c_uint16),
        ("direct", ctypes.c_uint16),
        ("entries", ctypes.c_uint32),
        ("chunks", ctypes.c_uint32),
        ("weight", ctypes.c_uint32),
    ]


class _SocketPacket(ctypes.Structure):
    """struct xway_xsk_packet"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("len", ctypes.c_uint32),
        ("room", ctypes.c_uint32),
        ("number", ctypes.c_uint32),
        ("requests", ctypes.c_uint32),
        ("csum_start", ctypes.c_uint16),
        ("csum_offset", ctypes.c_uint16),
    ]


class _SocketCounters(ctypes.Structure):
    """struct xway_xsk_counters"""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "rx_dropped",
            "rx_invalid_descs",
            "tx_invalid_descs",
            "rx_ring_full",
            "rx_fill_ring_empty_descs",
            "tx_ring_empty_descs",
            "refused_indices",
            "tx_unsupported",
        )
    ]


_POINTER = ctypes.c_void_p
_FUNCTIONS = {
    "xway_error": (ctypes.c_char_p,),
    "xway_verify": (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p),
    "xway_filter_load": (_POINTER, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_uint32),
    "xway_filter_another": (_POINTER, _POINTER, ctypes.c_uint32),
    "xway_filter_free": (None, _POINTER),
    "xway_filter_name": (ctypes.c_char_p, _POINTER),
    "xway_filter_engine": (ctypes.c_char_p, _POINTER),
    "xway_filter_run": (ctypes.c_int, _POINTER, ctypes.POINTER(_Packet), ctypes.c_size_t),
    "xway_filter_map": (_POINTER, _POINTER, ctypes.c_char_p),
    "xway_map_key_size": (ctypes.c_size_t, _POINTER),
    "xway_map_value_size": (ctypes.c_size_t, _POINTER),
    "xway_map_lookup": (ctypes.c_int, _POINTER, ctypes.c_char_p, _POINTER),
    "xway_map_update": (ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64),
    "xway_map_delete": (ctypes.c_int, _POINTER, ctypes.c_char_p),
    "xway_map_next_key": (ctypes.c_int, _POINTER, ctypes.c_char_p, _POINTER),
    "xway_map_memory": (ctypes.c_int, _POINTER, ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
    "xway_xsk_open": (_POINTER, ctypes.c_char_p, ctypes.POINTER(_SocketOptions)),
    "xway_xsk_close": (None, _POINTER),
    "xway_xsk_receive": (ctypes.c_int, _POINTER, ctypes.POINTER(_SocketPacket), ctypes.c_uint32),
    "xway_xsk_make": (ctypes.c_int, _POINTER, ctypes.POINTER(_SocketPacket), ctypes.c_uint32),
    "xway_xsk_send": (ctypes.c_int, _POINTER, ctypes.POINTER(_SocketPacket), ctypes.c_uint32),
    "xway_xsk_release": (ctypes.c_int, _POINTER, ctypes.POINTER(_SocketPacket), ctypes.c_uint32),
    "xway_xsk_wait": (ctypes.c_int, _POINTER, ctypes.c_int),
    "xway_xsk_lost": (ctypes.c_uint32, _POINTER),
    "xway_xsk_sending": (ctypes.c_uint32, _POINTER),
    "xway_xsk_statistics": (ctypes.c_int, _POINTER, ctypes.POINTER(_SocketCounters)),
}


def _open():
    name = os.environ.get("XWAY_LIBRARY") or ctypes.util.find_library("xway")
    if name is None:
        raise ImportError("libxway.so is not found: `make install` puts it in its place, XWAY_LIBRARY names another one")
    library = ctypes.CDLL(name)
    for function, (result, *arguments) in _FUNCTIONS.items():
        entry = getattr(library, function)
        entry.restype, entry.argtypes = result, arguments
    return library


_library = _open()


def _refused(code=errno.EINVAL):
    return Error(code, (_library.xway_error() or b"").decode())


def _checked(result):
    if result < 0:
        raise _refused(-result)
    return result


class Map(MutableMapping):
    """A map of a program: keys and values are bytes of its sizes. Values of per-CPU maps are those of all threads, each padded to 8."""

    def __init__(self, owner, handle):
        # Maps belong to their program, which stays as long as they do.
        self._owner, self._handle = owner, handle
        self.key_size = _library.xway_map_key_size(handle)
        self.value_size = _library.xway_map_value_size(handle)

    def _sized(self, words, size, what):
        words = bytes(words)
        if len(words) != size:
            raise ValueError(f"a {what} has {size} bytes, not {len(words)}")
        return words

    def _key(self, key):
        return self._sized(key, self.key_size, "key")

    def _found(self, result, key):
        if result == -errno.ENOENT:
            raise KeyError(key)
        _checked(result)

    def __getitem__(self, key):
        value = ctypes.create_string_buffer(self.value_size)
        self._found(_library.xway_map_lookup(self._handle, self._key(key), value), key)
        return value.raw

    def __setitem__(self, key, value):
        self.update(key, value)

    def update(self, key, value, flags=0):
        """Writes an entry; flags are BPF_ANY (0), BPF_NOEXIST (1) or BPF_EXIST (2)."""
        value = self._sized(value, self.value_size, "value")
        _checked(_library.xway_map_update(self._handle, self._key(key), value, flags))

    def __delitem__(self, key):
        self._found(_library.xway_map_delete(self._handle, self._key(key)), key)

    def __iter__(self):
        following, key = ctypes.create_string_buffer(self.key_size), None
        while (result := _library.xway_map_next_key(self._handle, key, following)) != -errno.ENOENT:
            _checked(result)
            key = following.raw
            yield key

    def __len__(self):
        return sum(1 for _ in self)

    def memory(self, writable=False):
        """The values themselves, as an mmap: of arrays with BPF_F_MMAPABLE, as .data, .bss and .rodata are. Value i lies at i times the
        value's size, rounded up to 8."""
        length = ctypes.c_size_t()
        descriptor = _checked(_library.xway_map_memory(self._handle, writable, length, None))
        try:
            return mmap.mmap(descriptor, length.value, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        finally:
            os.close(descriptor)


class _Maps:
    def __init__(self, owner):
        self._owner = owner

    def __getitem__(self, name):
        handle = _library.xway_filter_map(self._owner._handle, name.encode())
        if not handle:
            raise KeyError(name)
        return Map(self._owner, handle)


def _object(source):
    if not isinstance(source, (bytes, bytearray, memoryview)):
        with open(source, "rb") as file:
            source = file.read()
    return bytes(source)


def verify(source, name=None):
    """Proves a program without making its maps or code; `Filter` says what its arguments are. `Error` says why it is refused."""
    source = _object(source)
    _checked(_library.xway_verify(source, len(source), name.encode() if name else None))


class Filter:
    """A verified, compiled program with its maps. One thread uses it at a time; `another` gives one over the same maps to another."""

    def __init__(self, source, name=None, threads=1):
        """Loads the program `name` (without it: the only one) of an object file, given by path or by its bytes."""
        source = _object(source)
        handle = _library.xway_filter_load(source, len(source), name.encode() if name else None, threads)
        self._take(handle)

    def _take(self, handle):
        self._handle = handle
        if not handle:
            raise _refused()

    def another(self, thread):
        """The same program for another thread, which counts from 1 and is below `threads`."""
        other = object.__new__(Filter)
        other._take(_library.xway_filter_another(self._handle, thread))
        return other

    def __del__(self):
        if getattr(self, "_handle", None):
            _library.xway_filter_free(self._handle)
            self._handle = None

    @property
    def name(self):
        """Name of the program."""
        return _library.xway_filter_name(self._handle).decode()

    @property
    def engine(self):
        """What runs it: "jit", or "interp: " and why it is not machine code."""
        return _library.xway_filter_engine(self._handle).decode()

    @property
    def maps(self):
        """Its maps by name."""
        return _Maps(self)

    def run(self, packet, ingress_ifindex=0, rx_queue=0):
        """Runs it over one packet."""
        return self.run_burst([packet], ingress_ifindex, rx_queue)[0]

    def run_burst(self, packets, ingress_ifindex=0, rx_queue=0):
        """Runs it over packets in order, in one call of the compiled burst."""
        if not packets:
            return []
        sizes = [HEADROOM + len(packet) + TAILROOM for packet in packets]
        memory = ctypes.create_string_buffer(sum(sizes))
        base, all_of_them, at = ctypes.addressof(memory), (_Packet * len(packets))(), 0
        for one, packet, size in zip(all_of_them, packets, sizes):
            memory[at + HEADROOM : at + HEADROOM + len(packet)] = bytes(packet)
            one.buffer, one.size = base + at, size
            one.data, one.data_end, one.data_meta = HEADROOM, HEADROOM + len(packet), HEADROOM
            one.ingress_ifindex, one.rx_queue = ingress_ifindex, rx_queue
            at += size
        _checked(_library.xway_filter_run(self._handle, all_of_them, len(packets)))
        return [self._result(one) for one in all_of_them]

    @staticmethod
    def _result(one):
        kind = _KINDS[one.redirect_kind]
        return Result(
            Verdict(one.verdict),
            one.code,
            ctypes.string_at(one.buffer + one.data, one.data_end - one.data),
            ctypes.string_at(one.buffer + one.data_meta, one.data - one.data_meta),
            Redirect(kind, one.redirect_target, one.redirect_map) if kind else None,
        )


class Socket:
    """An AF_XDP-style socket on a queue, over a connection and packet memory of its own. One thread uses it at a time."""

    BATCH = 64

    def __init__(self, path, interface, queue=0, flags=0, direct=False, entries=0, chunks=0, weight=0):
        """Connects to the server at `path`; `direct` takes everything of the queue, past all programs. xway.h has the fields."""
        options = _SocketOptions(interface.encode(), queue, flags, direct, entries, chunks, weight)
        self._handle = _library.xway_xsk_open(os.fsencode(path), ctypes.byref(options))
        if not self._handle:
            raise _refused()
        self._packets = (_SocketPacket * self.BATCH)()

    def close(self):
        """Closes it; packets that were not sent yet may be lost."""
        if getattr(self, "_handle", None):
            _library.xway_xsk_close(self._handle)
            self._handle = None

    __del__ = close

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open_handle(self):
        if not self._handle:
            raise ValueError("the socket is closed")
        return self._handle

    def receive(self, timeout=0.0):
        """Copies of the packets that came, at most BATCH; waits so many seconds for the first (None: without end)."""
        handle = self._open_handle()
        count = _checked(_library.xway_xsk_receive(handle, self._packets, self.BATCH))
        if count == 0 and timeout != 0:
            _checked(_library.xway_xsk_wait(handle, -1 if timeout is None else max(1, int(timeout * 1000))))
            count = _checked(_library.xway_xsk_receive(handle, self._packets, self.BATCH))
        taken = [ctypes.string_at(one.data, one.len) for one in self._packets[:count]]
        _checked(_library.xway_xsk_release(handle, self._packets, count))
        return taken

    def send(self, packets):
        """Queues packets to be sent, and says how many of them there was room for."""
        handle, done = self._open_handle(), 0
        packets = [bytes(packet) for packet in packets]
        while done < len(packets):
            batch = packets[done : done + self.BATCH]
            free = _checked(_library.xway_xsk_make(handle, self._packets, len(batch)))
            for at, packet in enumerate(batch[:free]):
                one = self._packets[at]
                if len(packet) > one.room:
                    _checked(_library.xway_xsk_release(handle, self._packets, free))
                    raise ValueError(f"a packet has at most {one.room} bytes, not {len(packet)}")
                ctypes.memmove(one.data, packet, len(packet))
                one.len, one.requests = len(packet), 0
            sent = _checked(_library.xway_xsk_send(handle, self._packets, free))
            if sent < free:
                rest = ctypes.byref(self._packets, sent * ctypes.sizeof(_SocketPacket))
                _checked(_library.xway_xsk_release(handle, ctypes.cast(rest, ctypes.POINTER(_SocketPacket)), free - sent))
            done += sent
            if sent < len(batch):
                break
        return done

    def sending(self):
        """Packets that the server has not taken yet."""
        return _library.xway_xsk_sending(self._open_handle())

    def lost(self):
        """Packets that were lost since the last call because nobody took them in time."""
        return _library.xway_xsk_lost(self._open_handle())

    def counters(self):
        """What the server counted, by name."""
        counted = _SocketCounters()
        _checked(_library.xway_xsk_statistics(self._open_handle(), ctypes.byref(counted)))
        return {name: getattr(counted, name) for name, _ in counted._fields_}
