"""Reads that do not pass the proxy, over real sockets (D1 to D3, D5)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from queryablestate import (
    AccessDeniedError,
    AsyncQueryableStateClient,
    Credentials,
    QueryableStateClient,
    StateOperations,
    UnknownKeyError,
)
from queryablestate.proxy.access import AccessList, CallerEntry
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.config import ProxyConfig
from queryablestate.proxy.rate_limit import RateLimitRule
from queryablestate.wire.codec import (
    decode_count,
    decode_to_client,
    decode_values,
)
from queryablestate.wire.direct import (
    NOT_DIRECTLY,
    TICKET_REFUSED,
    AskNode,
    DirectAccess,
    ShowTicket,
)
from queryablestate.wire.questions import (
    CountKeys,
    GetValues,
    Refusal,
    ScanRows,
    Told,
    WalkRows,
)
from queryablestate.wire.refusals import STALE_ROUTE
from tests.queryablestate.direct_asking import (
    KEYS,
    ROWS,
    access_of,
    ask,
    ask_page,
    code_of,
    count,
    published,
    read_until_direct,
    send_page,
    ticket_of,
)
from tests.queryablestate.proxy_peers import ScriptedPeer
from tests.queryablestate.proxy_stage import JOB, STATE, ProxyStage
from tests.recording import wait_until
from zmqtransport import CurveKeyPair, write_key_pair


pytestmark = [pytest.mark.shells, pytest.mark.proves("D1", "D2", "D3", "D5")]


def limit(scope: str) -> RateLimitRule:
    """Return a rate that is not reached here."""
    return RateLimitRule(scope=scope, keys_per_second=1_000_000)


def has_asked_all(stage: ProxyStage, client: QueryableStateClient) -> bool:
    """Ask once for all keys; return whether each node has answered itself by now."""
    client.get_many(JOB, STATE, KEYS)
    return all(int(node.status()["direct_answered_total"]) for node in stage.nodes)


class TestClients:
    """What users see of it: nothing but the time."""

    @pytest.mark.parametrize("node_count", [1, 3])
    def test_every_read_of_keys(self, tmp_path: Path, node_count: int) -> None:
        """D1: they go to the nodes, and say what they say by way of the proxy."""
        with (
            published(tmp_path, node_count=node_count) as stage,
            QueryableStateClient(stage.ha) as client,
            QueryableStateClient(stage.ha, direct=False) as other,
        ):
            read_until_direct(stage, client)
            wait_until(lambda: has_asked_all(stage, client))
            before = count(stage)
            assert client.get_many(JOB, STATE, [*KEYS, "none"]) == {
                key: {"delay": delay} for key, delay in ROWS
            }
            assert client.exists(JOB, STATE, "N3")
            assert not client.exists(JOB, STATE, "none")
            with pytest.raises(UnknownKeyError):
                client.get(JOB, STATE, "none")
            assert count(stage) > before + 3
            entry, same = (
                client.lookup(JOB, STATE, "N9"),
                other.lookup(JOB, STATE, "N9"),
            )
            assert (entry.value, entry.generation, entry.batch_id, entry.cached) == (
                same.value,
                same.generation,
                same.batch_id,
                same.cached,
            )
            assert dict(client.scan(JOB, STATE)) == dict(other.scan(JOB, STATE))
            assert client.count(JOB, STATE) == len(ROWS)

    def test_the_proxy_is_not_asked(self, tmp_path: Path) -> None:
        """D1: two messages for a read, and none of them to the proxy."""
        with published(tmp_path) as stage, QueryableStateClient(stage.ha) as client:
            read_until_direct(stage, client)
            before, asked = count(stage), count(stage, "questions_answered_total")
            for key, delay in ROWS:
                assert client.get(JOB, STATE, key) == {"delay": delay}
            direct = count(stage) - before
            assert direct + count(stage, "questions_answered_total") - asked >= len(
                ROWS
            )
            # A route may be asked for meanwhile; and on a busy machine one is late.
            assert direct > len(ROWS) // 2

    def test_asyncio(self, tmp_path: Path) -> None:
        """D1: coroutines that ask at once share messages to the nodes, too."""
        with published(tmp_path, node_count=2) as stage:

            async def ask() -> int:
                async with AsyncQueryableStateClient(stage.ha) as client:
                    while not count(stage):
                        assert await client.get(JOB, STATE, "N7") == {"delay": 7}
                    before = count(stage)
                    found = await asyncio.gather(
                        *(client.get(JOB, STATE, key) for key in KEYS)
                    )
                    assert found == [{"delay": delay} for _, delay in ROWS]
                    many = await client.get_many(JOB, STATE, KEYS)
                    assert many == {key: {"delay": delay} for key, delay in ROWS}
                    return count(stage) - before

            assert asyncio.run(ask()) > 0

    def test_scans_and_counts(self, tmp_path: Path) -> None:
        """D1, D5: nodes answer them, too, and say what they say through the proxy."""
        with (
            published(tmp_path, node_count=3) as stage,
            QueryableStateClient(stage.ha) as client,
            QueryableStateClient(stage.ha, direct=False) as other,
        ):
            read_until_direct(stage, client)
            wait_until(lambda: has_asked_all(stage, client))
            expected = list(other.scan(JOB, STATE))
            assert dict(expected) == {key: {"delay": delay} for key, delay in ROWS}

            def is_scanned() -> bool:
                before = count(stage)
                assert list(client.scan(JOB, STATE)) == expected
                return count(stage) >= before + 3

            def is_counted() -> bool:
                before = count(stage)
                assert client.count(JOB, STATE) == len(ROWS)
                return count(stage) >= before + 3

            wait_until(is_scanned)
            wait_until(is_counted)

    @pytest.mark.proves("S3")
    def test_page_tokens(self, tmp_path: Path) -> None:
        """D5: a page goes on where the one before has ended, by whichever way."""
        with (
            published(tmp_path, node_count=2) as stage,
            QueryableStateClient(stage.ha) as client,
            QueryableStateClient(stage.ha, direct=False) as other,
        ):
            read_until_direct(stage, client)
            wait_until(lambda: has_asked_all(stage, client))
            before = count(stage)
            found: list[Any] = []
            after = b""
            for number in range(len(ROWS)):
                asker = (client, other)[number % 2]
                page = asker.page(JOB, STATE, limit=7, after=after)
                found += page.rows
                if page.next_after is None:
                    break
                after = page.next_after
            assert found == list(other.scan(JOB, STATE))
            assert count(stage) > before

    @pytest.mark.proves("S3")
    def test_a_scan_while_key_groups_move(self, tmp_path: Path) -> None:
        """S3: it goes on by the new route, behind the last row that was told."""
        with (
            published(tmp_path) as stage,
            QueryableStateClient(stage.ha) as client,
            StateOperations(stage.ha) as operations,
        ):
            read_until_direct(stage, client)
            stage.add_node("another")
            rows = client.scan(JOB, STATE)
            found = [next(rows)]
            operations.rescale(JOB, node_count=2)
            found += rows
            assert found == [(key, {"delay": delay}) for key, delay in sorted(ROWS)]

    def test_asyncio_scans(self, tmp_path: Path) -> None:
        """D1: so do coroutines."""
        with published(tmp_path, node_count=2) as stage:

            async def ask() -> None:
                async with AsyncQueryableStateClient(stage.ha) as client:
                    while not count(stage):
                        assert await client.get(JOB, STATE, "N7") == {"delay": 7}
                    before = count(stage)
                    found = {key: row async for key, row in client.scan(JOB, STATE)}
                    assert found == {key: {"delay": delay} for key, delay in ROWS}
                    assert await client.count(JOB, STATE) == len(ROWS)
                    assert count(stage) > before

            asyncio.run(ask())

    def test_a_newer_batch_is_seen(self, tmp_path: Path) -> None:
        """Q1: what was acknowledged before the question is in the answer."""
        with ProxyStage(tmp_path, node_count=2) as stage:
            publisher = stage.publisher()
            publisher.write({STATE: ROWS})
            with QueryableStateClient(stage.ha) as client:
                read_until_direct(stage, client)
                for batch in range(1, 20):
                    batch_id = publisher.write({STATE: [("N7", 7 + 1_000 * batch)]})
                    entry = client.lookup(JOB, STATE, "N7")
                    assert entry.batch_id == batch_id
                    assert entry.value == {"delay": 7 + 1_000 * batch}

    def test_it_can_be_switched_off(self, tmp_path: Path) -> None:
        """D2: by the client, and by the proxy."""
        with published(tmp_path) as stage:
            with QueryableStateClient(stage.ha, direct=False) as client:
                for key in KEYS[:30]:
                    client.get(JOB, STATE, key)
                assert not client._shell._node_links
            assert count(stage) == 0
        config = ProxyConfig(direct_reads=False)
        with (
            published(tmp_path / "off", config) as stage,
            QueryableStateClient(stage.ha) as client,
        ):
            for key in KEYS[:30]:
                client.get(JOB, STATE, key)
            assert not client._shell._node_links

    @pytest.mark.proves("C2", "C3")
    @pytest.mark.parametrize(
        "config",
        [
            ProxyConfig(rate_limits=[limit("caller")]),
            ProxyConfig(rate_limits=[limit("state")]),
            ProxyConfig(cache=[CacheRule(ttl_seconds=1.0)]),
        ],
        ids=["caller", "state", "cache"],
    )
    def test_limits_and_caches_are_not_evaded(
        self, tmp_path: Path, config: ProxyConfig
    ) -> None:
        """D2: who is limited, and what is kept, goes through the proxy."""
        with (
            published(tmp_path, config) as stage,
            ScriptedPeer(stage.proxy.address) as peer,
        ):
            peer.hello()
            assert access_of(peer) is None
            with QueryableStateClient(stage.ha) as client:
                for key in KEYS[:30]:
                    client.get(JOB, STATE, key)
            assert count(stage) == 0

    def test_a_node_that_cannot_be_reached(self, tmp_path: Path) -> None:
        """D3: its reads go through the proxy, and none fails."""
        with published(tmp_path) as stage:
            stage.nodes.pop().close()
            stage._node["advertised_host"] = "127.0.0.77"  # nothing listens there
            stage.add_node("node-0")
            with QueryableStateClient(stage.ha) as client:
                for _ in range(3):
                    for key, delay in ROWS:
                        assert client.get(JOB, STATE, key) == {"delay": delay}
                (way,) = client._shell._core._ways._ways.values()
                assert way.pause_ns  # it was tried
            assert count(stage) == 0

    def test_a_node_that_ends(self, tmp_path: Path) -> None:
        """D3: with a second copy, no read fails because it was asked directly."""
        config = ProxyConfig(replica_count=2)
        with (
            published(tmp_path, config, node_count=2) as stage,
            QueryableStateClient(stage.ha) as client,
        ):
            read_until_direct(stage, client)
            client.get_many(JOB, STATE, KEYS)
            stage.nodes.pop().close()
            for key, delay in ROWS:
                assert client.get(JOB, STATE, key) == {"delay": delay}

    def test_key_groups_that_move(self, tmp_path: Path) -> None:
        """S3: nodes refuse what is not theirs any more; clients come back."""
        with (
            published(tmp_path) as stage,
            QueryableStateClient(stage.ha) as client,
            StateOperations(stage.ha) as operations,
        ):
            read_until_direct(stage, client)
            stage.add_node("another")
            operations.rescale(JOB, node_count=2)
            another = stage.nodes[-1]

            def reads() -> bool:
                for key, delay in ROWS:
                    assert client.get(JOB, STATE, key) == {"delay": delay}
                return int(another.status()["direct_answered_total"]) > 0

            wait_until(reads)

    def test_a_leader_that_is_another_one(self, tmp_path: Path) -> None:
        """Q4: its tickets are others; reads go on, by the proxy first."""
        with published(tmp_path) as stage, QueryableStateClient(stage.ha) as client:
            read_until_direct(stage, client)
            standby = stage.add_proxy()
            stage.proxy.close()
            standby.wait_until_leader(30)
            for key, delay in ROWS:
                assert client.get(JOB, STATE, key) == {"delay": delay}
            read_until_direct(stage, client)


@pytest.mark.proves("C1")
class TestTickets:
    """A node under what it is shown, by hand."""

    def test_a_good_one(self, tmp_path: Path) -> None:
        """D1: shown once, and good for many questions on that connection."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket)) == "")
            for _ in range(3):
                message, payload = ask(peer, None)
                assert isinstance(message, Told)
                assert decode_values(payload)[0] is not None
                assert message.reading.batch_id == 0

    def test_pages_and_counts(self, tmp_path: Path) -> None:
        """D1, D2: by the same ticket, not without one; a page says where it ends."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            assert code_of(ask_page(peer, CountKeys())) == TICKET_REFUSED
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket)) == "")
            _, payload = ask_page(peer, CountKeys())
            assert decode_count(payload) == len(ROWS)
            told, _ = ask_page(peer, ScanRows(start=b"", stop=None, limit=3))
            assert isinstance(told, Told)
            assert told.next_start is not None
            walked, _ = ask_page(
                peer, WalkRows(key_groups=((0, 200),), start=b"", limit=3)
            )
            assert code_of((walked, b"")) == STALE_ROUTE  # it has no such key groups
            # What waits for a batch does so by way of the proxy.
            refused, _ = ask_page(peer, CountKeys(), min_batch_id=7)
            assert code_of((refused, b"")) == NOT_DIRECTLY

    @pytest.mark.proves("B1")
    def test_a_client_that_does_not_read(self, tmp_path: Path) -> None:
        """B1: what waits for it is bounded, and others are answered."""
        with (
            ProxyStage(tmp_path) as stage,
            ScriptedPeer(stage.nodes[0].address) as peer,
            ScriptedPeer(stage.nodes[0].address) as other,
        ):
            stage.publisher().write({STATE: [(f"N{n:0400}", n) for n in range(4_000)]})
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket)) == "")
            wait_until(lambda: code_of(ask(other, ticket)) == "")
            before = int(stage.nodes[0].status()["direct_refused_total"])
            page = ScanRows(start=b"", stop=None, limit=10_000)

            def is_refused() -> bool:
                send_page(peer, page)
                now = int(stage.nodes[0].status()["direct_refused_total"])
                return now > before

            wait_until(is_refused)
            assert code_of(ask_page(other, CountKeys())) == ""

    def test_none_at_all(self, tmp_path: Path) -> None:
        """C1: who shows nothing learns nothing, not even what there is."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            assert code_of(ask(peer, None)) == TICKET_REFUSED
            assert code_of(ask(peer, None, key="none")) == TICKET_REFUSED

    def test_a_forged_one(self, tmp_path: Path) -> None:
        """D2: whatever is changed in it."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            ticket = ticket_of(stage)
            for index in (0, 31, 32, len(ticket) // 2, len(ticket) - 1):
                forged = bytearray(ticket)
                forged[index] ^= 1
                assert code_of(ask(peer, bytes(forged))) == TICKET_REFUSED
            assert code_of(ask(peer, b"")) == TICKET_REFUSED

    def test_another_connection(self, tmp_path: Path) -> None:
        """D2: what was shown on one connection is not shown on another."""
        with (
            published(tmp_path) as stage,
            ScriptedPeer(stage.nodes[0].address) as first,
            ScriptedPeer(stage.nodes[0].address) as second,
        ):
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(first, ticket)) == "")
            assert code_of(ask(second, None)) == TICKET_REFUSED

    def test_one_that_is_over(self, tmp_path: Path) -> None:
        """D2: also on a connection that has shown it, and shown once more."""
        config = ProxyConfig(direct_ticket_seconds=0.1)
        with (
            published(tmp_path, config) as stage,
            ScriptedPeer(stage.nodes[0].address) as peer,
        ):
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket)) == TICKET_REFUSED)
            assert code_of(ask(peer, None)) == TICKET_REFUSED
            assert code_of(ask(peer, ticket, ticket_id=2)) == TICKET_REFUSED

    def test_one_of_an_old_leader(self, tmp_path: Path) -> None:
        """D2: the node goes by the present leader alone."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            old = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, old)) == "")
            standby = stage.add_proxy()
            stage.proxy.close()
            standby.wait_until_leader(30)
            stage.proxy = standby
            stage.nodes[0].wait_until_registered(30)
            wait_until(lambda: code_of(ask(peer, ticket_of(stage))) == "")
            assert code_of(ask(peer, old)) == TICKET_REFUSED

    def test_one_of_a_key_group_that_has_moved(self, tmp_path: Path) -> None:
        """S3: a ticket comes with a version of the assignment, and goes with it."""
        with (
            published(tmp_path) as stage,
            ScriptedPeer(stage.nodes[0].address) as peer,
            StateOperations(stage.ha) as operations,
        ):
            ticket = ticket_of(stage)
            wait_until(lambda: code_of(ask(peer, ticket)) == "")
            stage.add_node("another")
            operations.rescale(JOB, node_count=2)
            wait_until(lambda: code_of(ask(peer, ticket)) == STALE_ROUTE)
            # By a new one, for what the node does not own.
            fresh = ticket_of(stage)

            def asked() -> set[str]:
                return {code_of(ask(peer, fresh, key=key)) for key in KEYS}

            def is_divided() -> bool:
                nonlocal fresh
                fresh = ticket_of(stage)
                return asked() == {"", STALE_ROUTE}

            wait_until(is_divided)

    def test_another_state(self, tmp_path: Path) -> None:
        """D2: a ticket names one state; there is no way to ask for another by it."""
        with ProxyStage(tmp_path) as stage:
            stage.publisher(STATE, "secret").write(
                {STATE: ROWS, "secret": [("N7", 666)]}
            )
            with ScriptedPeer(stage.nodes[0].address) as peer:
                ticket = ticket_of(stage)
                wait_until(lambda: code_of(ask(peer, ticket)) == "")
                _, payload = ask(peer, None)
                assert b"\x02\x9a" not in payload  # 666

    def test_rubbish_is_survived(self, tmp_path: Path) -> None:
        """N3: what is no message is counted; the node goes on."""
        with published(tmp_path) as stage, ScriptedPeer(stage.nodes[0].address) as peer:
            ticket = ticket_of(stage)
            for frames in ((b"",), (b"LDQ\x01",), (b"LDQ\x01\x81", b"x"), (b"a", b"b")):
                peer.send_frames(*frames)
                peer.receive_frames()
            peer.send(ShowTicket(ticket_id=1, ticket=ticket))
            question = AskNode(
                request_id=1, ticket_id=1, operation=GetValues(), deadline_ms=1_000
            )
            peer.send(question, b"no keys")
            assert isinstance(decode_to_client(peer.receive_frames()[0]), Refusal)
            wait_until(lambda: code_of(ask(peer, ticket)) == "")


