"""A reader, who asks all the time, and for whom each answer must be true."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

from attrs import frozen

from queryablestate.codec import (
    decode_count,
    decode_items,
    decode_keys,
    decode_values,
    encode_payload,
)
from queryablestate.failures import STALE_ROUTE
from queryablestate.questions import (
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
from tests.simulation.timeline import MS
from tests.state_simulation.content import (
    KEY_COUNT,
    map_keys,
    number_of,
    storage_key,
)
from tests.state_simulation.scenario import MAX_PARALLELISM


if TYPE_CHECKING:
    from queryablestate.messages import StateDescription
    from tests.state_simulation.checkers import Asked
    from tests.state_simulation.world import World


__all__ = ["Reader"]

_PATIENCE_NS: Final = 700 * MS
_SCAN_LIMIT: Final = 1_000


@frozen
class _Question:
    """What was asked: for the books, by which route, what, and for which keys."""

    asked: Asked
    route: StateDescription
    operation: Operation
    keys: list[bytes]


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
        self._again()

    def _again(self) -> None:
        delay_ns = 1 + round(self._world.rng.expovariate(1.0) * self._pause_ns)
        self._world.timeline.after(delay_ns, self._ask)

    def _ask(self) -> None:
        world = self._world
        if world.is_over:
            return
        proxy = world.leader_as_known()
        if proxy is None:
            self._again()
            return
        job_id, state_name = name = world.rng.choice(world.state_names)
        route = self._routes.get(name)
        if route is None:
            route = proxy.described(job_id, state_name)
            if route is None:
                self._again()
                return
            self._routes[name] = route
        self._number += 1
        number = self._number
        operation, owner, keys = self._question(route)
        state = world.checker.job(job_id).states[route.state_number]
        min_batch_id = None
        if state.versions and world.rng.random() < 0.1:
            min_batch_id = state.versions[-1].batch_id + world.rng.randrange(2)
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
            deadline_ms=500,
            min_batch_id=min_batch_id,
        )
        groups = tuple(g for g, holder in enumerate(route.owners) if holder == owner)
        asked = world.checker.asks(state, groups=groups, min_batch_id=min_batch_id)
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

    def _question(self, route: StateDescription) -> tuple[Operation, int, list[bytes]]:
        """Return what to ask, of which node, and the keys."""
        rng = self._world.rng
        group = rng.randrange(MAX_PARALLELISM)
        owner = route.owners[group]
        numbers = [n for n in range(KEY_COUNT) if n % MAX_PARALLELISM == group]
        if rng.random() < 0.5:  # all keys of that node: one answer is one snapshot
            numbers = [
                n
                for n in range(KEY_COUNT)
                if route.owners[n % MAX_PARALLELISM] == owner
            ]
        keys = [storage_key(n) for n in numbers]
        kind = self._world.kind_of(route.job_id, route.state_name)
        if rng.random() < 0.1:
            return CountKeys(), owner, []
        if kind == "list":
            return GetItems(), owner, keys
        if kind == "map":
            return GetEntries(), owner, keys
        if rng.random() < 0.2:
            scan = ScanRows(start=b"", stop=None, limit=_SCAN_LIMIT)
            return scan, owner, []
        return GetValues(), owner, keys

    def _lose_patience(self, number: int) -> None:
        if number == self._number:
            self._number += 1
            self._again()

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
            if message.code == STALE_ROUTE:
                self._routes.pop((route.job_id, route.state_name), None)
            self._again()
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
        self._again()


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
