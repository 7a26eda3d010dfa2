"""
Those who ask in the soak, each a process: one that behaves, and greedy ones.

``python -m tests.drills.soak_peers SETTINGS`` takes `PeerSettings` as JSON and goes on
until its standard input ends.  Who behaves writes each answer as a line of JSON.  A
greedy one writes one line at the end: how often it was answered, and refused with what.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, frozen
from msgspec.structs import replace

from haservices import HAConfig
from nameservice import NameServiceError, SystemClock, configure_logging
from queryablestate import AsyncQueryableStateClient, QueryableStateClient
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.writer.rows import StateRows
from queryablestate.writer.stager import Stager
from tests.drills.state_writing import (
    LOG,
    LOG_KEYS,
    ROWS,
    DrillQuery,
    keys_by_group,
)
from tests.lodestar.publishing import Publisher


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["BULK", "BULK_KEY_COUNT", "GREEDY", "LARGE", "READER", "PeerSettings"]

READER: Final = "reader"
BULK: Final = "bulk"
BULK_KEY_COUNT: Final = 100_000
LARGE: Final = "large"
LARGE_KEYS: Final = tuple(range(4))
LARGE_SIZE_BYTES: Final = 10_000_000

_MANY: Final = 10_000
_THREAD_COUNT: Final = 2
_PARKED_COUNT: Final = 500
_PARKED_SECONDS: Final = 20.0
_REWRITE_SECONDS: Final = 10.0
_FORGED_SIZE_BYTES: Final = 100_000
_FEW: Final = 10

_clock: Final = SystemClock()


@frozen(kw_only=True)
class PeerSettings:
    """
    Who asks, and what.

    Attributes:
        services: The settings of its `HAConfig`.
        token: What it shows the proxy.
        kind: `READER`, or one of `GREEDY`.
        job_id: What is asked, or written without a right.
        deadline_seconds: Of each question.
        pause_seconds: Between two questions of who behaves.
        is_direct: Whether nodes are asked without the proxy.
    """

    services: dict[str, Any]
    token: str
    kind: str
    job_id: str = BULK
    deadline_seconds: float = 10.0
    pause_seconds: float = 0.02
    is_direct: bool = True

    @property
    def name(self) -> str:
        """Return who it is among those who behave."""
        return f"{self.job_id} {'direct' if self.is_direct else 'by proxy'}"


def bulk_schema() -> StateSchema:
    """Return what counts and scans are of."""
    return StateSchema(
        kind=StateKind.VALUE,
        key=(Field("key", AtomicType.BIGINT),),
        value=(Field("number", AtomicType.BIGINT),),
    )


def large_schema() -> StateSchema:
    """Return what large values are of."""
    return StateSchema(
        kind=StateKind.VALUE,
        key=(Field("key", AtomicType.BIGINT),),
        value=(Field("text", AtomicType.STRING),),
    )


def _say(line: Mapping[str, object]) -> None:
    os.write(1, (json.dumps(line) + "\n").encode())


# -- who behaves ---------------------------------------------------------------------


def read(settings: PeerSettings, is_over: threading.Event) -> None:
    """Ask for rows of one key group, or for a list, and tell what came of it."""
    drawn = random.Random(settings.name)
    groups = sorted(keys_by_group().items())
    log_groups = {key: group for group, keys in groups for key in keys}
    with _client(settings) as client:
        while not is_over.wait(drawn.uniform(0, 2 * settings.pause_seconds)):
            group, keys = drawn.choice(groups)
            manner = drawn.choice(("lookup", "get_many", "get_list"))
            log_key = drawn.choice(LOG_KEYS)
            if manner == "get_list":
                group = log_groups[log_key]
            asked_ns = _clock.now_ns()
            batch_ids: set[int] = set()
            error = detail = ""
            try:
                match manner:
                    case "lookup":
                        key = drawn.choice(keys)
                        entry = client.lookup(settings.job_id, ROWS, key)
                        assert entry.value is not None
                        batch_ids = {entry.value["batch"]}
                        if entry.batch_id not in batch_ids:
                            detail = f"{entry.value} as of {entry.batch_id}"
                    case "get_many":
                        few = keys[:_FEW]
                        rows = client.get_many(settings.job_id, ROWS, few)
                        batch_ids = {row["batch"] for row in rows.values()}
                        if len(rows) < len(few):
                            detail = f"{len(rows)} of {len(few)} rows"
                    case _:
                        items = client.get_list(settings.job_id, LOG, log_key, start=-3)
                        found = [item["batch"] for item in items]
                        batch_ids = {found[-1]} if found else set()
                        last = found[-1] if found else 0
                        if found != list(range(last - len(found) + 1, last + 1)):
                            detail = f"a list that ends in {found}"
            except NameServiceError as failure:
                error, detail = type(failure).__name__, str(failure)
            answered_us = time.time_ns() // 1_000
            _say(
                {
                    "client": settings.name,
                    "state_name": LOG if manner == "get_list" else ROWS,
                    "node_id": group,
                    "question": manner,
                    "asked_ns": asked_ns,
                    "answered_ns": _clock.now_ns(),
                    "answered_us": answered_us,
                    "batch_ids": sorted(batch_ids),
                    "error": error,
                    "detail": detail,
                }
            )


# -- greedy ones ---------------------------------------------------------------------


def _client(settings: PeerSettings) -> QueryableStateClient:
    return QueryableStateClient(
        HAConfig(**settings.services),
        settings.token,
        deadline_seconds=settings.deadline_seconds,
        direct=settings.is_direct,
    )


def _in_threads(
    settings: PeerSettings,
    is_over: threading.Event,
    ask: Callable[[QueryableStateClient], object],
) -> None:
    """Ask the same again and again in some threads of one client."""
    tally: Counter[str] = Counter()

    def ask_on(client: QueryableStateClient) -> None:
        while not is_over.is_set():
            try:
                ask(client)
                tally["answered"] += 1
            except NameServiceError as error:
                tally[type(error).__name__] += 1
                is_over.wait(0.01)

    with _client(settings) as client:
        threads = [
            threading.Thread(target=ask_on, args=(client,))
            for _ in range(_THREAD_COUNT)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _say(tally)


def ask_many(settings: PeerSettings, is_over: threading.Event) -> None:
    """Ask for ten thousand keys at once."""
    keys = list(range(0, BULK_KEY_COUNT, BULK_KEY_COUNT // _MANY))
    _in_threads(settings, is_over, lambda client: client.get_many(BULK, BULK, keys))


def count(settings: PeerSettings, is_over: threading.Event) -> None:
    """Count all rows."""
    _in_threads(settings, is_over, lambda client: client.count(BULK, BULK))


def scan(settings: PeerSettings, is_over: threading.Event) -> None:
    """Read all rows, or as many as there is time for at the end."""

    def read_all(client: QueryableStateClient) -> None:
        for _ in client.scan(BULK, BULK):
            if is_over.is_set():
                return

    _in_threads(settings, is_over, read_all)


def park(settings: PeerSettings, is_over: threading.Event) -> None:
    """Have hundreds of questions wait for a batch that never comes."""
    tally: Counter[str] = Counter()

    async def wait(client: AsyncQueryableStateClient) -> None:
        while not is_over.is_set():
            try:
                await client.get(
                    BULK,
                    BULK,
                    1,
                    min_batch_id=1_000_000,
                    deadline_seconds=_PARKED_SECONDS,
                )
                tally["answered"] += 1
            except NameServiceError as error:
                tally[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    async def wait_all() -> None:
        async with AsyncQueryableStateClient(
            HAConfig(**settings.services), settings.token
        ) as client:
            waiting = [
                asyncio.ensure_future(wait(client)) for _ in range(_PARKED_COUNT)
            ]
            await asyncio.get_running_loop().run_in_executor(None, is_over.wait)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(wait_all())
    _say(tally)


def be_large(settings: PeerSettings, is_over: threading.Event) -> None:
    """Write values of ten megabytes every now and then, and ask for all of them."""
    tally: Counter[str] = Counter()
    publisher = Publisher(
        HAConfig(**settings.services),
        LARGE,
        {LARGE: large_schema()},
        token=settings.token,
    )
    due = 0.0
    with _client(settings) as client:
        while not is_over.is_set():
            try:
                if time.monotonic() >= due:
                    text = uuid.uuid4().hex * (LARGE_SIZE_BYTES // 32)
                    publisher.write({LARGE: [(key, text) for key in LARGE_KEYS]})
                    tally["written"] += 1
                    due = time.monotonic() + _REWRITE_SECONDS
                found = client.get_many(LARGE, LARGE, LARGE_KEYS)
                texts = {row["text"] for row in found.values()}
                tally["answered" if len(found) == len(LARGE_KEYS) else "missing"] += 1
                tally["torn"] += any(len(text) % 32 for text in texts)
            except NameServiceError as error:
                tally[type(error).__name__] += 1
                is_over.wait(0.1)
    _say(tally)


def write_unasked(settings: PeerSettings, is_over: threading.Event) -> None:
    """Bring rows of a job that one may not write, by the ticket of one that one may."""
    tally: Counter[str] = Counter()
    config = HAConfig(**settings.services)
    with DrillQuery(
        config,
        query_id=str(uuid.uuid4()),
        job_id="unasked",
        token=settings.token,
    ) as own:
        while not is_over.wait(0.002):
            try:
                run = own.begin()
                origin = replace(run.origin, job_id=settings.job_id)
                with Stager(evolve(run, origin=origin), 1) as stager:
                    values: list[bytes | None] = [bytes(_FORGED_SIZE_BYTES)]
                    rows = StateRows(keys=[b"\0\0forged"], values=values)
                    stager.add(origin.state_numbers[0], rows, is_list=False)
                    stager.finish()
                tally["taken"] += 1
            except NameServiceError as error:
                tally[type(error).__name__] += 1
            try:
                with DrillQuery(
                    config,
                    query_id=str(uuid.uuid4()),
                    job_id=settings.job_id,
                    token=settings.token,
                    commit_timeout_seconds=settings.deadline_seconds,
                ) as theirs:
                    theirs.write(0)
                tally["taken"] += 1
            except NameServiceError as error:
                tally[type(error).__name__] += 1
    _say(tally)


GREEDY: Final[Mapping[str, Callable[[PeerSettings, threading.Event], None]]] = {
    "asks for 10,000 keys at once": ask_many,
    "counts": count,
    "scans": scan,
    "waits for batches to come": park,
    "writes and reads 10 MB values": be_large,
    "writes without rights": write_unasked,
}


def main(arguments: list[str]) -> None:
    """Be such a process."""
    configure_logging("error")
    settings = PeerSettings(**json.loads(arguments[0]))
    is_over = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=wait_for_end, name="end", daemon=True).start()
    be = read if settings.kind == READER else GREEDY[settings.kind]
    be(settings, is_over)


if __name__ == "__main__":
    main(sys.argv[1:])