class Curve:
    """A proxy and a node with CURVE; the node's allow-list has one of two readers."""

    def __init__(self, directory: Path, *, reader_count: int) -> None:
        names = ("proxy", "node", "known", "unknown")
        pairs = {name: CurveKeyPair.generate() for name in names}
        self.pairs = pairs
        files = {
            name: write_key_pair(pair, directory / name) for name, pair in pairs.items()
        }
        allow_list = directory / "nodes.toml"
        allow_list.write_text(
            "\n".join(
                f"[clients.{name}]\npublic_key = '{pairs[name].public_key}'\n"
                "roles = ['observe']"
                for name in ("known", "node")
            ),
            encoding="utf-8",
        )
        readers = [
            CallerEntry(name=name, public_key=pairs[name].public_key, read=["*/*"])
            for name in ("unknown",)
        ]
        self.access = AccessList(
            callers=[
                *readers,
                CallerEntry(
                    name="known",
                    public_key=pairs["known"].public_key,
                    read=["*/*"],
                    write=["*/*"],
                ),
                CallerEntry(
                    name="node", public_key=pairs["node"].public_key, node=True
                ),
            ]
        )
        self.stage = ProxyStage(
            directory,
            ProxyConfig(
                access=self.access,
                direct_ticket_seconds=0.5,
                curve_public_key_file=files["proxy"].public_file,
                curve_secret_key_file=files["proxy"].secret_file,
            ),
            curve_public_key_file=files["node"].public_file,
            curve_secret_key_file=files["node"].secret_file,
            allow_list_file=allow_list,
            readers=reader_count,
        )
        self.credentials = {
            name: Credentials(curve_secret_key_file=files[name].secret_file)
            for name in ("known", "unknown")
        }

    def publish(self) -> None:
        """Write the rows."""
        publisher = self.stage.publisher()
        publisher._credentials = self.credentials["known"]
        publisher.write({STATE: ROWS})


