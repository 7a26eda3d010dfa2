"""A reader, who asks all the time, and for whom each answer must be true."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import define, frozen

from queryablestate.wire.codec import (
    decode_count,
    decode_items,
    decode_keys,
    decode_values,
    encode_payload,
)
from queryablestate.wire.questions import (
    Ask,
    CountKeys,
    GetEntries,
    GetItems,
    GetValues,
    Operation,
    Refusal,
    ScanRows,
    Told,
)
from queryablestate.wire.refusals import STALE_ROUTE, error_of
from tests.simulation.timeline import MS
from tests.state_simulation.content import (
    KEY_COUNT,
    map_keys,
    number_of,
    storage_key,
)
from tests.state_simulation.scenario import MAX_PARALLELISM, Profile


if TYPE_CHECKING:
    from queryablestate.wire.clients import StateDescription
    from tests.state_simulation.checkers import Asked
    from tests.state_simulation.world import World


__all__ = ["Reader"]

_PATIENCE_NS: Final = 700 * MS
_READ_DEADLINE_NS: Final = 6_000 * MS
_RETRY_NS: Final = 60 * MS
_SCAN_LIMIT: Final = 100
_UNAVAILABLE: Final = "state-unavailable"


@frozen
class _Question:
    """What was asked: for the books, by which route, what, and for which keys."""

    asked: Asked
    route: StateDescription
    operation: Operation
    keys: list[bytes]


@define
class _Wish:
    """
    What is to be known: asked for until it is answered, where no read may fail.

    Attributes:
        name: The job and the state.
        group: A key group.
        is_whole: Whether all keys of its node are asked for.
        operation: What to do with them.
        waits: Whether an answer must be as new as the newest batch.
        since_ns: When it was wished.
        batch_id_min: What it waits for, once that is known.
        generation_min: Whose batch that is.
    """

    name: tuple[str, str]
    group: int
    is_whole: bool
    operation: Operation
    waits: bool
    since_ns: int
    batch_id_min: int | None = None
    generation_min: int | None = None


@final
class Reader:
    """
    One client, with one question at a time.

    Attributes:
        name: For the books.
        told_count: Answers that it got.
    """

    def __init__(self, world: World, name: str, *, pause_ns: int) -> None:
        self._world = world
        self.name = name
        self.told_count = 0
        self._link = world.network.new_link()
        self._pause_ns = pause_ns
        self._routes: dict[tuple[str, str], StateDescription] = {}
        self._number = 0
        self._is_strict = world.scenario.profile is not Profile.STORM
        self._wish: _Wish | None = None
        self._refused: list[str] = []
        self._again()

    def _again(self) -> None:
        """Ask something else in a while."""
        self._wish = None
        delay_ns = 1 + round(self._world.rng.expovariate(1.0) * self._pause_ns)
        self._world.timeline.after(delay_ns, self._ask)

    def _retry(self) -> None:
        """Ask the same again in a moment, where no read may fail; else another one."""
        world, wish = self._world, self._wish
        if not self._is_strict or wish is None or world.is_over:
            self._again()
            return
        waited_ns = world.timeline.now_ns - wish.since_ns
        world.checker.require(
            "S4 no read fails because a node is away, or because of a move",
            waited_ns <= _READ_DEADLINE_NS,
            self.name,
            wish,
            "refused with",
            self._refused,
        )
        world.timeline.after(1 + world.rng.randrange(_RETRY_NS), self._ask)

    def _ask(self) -> None:
        world = self._world
        if world.is_over:
            return
        proxy = world.leader_as_known()
        if proxy is None:
            self._retry()
            return
        wish = self._wish
        if wish is None:
            wish = self._wish = self._new_wish()
            self._refused = []
        job_id, state_name = wish.name
        route = self._routes.get(wish.name)
        if route is None:
            route = proxy.described(job_id, state_name)
            if route is None:
                self._again()
                return
            self._routes[wish.name] = route
        self._number += 1
        number = self._number
        operation, owner, keys = _question(route, wish)
        state = world.checker.job(job_id).states[route.state_number]
        if not state.versions:
            wish.since_ns = world.timeline.now_ns  # there is nothing to be told yet
        if wish.waits and state.versions and wish.batch_id_min is None:
            later = 0 if self._is_strict else world.rng.randrange(2)
            wish.batch_id_min = state.versions[-1].batch_id + later
            wish.generation_min = state.versions[-1].generation
        left_ns = wish.since_ns + _READ_DEADLINE_NS - world.timeline.now_ns
        ask = Ask(
            request_id=world.next_number(),
            session=b"s" * 16,
            state_number=route.state_number,
            assignment_version=route.assignment_version,
            node_index=owner,
            operation=operation,
            key_count=_SCAN_LIMIT
            if isinstance(operation, ScanRows)
            else max(1, len(keys)),
            deadline_ms=max(1, left_ns // MS) if self._is_strict else 500,
            min_batch_id=wish.batch_id_min,
            min_generation=wish.generation_min,
        )
        groups = tuple(sorted({int.from_bytes(key[:2], "big") for key in keys}))
        if not keys:
            groups = tuple(g for g, one in enumerate(route.owners) if one == owner)
        least = None
        if wish.batch_id_min is not None:
            assert wish.generation_min is not None
            least = (wish.generation_min, wish.batch_id_min)
        asked = world.checker.asks(state, groups=groups, least=least)
        payload = encode_payload(keys) if keys else b""
        question = _Question(asked, route, operation, keys)
        reply = partial(self._replied, number, question)
        send = partial(
            proxy.reader_asked,
            self._link,
            ask,
            payload,
            lambda message, values: world.network.letter(
                partial(reply, message, values)
            ),
        )
        world.network.letter(send)
        world.timeline.after(_PATIENCE_NS, partial(self._lose_patience, number))

    def _new_wish(self) -> _Wish:
        rng, world = self._world.rng, self._world
        name = rng.choice(world.state_names)
        kind = world.kind_of(*name)
        operation: Operation
        if rng.random() < 0.1:
            operation = CountKeys()
        elif kind == "list":
            operation = GetItems()
        elif kind == "map":
            operation = GetEntries()
        elif rng.random() < 0.2:
            operation = ScanRows(start=b"", stop=None, limit=_SCAN_LIMIT)
        else:
            operation = GetValues()
        return _Wish(
            name=name,
            group=rng.randrange(MAX_PARALLELISM),
            is_whole=rng.random() < 0.5,
            operation=operation,
            waits=rng.random() < 0.1,
            since_ns=world.timeline.now_ns,
        )

    def _lose_patience(self, number: int) -> None:
        if number == self._number:
            self._number += 1
            self._refused.append("nothing")
            self._retry()

    def _replied(
        self,
        number: int,
        question: _Question,
        message: Told | Refusal,
        values: bytes | None,
    ) -> None:
        if number != self._number:
            return
        self._number += 1
        world, route = self._world, question.route
        if isinstance(message, Refusal):
            world.counts[f"readers refused: {message.code}"] += 1
            self._refused.append(message.code)
            if message.code == STALE_ROUTE:
                self._routes.pop((route.job_id, route.state_name), None)
            elif self._is_strict and message.code == _UNAVAILABLE:
                world.checker.require(
                    "S4 nothing is unavailable while there is a copy of it",
                    not question.asked.state.versions or question.asked.floor < 0,
                    self.name,
                    self._wish,
                    question.asked.groups,
                    "by version",
                    route.assignment_version,
                    error_of(message),
                )
            self._retry()
            return
        assert values is not None
        self.told_count += 1
        world.counts["readers told"] += 1
        world.counts["readers told from a cache"] += message.reading.is_cached
        found = _found(question, values)
        count = None
        if isinstance(question.operation, CountKeys):
            count = decode_count(values)
        elif isinstance(question.operation, ScanRows):
            count = len(found)
        world.checker.told(
            self.name,
            question.asked,
            generation=message.reading.generation,
            batch_id=message.reading.batch_id,
            found=found,
            count=count,
        )
        for key_group in question.asked.groups:
            world.answered_at[route.state_number, key_group] = world.timeline.now_ns
        self._again()


def _question(
    route: StateDescription, wish: _Wish
) -> tuple[Operation, int, list[bytes]]:
    """Return what to ask, of which node, and the keys."""
    owner = route.owners[wish.group]
    if isinstance(wish.operation, CountKeys | ScanRows):
        return wish.operation, owner, []
    groups = {wish.group}
    if wish.is_whole:  # all keys of that node: one answer is one snapshot
        groups = {g for g, one in enumerate(route.owners) if one == owner}
    numbers = [n for n in range(KEY_COUNT) if n % MAX_PARALLELISM in groups]
    return wish.operation, owner, [storage_key(n) for n in numbers]


def _found(question: _Question, values: bytes) -> dict[bytes, tuple[bytes, ...] | None]:
    """Return what an answer says, by storage key (with map key)."""
    found: dict[bytes, tuple[bytes, ...] | None] = {}
    keys = question.keys
    match question.operation:
        case GetValues():
            for key, value in zip(keys, decode_values(values), strict=True):
                found[key] = None if value is None else (value,)
        case GetItems():
            for key, items in zip(keys, decode_items(values), strict=True):
                found[key] = None if items is None else tuple(items)
        case GetEntries():
            for key, entries in zip(keys, decode_items(values), strict=True):
                found |= dict.fromkeys(map_keys(key))
                pairs = entries or []
                for name, inner in zip(pairs[::2], pairs[1::2], strict=True):
                    found[key + name] = (inner,)
        case ScanRows():
            rows = decode_keys(values)
            for encoded, stored in zip(rows[::2], rows[1::2], strict=True):
                found[storage_key(number_of(encoded))] = (stored,)
        case _:
            pass
    return found
