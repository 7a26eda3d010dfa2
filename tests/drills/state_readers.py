"""
Readers that ask as long as a drill goes on, and write down each answer with its times.

Some have a thread and a client each, some threads share a client, and some are
coroutines of one asyncio client.  All ask the same questions, drawn at random: many
rows of one node, all rows, one row with its batch, a list, its end, how many there are.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self, final

from attrs import evolve, frozen

from nameservice import NameServiceError
from queryablestate import AsyncQueryableStateClient, QueryableStateClient
from tests.drills.processes import WAIT_SECONDS, now_ns
from tests.drills.state_answers import Answer
from tests.drills.state_writing import JOB, KEYS, LOG, LOG_KEYS, ROWS


if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from haservices import HAConfig


__all__ = ["Readers", "check_contents"]

_MANY: Final = 40
_TAIL: Final = 3


@frozen(kw_only=True)
class _Question:
    """
    One question.

    Attributes:
        name: For a person.
        state_name: About which state.
        node_id: The node that it is for; None for all.
        arguments: Of the client's method called *method*, after job and state.
        method: How it is asked.
        options: Its keyword arguments.
    """

    name: str
    state_name: str
    node_id: str | None
    method: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


@final
class _Found:
    """What an answer shows: batches by node, or what is wrong with it."""

    def __init__(self) -> None:
        self.batches: dict[str | None, set[int]] = {}
        self.unavailable: dict[str, NameServiceError] = {}
        self.problem = ""


@final
class Readers:
    """
    Reads until the end of the block.  A context manager.

    Args:
        config: The name service.
        keys_by_node: The keys of each node.
        seed: Of what they draw.
        thread_count: Threads with a client of their own.
        sharing_count: Threads that share one.
        coroutine_count: Coroutines that share one.
        waiting_count: Coroutines that share one and ask for batches that are yet to
            come: as many questions are outstanding at almost any moment.
        deadline_seconds: Of each question.
        pause_seconds: Between two questions of one of them, on average.
        log_restarts_every: Batches whose number this divides empty the lists first; 0
            if none does.
    """

    def __init__(
        self,
        config: HAConfig,
        keys_by_node: Mapping[str, Sequence[str]],
        *,
        seed: int,
        thread_count: int = 2,
        sharing_count: int = 2,
        coroutine_count: int = 4,
        waiting_count: int = 0,
        deadline_seconds: float = 15.0,
        pause_seconds: float = 0.02,
        log_restarts_every: int = 0,
    ) -> None:
        self._config = config
        self._log_restarts_every = log_restarts_every
        self._keys_by_node = {
            node_id: tuple(keys) for node_id, keys in keys_by_node.items()
        }
        self._node_of = {
            key: node_id for node_id, keys in keys_by_node.items() for key in keys
        }
        self._deadline_seconds = deadline_seconds
        self._pause_seconds = pause_seconds
        self._is_over = threading.Event()
        self._changed = threading.Condition()
        self._answers: list[Answer] = []
        self._failures: list[BaseException] = []
        self._batch_id_seen = 0
        self._outstanding: Counter[str] = Counter()
        drawn = random.Random(seed)
        self._threads = [
            threading.Thread(
                target=self._guarded,
                args=(self._read_alone, f"thread-{number}", drawn.random()),
            )
            for number in range(thread_count)
        ]
        if sharing_count:
            self._threads.append(
                threading.Thread(
                    target=self._guarded,
                    args=(self._read_sharing, sharing_count, drawn.random()),
                )
            )
        if coroutine_count:
            self._threads.append(
                threading.Thread(
                    target=self._guarded,
                    args=(
                        self._read_async,
                        "async",
                        self._draw,
                        coroutine_count,
                        drawn.random(),
                    ),
                )
            )
        if waiting_count:
            self._threads.append(
                threading.Thread(
                    target=self._guarded,
                    args=(
                        self._read_async,
                        "waiting",
                        self._draw_next,
                        waiting_count,
                        drawn.random(),
                    ),
                )
            )

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), f"{thread.name} waits for ever"
        if exc_type is None:
            assert self._failures == []

    @property
    def answers(self) -> list[Answer]:
        """Return all answers so far, in the order in which they came."""
        with self._changed:
            return list(self._answers)

    def wait_for(
        self, holds: Callable[[Answer], bool], *, since_ns: int, count: int = 1
    ) -> Answer:
        """Return the *count*-th answer to what was asked since then that is so."""
        deadline = time.monotonic() + WAIT_SECONDS
        seen, start = 0, 0
        with self._changed:
            while True:
                for answer in self._answers[start:]:
                    if answer.asked_ns >= since_ns and holds(answer):
                        seen += 1
                        if seen == count:
                            return answer
                start = len(self._answers)
                left_seconds = deadline - time.monotonic()
                assert left_seconds > 0, f"no such answer; last: {self._answers[-5:]}"
                assert self._failures == []
                self._changed.wait(left_seconds)

    def wait_until_outstanding(self, client: str, count: int) -> None:
        """Return once that many questions of a client wait for their answers."""
        with self._changed:
            is_so = self._changed.wait_for(
                lambda: self._outstanding[client] >= count or bool(self._failures),
                WAIT_SECONDS,
            )
            assert is_so, self._outstanding
            assert self._failures == []

    def wait_for_rows(self, node_id: str, *, since_ns: int) -> Answer:
        """Return the first answer of a node to what was asked since then."""
        return self.wait_for(
            lambda answer: answer.node_id == node_id and answer.is_answer,
            since_ns=since_ns,
        )

    # -- who asks --------------------------------------------------------------------

    def _guarded(self, read: Callable[..., None], *arguments: Any) -> None:
        try:
            read(*arguments)
        except BaseException as error:  # noqa: BLE001 (told where the drill ends)
            with self._changed:
                self._failures.append(error)
                self._changed.notify_all()

    def _read_alone(self, name: str, seed: float) -> None:
        with self._client() as client:
            self._ask_on(client, name, random.Random(seed))

    def _read_sharing(self, count: int, seed: float) -> None:
        drawn = random.Random(seed)
        with self._client() as client:
            threads = [
                threading.Thread(
                    target=self._guarded,
                    args=(
                        self._ask_on,
                        client,
                        "shared",
                        random.Random(drawn.random()),
                    ),
                )
                for _ in range(count)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _client(self) -> QueryableStateClient:
        return QueryableStateClient(
            self._config, deadline_seconds=self._deadline_seconds
        )

    def _ask_on(
        self, client: QueryableStateClient, name: str, drawn: random.Random
    ) -> None:
        while not self._is_over.wait(drawn.uniform(0, 2 * self._pause_seconds)):
            question = self._draw(drawn)
            asked_ns = self._asked(name)
            try:
                value = getattr(client, question.method)(
                    JOB,
                    question.state_name,
                    *question.arguments,
                    **dict(question.options),
                )
                if question.method == "scan":
                    value = list(value)
            except NameServiceError as error:
                self._note(name, question, asked_ns, error=error)
            else:
                self._note(name, question, asked_ns, value=value)

    def _read_async(
        self,
        name: str,
        draw: Callable[[random.Random], _Question],
        count: int,
        seed: float,
    ) -> None:
        drawn = random.Random(seed)

        async def ask_on(
            client: AsyncQueryableStateClient, drawn: random.Random
        ) -> None:
            while not self._is_over.is_set():
                question = draw(drawn)
                asked_ns = self._asked(name)
                try:
                    value = await self._ask_async(client, question)
                except NameServiceError as error:
                    self._note(name, question, asked_ns, error=error)
                else:
                    self._note(name, question, asked_ns, value=value)
                if draw == self._draw:
                    await asyncio.sleep(drawn.uniform(0, 2 * self._pause_seconds))

        async def read() -> None:
            async with AsyncQueryableStateClient(
                self._config, deadline_seconds=self._deadline_seconds
            ) as client:
                await asyncio.gather(
                    *(
                        ask_on(client, random.Random(drawn.random()))
                        for _ in range(count)
                    )
                )

        asyncio.run(read())

    def _asked(self, name: str) -> int:
        """Take note of a question; return the time."""
        with self._changed:
            self._outstanding[name] += 1
            self._changed.notify_all()
        return now_ns()

    @staticmethod
    async def _ask_async(client: AsyncQueryableStateClient, question: _Question) -> Any:
        answer = getattr(client, question.method)(
            JOB, question.state_name, *question.arguments, **dict(question.options)
        )
        if question.method == "scan":
            return [row async for row in answer]
        waiting: Awaitable[Any] = answer
        return await waiting

    # -- what is asked ---------------------------------------------------------------

    def _draw(self, drawn: random.Random) -> _Question:
        node_id = drawn.choice(sorted(self._keys_by_node))
        keys = self._keys_by_node[node_id]
        log_key = drawn.choice(LOG_KEYS)
        return drawn.choices(
            (
                _Question(
                    name="many rows of a node",
                    state_name=ROWS,
                    node_id=node_id,
                    method="get_many",
                    arguments=(drawn.sample(keys, min(len(keys), _MANY)),),
                ),
                _Question(
                    name="many rows of all nodes",
                    state_name=ROWS,
                    node_id=None,
                    method="get_many",
                    arguments=(drawn.sample(KEYS, _MANY),),
                    options=(("partial", True),),
                ),
                _Question(
                    name="a row and its batch",
                    state_name=ROWS,
                    node_id=node_id,
                    method="lookup",
                    arguments=(drawn.choice(keys),),
                ),
                _Question(
                    name="a list",
                    state_name=LOG,
                    node_id=self._node_of[log_key],
                    method="get_list",
                    arguments=(log_key,),
                ),
                _Question(
                    name="the end of a list",
                    state_name=LOG,
                    node_id=self._node_of[log_key],
                    method="get_list",
                    arguments=(log_key,),
                    options=(("start", -_TAIL),),
                ),
                _Question(
                    name="how many", state_name=ROWS, node_id=None, method="count"
                ),
                _Question(
                    name="all rows", state_name=ROWS, node_id=None, method="scan"
                ),
            ),
            weights=(8, 4, 6, 3, 3, 1, 1),
        )[0]

    def _draw_next(self, drawn: random.Random) -> _Question:
        node_id = drawn.choice(sorted(self._keys_by_node))
        return _Question(
            name="a row of a batch to come",
            state_name=ROWS,
            node_id=node_id,
            method="lookup",
            arguments=(drawn.choice(self._keys_by_node[node_id]),),
            options=(("min_batch_id", self._batch_id_seen + drawn.randint(2, 4)),),
        )

    # -- what it came to -------------------------------------------------------------

    def _note(
        self,
        client: str,
        question: _Question,
        asked_ns: int,
        *,
        value: Any = None,
        error: NameServiceError | None = None,
    ) -> None:
        answered_us = time.time_ns() // 1_000
        answer = Answer(
            client=client,
            state_name=question.state_name,
            node_id=question.node_id,
            question=question.name,
            asked_ns=asked_ns,
            answered_ns=now_ns(),
            answered_us=answered_us,
        )
        if error is not None:
            noted = [_failed(answer, error)]
        else:
            found = self._look(question, value)
            noted = [
                evolve(
                    answer,
                    node_id=node_id,
                    batch_ids=tuple(sorted(found.batches[node_id])),
                )
                for node_id in found.batches
            ]
            noted += [
                _failed(evolve(answer, node_id=node_id), why)
                for node_id, why in found.unavailable.items()
            ]
            if found.problem:
                noted.append(evolve(answer, detail=found.problem))
        with self._changed:
            self._outstanding[client] -= 1
            for one in noted:
                self._batch_id_seen = max(self._batch_id_seen, *one.batch_ids, 0)
            self._answers += noted
            self._changed.notify_all()

    def _look(self, question: _Question, value: Any) -> _Found:
        """Return what *value* shows."""
        found = _Found()
        match question.method:
            case "get_many" if question.node_id is None:
                (asked,) = question.arguments
                self._note_rows(found, value.values.items())
                missing = set(asked) - set(value.values) - set(value.unavailable)
                if missing:
                    found.problem = f"{sorted(missing)} are not there"
                for key in value.unavailable:
                    found.unavailable[self._node_of[key]] = value.error
            case "get_many":
                (asked,) = question.arguments
                self._note_rows(found, value.items())
                if set(value) != set(asked):
                    found.problem = f"{len(asked)} rows asked for, {len(value)} told"
            case "lookup":
                batch_id = value.value["batch"]
                found.batches[question.node_id] = {batch_id}
                least = dict(question.options).get("min_batch_id", 0)
                if batch_id < least:
                    found.problem = f"batch {batch_id}, not {least} or later"
                if value.batch_id != batch_id:
                    found.problem = f"a row of batch {batch_id}, as of {value.batch_id}"
            case "get_list":
                items = [item["batch"] for item in value]
                found.batches[question.node_id] = {items[-1]} if items else set()
                if not items or items != self._whole_list(question, items[-1]):
                    found.problem = f"a list of {items}"
            case "scan":
                keys = [key for key, _ in value]
                self._note_rows(found, value)
                if keys != sorted(KEYS):
                    found.problem = f"{len(keys)} rows, or not in order: {keys}"
            case "count":
                if value != len(KEYS):
                    found.problem = f"{value} keys"
            case unknown:
                raise AssertionError(unknown)
        if not (found.batches or found.unavailable):
            found.batches[question.node_id] = set()
        return found

    def _whole_list(self, question: _Question, last: int) -> list[int]:
        """Return what a list, or its end, holds after batch *last*."""
        every = self._log_restarts_every
        first = last - last % every if every else 0
        if question.options:
            first = max(first, last - _TAIL + 1)
        return list(range(first, last + 1))

    def _note_rows(
        self, found: _Found, rows: Iterable[tuple[str, Mapping[str, int]]]
    ) -> None:
        for key, row in rows:
            found.batches.setdefault(self._node_of[key], set()).add(row["batch"])


def _failed(answer: Answer, error: NameServiceError) -> Answer:
    return evolve(answer, error=type(error).__name__, detail=str(error))


def check_contents(
    config: HAConfig, batch_id: int, *, job_id: str = JOB, token: str | None = None
) -> None:
    """Assert that every row is of that batch, and every list whole."""
    with QueryableStateClient(config, token, deadline_seconds=WAIT_SECONDS) as client:
        rows = dict(client.scan(job_id, ROWS, min_batch_id=batch_id))
        assert rows == {key: {"batch": batch_id} for key in KEYS}
        assert client.count(job_id, ROWS) == len(KEYS)
        assert client.get_many(job_id, ROWS, KEYS) == rows
        whole = [{"batch": number} for number in range(batch_id + 1)]
        for key in LOG_KEYS:
            found = client.get_list(job_id, LOG, key, min_batch_id=batch_id)
            assert found == whole
