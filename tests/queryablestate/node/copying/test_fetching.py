"""Key groups that are copied from one node to another, over real sockets (S2)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from haservices.testing.reserved_port import ReservedPort
from nameservice import StorageError
from queryablestate.store.store import StateStore
from queryablestate.wire.codec import decode_count, decode_items
from queryablestate.wire.node_messages import (
    ApplyEntries,
    KeyGroupsCopied,
    RegisterNode,
)
from queryablestate.wire.questions import CountKeys, GetItems
from queryablestate.wire.records import BatchState, Entry
from queryablestate.wire.staging_messages import StagedRows
from tests.leaks import assert_back_at, own_threads, process_figures, settled
from tests.queryablestate.copying_nodes import (
    ALL_GROUPS,
    GROUP_COUNT,
    JOB,
    MANY,
    CopyingNode,
    wait_until,
)
from tests.queryablestate.node_entries import batch, drop
from tests.queryablestate.proxy_for_nodes import (
    TIMEOUT_SECONDS,
    rows,
    rows_of,
    storage_key,
)
from zmqtransport import CurveKeyPair, write_key_pair


pytestmark = pytest.mark.shells

WINDOW: Final = 8
FUTURE_US: Final = (2**62).to_bytes(8, "big")


@pytest.fixture
def a(tmp_path: Path) -> Iterator[CopyingNode]:
    """Return a node that holds all key groups."""
    with CopyingNode("a", tmp_path) as one:
        one.register(one.assignment(held=ALL_GROUPS))
        yield one


@pytest.fixture
def b(tmp_path: Path) -> Iterator[CopyingNode]:
    """Return a node that is to have them; it was not told anything yet."""
    with CopyingNode("b", tmp_path) as one:
        yield one


def join(
    b: CopyingNode, a: CopyingNode, *, groups: tuple[int, ...] = ALL_GROUPS, since: int
) -> None:
    """Have *b* copy key groups of *a*, and begin after entry *since*."""
    b.register(b.assignment(joining=groups, since=since, source=a), begin=since)


def content(
    store: StateStore, groups: tuple[int, ...]
) -> tuple[object, list[tuple[int, list[bytes], list[bytes]]]]:
    """Return everything that a store has of some key groups, and what it says of it."""
    with store.copy_reader(JOB, groups) as reader:
        pages = [
            (page.state_number, page.keys, page.values)
            for page in reader.pages()
            if page.keys
        ]
        return reader.states, pages


def many() -> list[StagedRows]:
    """Return rows that are more than a window of pages."""
    chunks = []
    for key_group in range(GROUP_COUNT):
        names = [f"{i:08}" for i in range(MANY // GROUP_COUNT)]
        values: dict[str, bytes | None] = dict.fromkeys(names, bytes(250))
        chunks.append(rows_of(values, key_group=key_group))
    return chunks


def served(node: CopyingNode) -> int:
    """Return how many copies a node reads for others."""
    return int(node.node.status()["copies_served"])


def pages_received(node: CopyingNode) -> int:
    """Return how many pages have come in of the fetch that is under way."""
    assert node.node._running is not None
    fetches = node.node._running._store._copying._fetches
    return sum(fetch._page_count for fetch in fetches)


def continued(node: CopyingNode) -> bool:
    """Return whether the newest that came in is a second newer than the first."""
    assert node.node._running is not None
    (fetch,) = node.node._running._store._copying._fetches
    assert fetch._call is not None
    return fetch._call._heard_ns - fetch._began_ns > 1_000_000_000


def is_copied(node: CopyingNode) -> bool:
    """Return whether a node that was to copy has nothing left to copy."""
    return node.node.status()["key_groups_copying"] == 0


def wait_for_window(node: CopyingNode) -> None:
    """Wait until a node whose writer is held has got all it has allowed."""
    assert wait_until(lambda: pages_received(node) == WINDOW)


@pytest.mark.proves("S2")
class TestWholeCopies:
    """What was copied is what was there, and goes on like it."""

    def test_all_kinds_of_state_are_copied(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: values, lists, maps, rows that expire, and states without rows."""
        stage = a.stage(
            77,
            rows(1, x=b"1", y=b"2"),
            rows(1, 7, x=b"3"),
            rows(2, k=b"first"),
            rows(2, k=b"second"),
            rows(3, x=FUTURE_US + b"later"),
            rows_of({"m\0\0\1one": b"1", "m\0\0\1two": b"2"}, state_number=4),
        )
        kinds = {1: "value", 2: "list", 3: "value", 4: "map", 5: "list"}
        states = tuple(
            BatchState(
                state_number=number,
                kind=kind,
                has_ttl=number == 3,
                generation=number,
                is_replaced=False,
            )
            for number, kind in kinds.items()
        )
        a.apply(replace(batch(1, batch_id=77, stages=(stage,)), states=states))
        join(b, a, since=1)
        said = b.copied(*ALL_GROUPS)
        assert said.failure is None
        assert said.row_count == 8
        assert said.size_bytes > 0
        b.assign(b.assignment(held=ALL_GROUPS, sequence=1))
        assert b.get(storage_key("x"), storage_key("x", 7)) == [b"1", b"3"]
        assert b.get(storage_key("x"), state_number=3) == [b"later"]
        _, payload = b.ask(
            [storage_key("k")],
            operation=GetItems(),
            state_number=2,
        )
        assert decode_items(payload) == [[b"first", b"second"]]
        assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)

    def test_only_what_was_asked_for_is_copied(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: rows of other key groups stay where they are."""
        a.write(1, rows(x=b"0"), rows(1, 1, x=b"1"), rows(1, 2, x=b"2"))
        join(b, a, groups=(1,), since=1)
        assert b.copied(1).row_count == 1
        b.assign(b.assignment(held=(1,), sequence=1))
        _, payload = b.ask(operation=CountKeys())
        assert decode_count(payload) == 1
        with pytest.raises(Exception, match="not held"):
            b.store.copy_reader(JOB, [2])

    def test_nothing_at_all_is_copied_too(self, a: CopyingNode, b: CopyingNode) -> None:
        """S2: a job without any row has a copy as well."""
        join(b, a, since=0)
        assert b.copied(*ALL_GROUPS).row_count == 0

    def test_batches_that_are_decided_meanwhile_are_in_the_copy(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: one that copies is brought their rows, and applies them afterwards."""
        a.write(1, rows(x=b"1", y=b"1"))
        join(b, a, since=1)
        a.write(2, rows(x=b"2"))
        b.write(2, rows(x=b"2"))
        assert wait_until(lambda: is_copied(b))
        a.write(3, rows(y=None))
        b.write(3, rows(y=None))
        assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)

    def test_a_copy_that_is_further_waits_for_the_rest_of_the_job(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: it is complete when the node has applied what the source had."""
        a.write(1, rows(x=b"1"))
        a.write(2, rows(x=b"2"))
        a.write(3, rows(x=b"3"))
        join(b, a, since=1)
        assert wait_until(lambda: pages_written(b))
        said, _ = b.proxy.receive(KeyGroupsCopied)
        assert said.key_groups == ()
        b.write(2, rows(x=b"2"))
        b.write(3, rows(x=b"3"))
        assert wait_until(lambda: is_copied(b))
        assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)

    def test_a_source_that_is_behind_is_waited_for(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: what was decided before the join is in the copy, not in a later entry."""
        a.write(1, rows(x=b"1"))
        join(b, a, since=2)
        assert wait_until(lambda: served(a) == 1)
        a.write(2, rows(x=b"2"))
        b.copied(*ALL_GROUPS)
        b.assign(b.assignment(held=ALL_GROUPS, sequence=2))
        assert b.get(storage_key("x")) == [b"2"]
        assert wait_until(lambda: served(a) == 0)

    def test_a_large_copy_comes_whole(self, a: CopyingNode, b: CopyingNode) -> None:
        """S2: more than a window, page after page; the source is left alone then."""
        a.write(1, *many())
        join(b, a, since=1)
        said = b.copied(*ALL_GROUPS)
        assert said.row_count == MANY
        assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)
        assert wait_until(lambda: served(a) == 0)

    def test_a_state_that_was_dropped_does_not_come_back(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: neither from the source nor from what the node was brought."""
        a.write(1, rows(1, x=b"1"))
        a.write(2, rows(2, x=b"1"), state_number=2)
        join(b, a, since=1)
        assert wait_until(lambda: pages_written(b))
        stage = b.stage(2, rows(2, x=b"1"))
        b.proxy.apply(batch(2, stages=(stage,), state_number=2), drop(3, 2))
        a.apply(drop(3, 2))
        assert wait_until(lambda: is_copied(b))
        assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)
        assert [one[0] for one in content(b.store, ALL_GROUPS)[1]] == [1]


def pages_written(node: CopyingNode) -> bool:
    """Return whether rows have come in."""
    return int(node.node.status()["rows_copied_total"]) > 0


class TestWhatGoesWrong:
    """A copy that comes to nothing, and the next one."""

    @pytest.mark.proves("S2")
    def test_a_source_that_ends_is_told_of_and_tried_again(
        self, a: CopyingNode, b: CopyingNode, tmp_path: Path
    ) -> None:
        """S2: nothing of the first attempt is in the second."""
        a.write(1, *many())
        go = b.begin_to_copy(a)
        wait_for_window(b)
        a.node.close()
        go.set()
        assert b.failed()
        with CopyingNode("a", tmp_path) as again:
            again.version = a.version
            again.register(again.assignment(held=ALL_GROUPS, sequence=1))
            again.write(2, rows(new=b"2"))
            b.assign(
                b.assignment(joining=ALL_GROUPS, since=1, source=again, sequence=1)
            )
            b.write(2, rows(new=b"2"))
            assert wait_until(lambda: is_copied(b))
            assert content(b.store, ALL_GROUPS) == content(again.store, ALL_GROUPS)

    @pytest.mark.proves("S1", "S2")
    def test_a_source_that_has_not_all_of_it_refuses(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S1, S2: there is no copy with a gap."""
        a.assign(a.assignment(held=(0, 1)))
        a.write(1, rows(x=b"1"))
        join(b, a, groups=(1, 2), since=1)
        assert "not-held" in b.failed()

    def test_nobody_at_that_address_is_told_of(
        self, b: CopyingNode, tmp_path: Path, reserved: ReservedPort
    ) -> None:
        """The proxy learns why nothing moves."""
        bind = f"tcp://127.0.0.1:{reserved.port}"
        with CopyingNode("a", tmp_path, bind=bind) as a:
            pass
        join(b, a, since=0)
        assert "not there" in b.failed()

    @pytest.mark.proves("S2")
    def test_a_target_that_does_not_write_holds_the_source_back(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: a source reads no further ahead than it may, whatever there is."""
        a.write(1, *many())
        go = b.begin_to_copy(a)
        wait_for_window(b)
        # Until the source has nothing to say but that it is there.
        assert wait_until(lambda: continued(b))
        assert pages_received(b) == WINDOW
        assert served(a) == 1
        go.set()
        assert b.copied(*ALL_GROUPS).row_count == MANY

    @pytest.mark.proves("S2")
    def test_a_fetch_that_is_cancelled_ends_at_once(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: no row of it is written any more, and the source releases it."""
        a.write(1, *many())
        go = b.begin_to_copy(a)
        wait_for_window(b)
        b.assign(b.assignment(held=(), sequence=1))
        assert wait_until(lambda: served(a) == 0)
        go.set()
        b.write(2)
        status = b.node.status()
        assert status["rows_copied_total"] == 0
        assert status["failures_total"] == 0
        slots = b.store._environment.slots
        with b.store._environment.reading() as transaction:
            assert sum(transaction.stat(slot)["entries"] for slot in slots) == 0

    @pytest.mark.proves("S2")
    def test_a_node_that_is_closed_leaves_nothing_behind(
        self, a: CopyingNode, tmp_path: Path
    ) -> None:
        """S2: no thread, no socket, no read transaction, on neither side."""
        a.write(1, *many())
        threads = own_threads()
        before = settled(process_figures)
        with CopyingNode("b", tmp_path) as b:
            go = b.begin_to_copy(a)
            wait_for_window(b)
            go.set()
        assert own_threads() == threads
        assert wait_until(lambda: served(a) == 0)
        assert_back_at(before, process_figures)

    @pytest.mark.proves("W3")
    def test_a_store_that_cannot_be_left_goes_on(
        self, a: CopyingNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W3: what it was at ends, counts, and is no mistake."""
        a.write(1, rows(x=b"1"))
        go, begun = threading.Event(), threading.Event()
        store = a.store
        apply = store.apply

        def apply_later(job_id: str, entry: Entry) -> None:
            begun.set()
            assert go.wait(TIMEOUT_SECONDS)
            apply(job_id, entry)

        def is_full(control_id: str, node_id: str) -> StateStore:
            go.set()
            raise StorageError(f"no room for {control_id} on {node_id}")

        assert a.node._running is not None
        directory = a.node._running._store._directory
        monkeypatch.setattr(store, "apply", apply_later)
        monkeypatch.setattr(directory, "open_for", is_full)
        entry = batch(2, stages=(a.stage(2, rows(x=b"2")),))
        a.proxy.send(
            ApplyEntries(
                leader_epoch=a.proxy.leader_epoch, job_id=JOB, entries=(entry,)
            )
        )
        assert begun.wait(TIMEOUT_SECONDS)
        a.change_proxy("another")
        a.proxy.receive(RegisterNode)
        a.proxy.take_in()
        said, _ = a.proxy.receive(RegisterNode)  # it can but ask again
        assert said.store_id == store.store_id
        assert [(one.job_id, one.sequence) for one in said.positions] == [(JOB, 2)]
        assert a.node.status()["failures_total"] == 0

    @pytest.mark.proves("S2")
    def test_another_control_plane_ends_what_was_begun(
        self, a: CopyingNode, b: CopyingNode
    ) -> None:
        """S2: rows of one control plane never reach the store of another."""
        a.write(1, *many())
        go = b.begin_to_copy(a)
        wait_for_window(b)
        b.change_proxy("another")
        b.proxy.receive(RegisterNode)
        b.proxy.take_in()
        go.set()
        asked, _ = b.proxy.receive(RegisterNode)
        assert asked.positions == ()
        assert wait_until(lambda: served(a) == 0)
        assert b.node.status()["failures_total"] == 0


class TestCURVE:
    """Nodes that prove to each other who they are."""

    @pytest.mark.proves("S2")
    def test_nodes_copy_with_their_own_keys(self, tmp_path: Path) -> None:
        """S2, N3: a node that the other one's allow-list names may copy, else not."""
        settings: dict[str, dict[str, object]] = {}
        pairs = {name: CurveKeyPair.generate() for name in ("a", "b", "writer")}
        allowed = {"a": ["b", "writer"], "b": ["writer"]}
        for name in ("a", "b"):
            files = write_key_pair(pairs[name], tmp_path / f"{name}-keys")
            allow_list = tmp_path / f"{name}.toml"
            allow_list.write_text(
                "".join(
                    f'[clients.{one}]\npublic_key = "{pairs[one].public_key}"\n'
                    'roles = ["observe"]\n'
                    for one in allowed[name]
                )
            )
            settings[name] = {
                "curve_public_key_file": files.public_file,
                "curve_secret_key_file": files.secret_file,
                "allow_list_file": allow_list,
            }
        nodes = [CopyingNode(name, tmp_path, **settings[name]) for name in ("a", "b")]
        for node in nodes:
            node.proxy_keys = CurveKeyPair.generate()
        with nodes[0] as a, nodes[1] as b:
            assert "?key=" in a.node.address
            a.writer_keys = pairs["writer"]
            a.register(a.assignment(held=ALL_GROUPS))
            a.write(1, rows(x=b"1"))
            join(b, a, since=1)
            b.copied(*ALL_GROUPS)
            assert content(b.store, ALL_GROUPS) == content(a.store, ALL_GROUPS)
            # The other way round: `b` does not know `a`.
            b.assign(b.assignment(held=ALL_GROUPS, sequence=1))
            a.assign(a.assignment(joining=(1,), since=1, source=b, sequence=1))
            assert a.failed()
