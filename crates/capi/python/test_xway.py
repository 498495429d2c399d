# SPDX-License-Identifier: MIT OR Apache-2.0
"""What xway.py promises. tests/python.rs compiles the objects, serves a socket and runs this with their places in the environment."""

import errno
import mmap
import os
import socket
import struct
import unittest

import xway

OBJECTS = os.environ["XWAY_OBJECTS"]
ETHERNET = bytes(range(12)) + b"\x08\x00"


def udp(source, port, content=b"\0" * 18):
    length = 8 + len(content)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, 17, 0) + socket.inet_aton(source) + b"\x0a\0\0\1"
    return ETHERNET + ip + struct.pack("!HHHH", 1000, port, length, 0) + content


def program(name, function=None, **more):
    return xway.Filter(os.path.join(OBJECTS, name + ".o"), function, **more)


class Programs(unittest.TestCase):
    def test_rules_in_maps_decide_and_count(self):
        blacklist = program("blacklist", "blacklist")
        prefixes, ports = blacklist.maps["prefixes"], blacklist.maps["ports"]
        net = struct.pack("=I", 8) + bytes([192, 0, 0, 0])
        prefixes[net] = bytes(8)
        ports[struct.pack("!HBx", 53, 17)] = bytes(8)
        packets = [udp("192.1.2.3", 9), udp("10.0.0.2", 53), udp("10.0.0.2", 54)]
        verdicts = [result.verdict for result in blacklist.run_burst(packets)]
        self.assertEqual(verdicts, [xway.Verdict.DROP, xway.Verdict.DROP, xway.Verdict.PASS])
        self.assertEqual(blacklist.run(packets[0]).verdict.name, "DROP")
        self.assertEqual(struct.unpack("=Q", prefixes[net]), (2,))
        self.assertEqual(list(prefixes), [net])
        self.assertEqual((len(ports), ports.key_size, ports.value_size), (1, 4, 8))
        del prefixes[net]
        self.assertEqual(blacklist.run(packets[0]).verdict, xway.Verdict.PASS)
        self.assertEqual((blacklist.name, blacklist.run_burst([])), ("blacklist", []))
        self.assertTrue(blacklist.engine == "jit" or blacklist.engine.startswith("interp: "))

    def test_values_lie_in_memory(self):
        weigh = program("weigh")
        with weigh.maps[".bss"].memory() as seen, weigh.maps[".data"].memory(writable=True) as limit:
            self.assertEqual((len(seen) % mmap.PAGESIZE, struct.unpack_from("=Q", limit)), (0, (100,)))
            self.assertEqual(weigh.run(bytes(60)).verdict, xway.Verdict.PASS)
            struct.pack_into("=Q", limit, 0, 60)
            self.assertEqual(weigh.run(bytes(60)).verdict, xway.Verdict.DROP)
            self.assertEqual(struct.unpack_from("=Q", seen), (120,))
            with self.assertRaises(TypeError):
                seen[0] = 1
        with self.assertRaises(xway.Error) as told:
            program("blacklist", "blacklist").maps["ports"].memory()
        self.assertEqual(told.exception.errno, 524)
        with weigh.maps[".rodata"].memory() as constant:
            self.assertEqual(struct.unpack_from("=I", constant), (2,))
        with self.assertRaises(xway.Error) as told:
            weigh.maps[".rodata"].memory(writable=True)
        self.assertEqual(told.exception.errno, errno.EPERM)

    def test_what_is_wrong_is_told(self):
        blacklist = program("blacklist", "blacklist")
        ports = blacklist.maps["ports"]
        key, value = bytes(4), bytes(8)
        with self.assertRaises(KeyError):
            blacklist.maps["nothing"]
        with self.assertRaises(KeyError):
            ports[key]
        with self.assertRaises(KeyError):
            del ports[key]
        self.assertNotIn(key, ports)
        with self.assertRaisesRegex(ValueError, "a key has 4 bytes, not 3"):
            ports[bytes(3)] = value
        with self.assertRaisesRegex(ValueError, "a value has 8 bytes, not 4"):
            ports[key] = bytes(4)
        ports.update(key, value, 1)
        with self.assertRaises(xway.Error) as told:
            ports.update(key, value, 1)
        self.assertEqual(told.exception.errno, errno.EEXIST)
        with self.assertRaisesRegex(xway.Error, "nothing"):
            program("blacklist", "nothing")
        with self.assertRaises(xway.Error):
            xway.Filter(b"not an object")

    def test_a_refusal_has_the_verifiers_words(self):
        with self.assertRaisesRegex(xway.Error, r"unchecked.*:[0-9]+: read of 1 byte.*data_end"):
            program("unsafe")
        with self.assertRaisesRegex(xway.Error, r"unchecked.*:[0-9]+: read of 1 byte.*data_end") as told:
            xway.verify(os.path.join(os.environ["XWAY_OBJECTS"], "unsafe.o"))
        self.assertEqual(told.exception.errno, errno.EACCES)
        xway.verify(os.path.join(os.environ["XWAY_OBJECTS"], "swap.o"))

    def test_changed_packets_come_back(self):
        packet = udp("10.0.0.2", 9)
        result = program("swap").run(packet)
        self.assertEqual(result.verdict, xway.Verdict.TX)
        self.assertEqual(result.data[:12], packet[6:12] + packet[:6])
        self.assertEqual((len(result.data), result.meta, result.redirect), (len(packet), b"", None))

    def test_packets_move_and_carry_metadata(self):
        packet = bytes(range(60))
        result = program("moves").run(packet, ingress_ifindex=7, rx_queue=3)
        self.assertEqual(result.verdict, xway.Verdict.REDIRECT)
        self.assertEqual(result.redirect, xway.Redirect("ifindex", 10, 0))
        self.assertEqual(result.meta, b"mark")
        self.assertEqual(result.data, b"HEAD" + packet + bytes(8))

    def test_threads_share_maps(self):
        one = program("swap", threads=2)
        two = one.another(1)
        self.assertEqual(two.run(udp("10.0.0.2", 9)).verdict, xway.Verdict.TX)
        with self.assertRaises(xway.Error):
            one.another(2)
        ports = program("blacklist", "blacklist").maps["ports"]
        # A map keeps its program.
        self.assertEqual(len(ports), 0)


class Sockets(unittest.TestCase):
    def test_a_queue_is_echoed(self):
        done = 0
        with xway.Socket(os.environ["XWAY_SOCKET"], "sim:p", direct=True) as queue:
            while done < 2000:
                packets = queue.receive(timeout=60)
                self.assertTrue(packets, "nothing came")
                self.assertTrue(all(packet == bytes(range(100)) for packet in packets))
                done += queue.send(packet[::-1] for packet in packets)
            while queue.sending():
                pass
            counted = queue.counters()
            self.assertEqual((counted["tx_invalid_descs"], counted["refused_indices"]), (0, 0))
            self.assertGreaterEqual(queue.lost(), 0)
            with self.assertRaisesRegex(ValueError, "at most"):
                queue.send([bytes(5000)])
        with self.assertRaisesRegex(ValueError, "closed"):
            queue.receive()
        print("echoed", done)

    def test_who_is_not_there_is_told(self):
        with self.assertRaisesRegex(xway.Error, "nobody"):
            xway.Socket(os.environ["XWAY_SOCKET"], "sim:nobody")


if __name__ == "__main__":
    unittest.main()