@pytest.fixture(params=[0, 1])
def curve(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Curve]:
    """Yield a cluster with CURVE and a state; the node, or a process of it, answers."""
    cluster = Curve(tmp_path, reader_count=request.param)
    with cluster.stage:
        cluster.publish()
        yield cluster


@pytest.mark.proves("C1")
class TestCurve:
    """With keys."""

    def test_who_is_on_the_nodes_list(self, curve: Curve) -> None:
        """D1: it asks the node, encrypted."""
        credentials = curve.credentials["known"]
        with QueryableStateClient(curve.stage.ha, credentials) as client:
            read_until_direct(curve.stage, client)
            assert len(client.get_many(JOB, STATE, KEYS)) == len(KEYS)

            def is_counted() -> bool:
                before = count(curve.stage)
                assert client.count(JOB, STATE) == len(dict(client.scan(JOB, STATE)))
                return count(curve.stage) >= before + 2

            wait_until(is_counted)

    def test_who_is_not(self, curve: Curve) -> None:
        """D3: its keys let it in at the proxy only; no read fails."""
        credentials = curve.credentials["unknown"]
        with QueryableStateClient(curve.stage.ha, credentials) as client:
            for _ in range(2):
                for key, delay in ROWS:
                    assert client.get(JOB, STATE, key) == {"delay": delay}
        assert count(curve.stage) == 0

    def test_a_stolen_ticket(self, curve: Curve) -> None:
        """D2: it is worth nothing over the connection of another key."""
        pairs = curve.pairs
        with ExitStack() as stack:
            victim, thief = (
                stack.enter_context(
                    ScriptedPeer(curve.stage.proxy.address, keys=pairs[name])
                )
                for name in ("unknown", "known")
            )
            victim.hello()
            thief.hello()
            given: list[DirectAccess] = []

            def is_given() -> bool:
                given.extend(filter(None, [access_of(thief)]))
                return bool(given)

            wait_until(is_given)
            (address,) = given[0].addresses
            assert address is not None
            at_node = stack.enter_context(ScriptedPeer(address, keys=pairs["known"]))

            def owns() -> bool:
                own = access_of(thief)
                return own is not None and code_of(ask(at_node, own.ticket)) == ""

            wait_until(owns)
            stolen = access_of(victim)
            assert stolen is not None
            assert code_of(ask(at_node, stolen.ticket)) == TICKET_REFUSED

    def test_a_right_that_is_withdrawn(self, curve: Curve) -> None:
        """D2: it ends within the life of a ticket."""
        credentials = curve.credentials["known"]
        with QueryableStateClient(curve.stage.ha, credentials) as client:
            read_until_direct(curve.stage, client)
            callers = tuple(
                evolve(one, read=["other/*"], write=["other/*"])
                if one.name == "known"
                else one
                for one in curve.access.callers or ()
            )
            curve.stage.proxy.reconfigure(
                evolve(curve.stage.proxy.config, access=AccessList(callers=callers))
            )

            def is_denied() -> bool:
                try:
                    client.get(JOB, STATE, "N7")
                except AccessDeniedError:
                    return True
                return False

            wait_until(is_denied)
