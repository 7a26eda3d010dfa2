"""
The floors: what the libraries below cost when nothing is done with them.

*bare pyzmq*: a ROUTER in a process of its own that answers with as many bytes as were
asked for, and a DEALER.  *bare LMDB*: the same rows in this process, with a transaction
for each question.  *rows to dicts*: what is left of a read when there is no node, no
message and no key: a stored row becomes a ``dict``, by the fastest way known to us.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, final

import lmdb
import msgspec
import zmq

from benchmarks.peers._interface import VALUE, NotOfferedError, key_of


__all__ = ["dict_reader", "lmdb_reader", "zmq_reader"]

_MAP_SIZE_BYTES: Final = 8 << 30
_WORD_SIZE_BYTES: Final = 4


@final
class _ZMQReader:
    def __init__(self, dealer: zmq.Socket[bytes]) -> None:
        self._dealer = dealer

    def load(self, key_count: int) -> None:
        """The server makes its answers up."""

    def _ask(self, count: int) -> None:
        keys = b"k" * (len(key_of(0)) * count)
        self._dealer.send_multipart([count.to_bytes(_WORD_SIZE_BYTES), keys])

    def get_each(self, first: int, count: int) -> list[float]:
        """Ask for one value, and wait."""
        values = []
        for _ in range(count):
            began = time.perf_counter_ns()
            self._ask(1)
            self._dealer.recv()
            values.append((time.perf_counter_ns() - began) / 1_000)
        return values

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Keep *limit* messages under way, one for each value."""
        began = time.perf_counter()
        for index in range(count + limit):
            if index >= limit:
                self._dealer.recv()
            if index < count:
                self._ask(1)
        return time.perf_counter() - began

    def get_many(self, first: int, count: int) -> float:
        """Ask for all values in one message."""
        began = time.perf_counter()
        self._ask(count)
        self._dealer.recv()
        return time.perf_counter() - began


@contextmanager
def zmq_reader() -> Iterator[_ZMQReader]:
    """Start the server, and connect to it."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peers.floors"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{port}")
            yield _ZMQReader(dealer)
        server.stdin.close()


def _serve() -> None:
    """Answer until standard input ends."""

    def end() -> None:
        sys.stdin.buffer.read()
        # The main thread blocks in ZeroMQ; there is nothing to save.
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    value = VALUE.encode()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        print(router.bind_to_random_port("tcp://127.0.0.1"), flush=True)
        while True:
            sender, count, _ = router.recv_multipart()
            router.send_multipart([sender, value * int.from_bytes(count)])


@final
class _LMDBReader:
    def __init__(self, environment: lmdb.Environment) -> None:
        self._environment = environment
        self._key_count = 0

    def load(self, key_count: int) -> None:
        """Put the rows in one transaction."""
        value = VALUE.encode()
        with self._environment.begin(write=True) as transaction:
            for number in range(self._key_count, key_count):
                transaction.put(key_of(number).encode(), value)
        self._key_count = key_count

    def _keys(self, first: int, count: int) -> list[bytes]:
        numbers = range(first, first + count)
        return [key_of(number % self._key_count).encode() for number in numbers]

    def get_each(self, first: int, count: int) -> list[float]:
        """Begin a transaction for each."""
        values = []
        for key in self._keys(first, count):
            began = time.perf_counter_ns()
            with self._environment.begin() as transaction:
                value = transaction.get(key)
            values.append((time.perf_counter_ns() - began) / 1_000)
            assert value
        return values

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """A library has nothing under way."""
        raise NotOfferedError("a call in this process: nothing is under way")

    def get_many(self, first: int, count: int) -> float:
        """Use one transaction."""
        keys = self._keys(first, count)
        began = time.perf_counter()
        with self._environment.begin() as transaction:
            values = [transaction.get(key) for key in keys]
        seconds = time.perf_counter() - began
        assert None not in values
        return seconds


@contextmanager
def lmdb_reader() -> Iterator[_LMDBReader]:
    """Open an environment in a directory of its own."""
    with (
        tempfile.TemporaryDirectory() as directory,
        lmdb.open(directory, map_size=_MAP_SIZE_BYTES) as environment,
    ):
        yield _LMDBReader(environment)


class _Row(msgspec.Struct, array_like=True, gc=False):
    value: str


@final
class _DictReader:
    def load(self, key_count: int) -> None:
        """Encode a row as a node stores it."""
        self._row = msgspec.msgpack.encode(_Row(VALUE))

    def get_each(self, first: int, count: int) -> list[float]:
        """Decode a row, again and again."""
        decode = msgspec.msgpack.Decoder(_Row).decode
        values = []
        for _ in range(count):
            began = time.perf_counter_ns()
            msgspec.structs.asdict(decode(self._row))
            values.append((time.perf_counter_ns() - began) / 1_000)
        return values

    def outstanding(self, first: int, count: int, limit: int) -> float:
        """Nothing is asked of anybody."""
        raise NotOfferedError("a call in this process: nothing is under way")

    def get_many(self, first: int, count: int) -> float:
        """Decode as many rows, and put them under their keys."""
        keys = [key_of(number) for number in range(first, first + count)]
        rows = [self._row] * count
        decode, asdict = msgspec.msgpack.Decoder(_Row).decode, msgspec.structs.asdict
        began = time.perf_counter()
        found = dict(zip(keys, [asdict(decode(row)) for row in rows], strict=True))
        seconds = time.perf_counter() - began
        assert len(found) == count
        return seconds


@contextmanager
def dict_reader() -> Iterator[_DictReader]:
    """There is nothing to start."""
    yield _DictReader()


if __name__ == "__main__":
    _serve()
