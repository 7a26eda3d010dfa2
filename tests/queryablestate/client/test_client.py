# Made from test_async_client.py by `make twins`: change that file, not this one.
"""`QueryableStateClient` over real sockets, against proxies of every temper."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from haservices import HAConfig, HAServices, open_ha_services
from haservices.testing.reserved_port import ReservedPort
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    LocalProtocolError,
    NoLeaderError,
    RemoteProtocolError,
    UnreachableError,
)
from queryablestate import (
    Credentials,
    DeadlineExceededError,
    QueryableStateClient,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    WrongKeyTypeError,
)
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema
from queryablestate.wire.clients import Hello
from queryablestate.wire.codec import encode, encode_payload
from queryablestate.wire.questions import Ask, Reading, ScanRows, Told
from tests.queryablestate.scripted_proxy import Lead, Reply, ScriptedProxy, error_frame
from tests.queryablestate.scripted_state import (
    LIST_SCHEMA,
    MAP_SCHEMA,
    STATE,
    ScriptedState,
    row,
)
from tests.recording import WAIT_SECONDS
from zmqtransport import CurveKeyPair, Endpoint, parse_allow_list, write_key_pair


pytestmark = pytest.mark.shells

_names = itertools.count(1)


@pytest.fixture
def client(
    services: HAServices,
    proxy: ScriptedProxy,
) -> Iterator[QueryableStateClient]:
    """A client of that proxy."""
    opened = QueryableStateClient(services, deadline_seconds=WAIT_SECONDS)
    yield opened
    opened.close()


class TestKeys:
    def test_get(self, client: QueryableStateClient) -> None:
        """A key that exists is a dict; one that does not, an error or the default."""
        assert client.get(*STATE, "N7") == row(7)
        with pytest.raises(UnknownKeyError) as caught:
            client.get(*STATE, "X")
        assert caught.value.args == (*STATE, "X")
        assert client.get(*STATE, "X", default=None) is None
        assert client.get(*STATE, "X", 5) == 5

    def test_get_many(self, client: QueryableStateClient) -> None:
        """What exists is returned, under the keys as they were given."""
        assert client.get_many(*STATE, ["N1", "X", "N2"]) == {
            "N1": row(1),
            "N2": row(2),
        }
        assert client.get_many(*STATE, iter(["N3"])) == {"N3": row(3)}
        assert client.get_many(*STATE, []) == {}

    def test_get_many_in_small_portions(
        self, proxy: ScriptedProxy, client: QueryableStateClient
    ) -> None:
        """Questions are cut as the proxy wants them, and put together again."""
        proxy.keys_per_request_max = 7
        found = client.get_many(*STATE, [f"N{n}" for n in range(120)])
        assert found == {f"N{n}": row(n) for n in range(100)}

    @pytest.mark.proves("B1")
    def test_get_many_asks_for_each_key_once(
        self, proxy: ScriptedProxy, client: QueryableStateClient
    ) -> None:
        """B1: a large row is not sent as often as its key is named."""
        assert client.get_many(*STATE, ["N1"] * 600) == {"N1": row(1)}
        asks = [one for one in proxy.requests.items if isinstance(one, Ask)]
        assert sum(ask.key_count for ask in asks) == 1

    def test_get_many_with_keys_that_cannot_be_hashed(
        self, services: HAServices
    ) -> None:
        """They stand in the result in their normal form."""
        schema = StateSchema(
            kind=StateKind.VALUE,
            key=(Field("name", AtomicType.STRING), Field("day", AtomicType.INT)),
            value=(Field("delay", AtomicType.INT),),
        )
        state = ScriptedState(schema, {("N1", 3): (5,)})
        with ScriptedProxy(state) as proxy, Lead(services, proxy.address):
            with QueryableStateClient(services) as client:
                assert client.get(*STATE, ("N1", 3)) == {"delay": 5}
                asked: list[Any] = [{"name": "N1", "day": 3}, {"name": "N2", "day": 3}]
                assert client.get_many(*STATE, asked) == {("N1", 3): {"delay": 5}}

    def test_exists_and_lookup(self, client: QueryableStateClient) -> None:
        """A look at a key says whether there is something, and as of when."""
        assert client.exists(*STATE, "N1")
        assert not client.exists(*STATE, "X")
        entry = client.lookup(*STATE, "N1", min_batch_id=1)
        assert entry.value == row(1)
        assert (entry.generation, entry.batch_id, entry.cached) == (1, 1, False)
        assert entry.age_seconds == 0.007
        with pytest.raises(UnknownKeyError):
            client.lookup(*STATE, "X")
        absent = client.lookup(*STATE, "X", None)
        assert (absent.value, absent.generation, absent.batch_id) == (None, 1, 1)

    def test_lookup_of_a_part_that_values_have_not(
        self, client: QueryableStateClient
    ) -> None:
        """A value state has neither entries nor items."""
        for wrong in ({"map_key": "JFK"}, {"start": 0}, {"stop": 1}):
            with pytest.raises(LocalProtocolError, match="is a value state"):
                client.lookup(*STATE, "N1", **wrong)

    def test_lookup_of_a_part(self, services: HAServices) -> None:
        """An entry of a map and a slice of a list come with their batch, too."""
        maps = ScriptedState(
            MAP_SCHEMA, {"N1": {"JFK": ("A1", 1)}}, state_name="delays"
        )
        lists = ScriptedState(
            LIST_SCHEMA, {"N1": [(f"A{n}", n) for n in range(9)]}, job_id="others"
        )
        with ScriptedProxy(maps) as proxy, Lead(services, proxy.address):
            with QueryableStateClient(services) as client:
                name = ("flights", "delays")
                entry = client.lookup(*name, "N1", map_key="JFK")
                assert (entry.value, entry.batch_id) == (row(1), 1)
                entry = client.lookup(*name, "N1", None, map_key="SFO")
                assert (entry.value, entry.batch_id) == (None, 1)
                with pytest.raises(UnknownKeyError):
                    client.lookup(*name, "N1", map_key="SFO")
        with ScriptedProxy(lists) as proxy, Lead(services, proxy.address):
            with QueryableStateClient(services) as client:
                name = ("others", "aircraft")
                entry = client.lookup(*name, "N1", start=-2)
                assert (entry.value, entry.batch_id) == ([row(7), row(8)], 1)
                entry = client.lookup(*name, "N1", stop=1)
                assert (entry.value, entry.batch_id) == ([row(0)], 1)

    def test_lists(self, services: HAServices) -> None:
        """A list is read as a whole, or as a slice would."""
        rows = {"N1": [(f"A{n}", n) for n in range(20)]}
        with (
            ScriptedProxy(ScriptedState(LIST_SCHEMA, rows)) as proxy,
            Lead(services, proxy.address),
        ):
            with QueryableStateClient(services) as client:
                items = [row(n) for n in range(20)]
                assert client.get(*STATE, "N1") == items
                assert client.get_list(*STATE, "N1") == items
                assert client.get_list(*STATE, "N1", start=-3) == items[-3:]
                assert client.get_list(*STATE, "N1", start=2, stop=5) == items[2:5]
                assert client.get_list(*STATE, "N1", start=50) == []
                assert client.exists(*STATE, "N1")
                assert client.get_many(*STATE, ["N1", "X"]) == {"N1": items}
                with pytest.raises(UnknownKeyError):
                    client.get_list(*STATE, "X")
                scanned = list(client.scan(*STATE))
                assert scanned == [("N1", item) for item in items]
                assert client.count(*STATE) == 1

    def test_maps(self, services: HAServices) -> None:
        """A map is read as a whole, or entry by entry."""
        rows = {"N1": {"JFK": ("A1", 1), "LAX": ("A2", 2)}}
        with (
            ScriptedProxy(ScriptedState(MAP_SCHEMA, rows)) as proxy,
            Lead(services, proxy.address),
        ):
            with QueryableStateClient(services) as client:
                assert client.get(*STATE, "N1") == {"JFK": row(1), "LAX": row(2)}
                assert client.get_map_entry(*STATE, "N1", "LAX") == row(2)
                assert client.get_map_entry(*STATE, "N1", "SFO", default=None) is None
                with pytest.raises(UnknownKeyError):
                    client.get_map_entry(*STATE, "N1", "SFO")
                with pytest.raises(WrongKeyTypeError):
                    client.get_map_entry(*STATE, "N1", 7)
                assert list(client.scan(*STATE)) == [
                    (("N1", "JFK"), row(1)),
                    (("N1", "LAX"), row(2)),
                ]
                assert client.exists(*STATE, "N1")

    def test_a_map_page_by_page(self, services: HAServices) -> None:
        """Only the node that has the map is asked, and only for its entries."""
        entries = {f"A{n:02}": (f"A{n}", n) for n in range(30)}
        state = ScriptedState(
            MAP_SCHEMA, {"N1": entries, "N": entries, "N10": entries, "N2": {}}
        )
        asked: list[tuple[int, type]] = []

        def note(ask: Ask, _: bytes) -> Reply:
            asked.append((ask.node_index, type(ask.operation)))
            return None

        state.on_ask = note
        with ScriptedProxy(state) as proxy, Lead(services, proxy.address):
            proxy.keys_per_request_max = 10
            with QueryableStateClient(services) as client:
                found = list(client.scan_map(*STATE, "N1"))
                assert found == [(f"A{n:02}", row(n)) for n in range(30)]
                owner = state.owners[state.keys.key_group("N1")]
                assert asked == [(owner, ScanRows)] * 3

                def keys(**bounds: Any) -> list[str]:
                    scanned = client.scan_map(*STATE, "N1", **bounds)
                    return [key for key, _ in scanned]

                assert keys(start="A28") == ["A28", "A29"]
                assert keys(stop="A02") == ["A00", "A01"]
                assert keys(start="A11", stop="A20", limit=2) == ["A11", "A12"]
                assert keys(limit=0) == []
                assert list(client.scan_map(*STATE, "N2")) == []
                for bounds in ({"start": 7}, {"stop": 7}):
                    with pytest.raises(WrongKeyTypeError):
                        keys(**bounds)
                with pytest.raises(ConfigurationError):
                    client.scan_map(*STATE, "N1", limit=-1)

                page = client.page(*STATE, key="N1", start="A11", limit=2)
                assert [key for key, _ in page.rows] == [("N1", "A11"), ("N1", "A12")]
                assert page.next_after is not None
                page = client.page(*STATE, key="N1", stop="A14", after=page.next_after)
                assert [key for key, _ in page.rows] == [("N1", "A13")]
                assert page.next_after is None

    def test_a_map_that_moves_is_read_on(self, services: HAServices) -> None:
        """Its pages go on with its new node, from the entry where they were."""
        entries = {f"A{n:02}": (f"A{n}", n) for n in range(30)}
        state = ScriptedState(MAP_SCHEMA, {"N1": entries})
        with ScriptedProxy(state) as proxy, Lead(services, proxy.address):
            proxy.keys_per_request_max = 8

            def move() -> None:
                state.version += 1
                state.owners = tuple(1 - owner for owner in state.owners)

            found: list[str] = []
            with QueryableStateClient(services) as client:
                for key, _ in client.scan_map(*STATE, "N1"):
                    if len(found) in {5, 20}:
                        proxy.call(move)
                    found.append(key)
            assert found == list(entries)

    def test_what_is_no_map(self, client: QueryableStateClient) -> None:
        """A value state has no entries to go through."""
        with pytest.raises(LocalProtocolError, match="question to a map state"):
            next(client.scan_map(*STATE, "N1"))
        with pytest.raises(LocalProtocolError, match="question to a map state"):
            client.get_map_entry(*STATE, "N1", "JFK")


class TestWholeStates:
    @pytest.mark.parametrize("limit", [1, 7, 49, 50, 51, 1_000])
    def test_pages(self, client: QueryableStateClient, limit: int) -> None:
        """Page after page has what a scan has, and each says as of when."""
        scanned = list(client.scan(*STATE, start="N4"))
        found: list[Any] = []
        after: bytes | None = b""
        while after is not None:
            page = client.page(*STATE, start="N4", limit=limit, after=after)
            assert (page.generation, page.batch_id, page.age_seconds) == (1, 1, 0.007)
            assert len(page.rows) == min(limit, len(scanned) - len(found))
            found += page.rows
            after = page.next_after
        assert found == scanned

    def test_pages_of_large_rows(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Where nodes answer with few rows a page has few, and none is left out."""
        state.page_row_count_max = 3
        found: list[Any] = []
        after: bytes | None = b""
        while after is not None:
            page = client.page(*STATE, limit=50, after=after)
            assert 1 <= len(page.rows) <= 6  # of two nodes
            found += page.rows
            after = page.next_after
        assert found == list(client.scan(*STATE))

    @pytest.mark.proves("F7")
    @pytest.mark.parametrize("max_parallelism", [2, 8, 16])
    def test_another_state_of_the_same_name(
        self,
        state: ScriptedState,
        client: QueryableStateClient,
        max_parallelism: int,
    ) -> None:
        """
        Rows of two states are never told as those of one.

        A scan went on in the new state, behind the last row of the old one.
        """
        state.page_row_count_max = 3
        rows = client.scan(*STATE)
        next(rows)
        state.state_number += 1_000_000
        state.max_parallelism = max_parallelism
        state.owners = (0, 1) * (max_parallelism // 2)
        with pytest.raises(StateUnavailableError, match="made anew"):
            list(rows)
        assert list(client.scan(*STATE))

    def test_another_state_before_the_first_row(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Nothing was told of the old one: the new one is read from its beginning."""
        expected = list(client.scan(*STATE))
        state.state_number += 1_000_000
        state.max_parallelism = 2
        state.owners = (1, 0)
        assert list(client.scan(*STATE)) == expected

    def test_the_page_of_nothing(self, client: QueryableStateClient) -> None:
        """No node is asked where no row can be, and none is asked for too many."""
        page = client.page(*STATE, start="N4", stop="N4")
        assert (page.rows, page.next_after, page.generation) == ([], None, None)
        for limit in (0, 1_001, True, 1.5):
            with pytest.raises(ConfigurationError, match="limit must be"):
                client.page(*STATE, limit=limit)  # type: ignore[arg-type]

    def test_scan(self, client: QueryableStateClient) -> None:
        """Rows of all nodes come in the order of their keys."""
        keys = sorted(f"N{n}" for n in range(100))
        found = list(client.scan(*STATE))
        assert [key for key, _ in found] == keys
        assert dict(found) == {f"N{n}": row(n) for n in range(100)}

    def test_scan_a_part(self, client: QueryableStateClient) -> None:
        """By prefix, by range, and no more than the limit."""

        def keys(**bounds: Any) -> list[str]:
            return [key for key, _ in client.scan(*STATE, **bounds)]

        assert keys(prefix="N5") == ["N5", *(f"N5{n}" for n in range(10))]
        assert keys(start="N97") == ["N97", "N98", "N99"]
        assert keys(start="N96", stop="N98") == ["N96", "N97"]
        assert keys(prefix="N9", start="N95", limit=2) == ["N95", "N96"]
        assert keys(stop="N1") == ["N0"]
        assert keys(prefix="Z") == []
        assert keys(limit=0) == []

    def test_scan_page_by_page(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Pages are fetched as they are needed, and not before."""
        proxy.keys_per_request_max = 10
        rows = client.scan(*STATE)
        assert state.ask_count == 0
        next(rows)
        assert state.ask_count == 2
        assert len(list(rows)) == 99
        assert state.ask_count > 8

    def test_scan_while_key_groups_move(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """A scan goes on where it was: nothing comes twice, nothing is lost."""
        proxy.keys_per_request_max = 8
        found: list[str] = []

        def move() -> None:
            state.version += 1
            state.owners = tuple(1 - owner for owner in state.owners)

        for key, _ in client.scan(*STATE):
            if len(found) in {10, 40}:
                proxy.call(move)
            found.append(key)
        assert found == sorted(f"N{n}" for n in range(100))

    def test_count(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Keys of all nodes are counted, by whatever route."""
        assert client.count(*STATE) == 100

        def move() -> None:
            state.version += 1

        proxy.call(move)
        assert client.count(*STATE) == 100

    def test_a_node_that_is_away(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Half a state is not passed off as a whole one."""

        def refuse(ask: Ask, _: bytes) -> Reply:
            if ask.node_index == 1:
                return error_frame(
                    "state-unavailable", ask.request_id, "?", None, (1, 3), 0.5, "away"
                )
            return None

        state.on_ask = refuse
        with pytest.raises(StateUnavailableError) as caught:
            client.count(*STATE)
        assert caught.value.key_groups == (1, 3)
        with pytest.raises(StateUnavailableError):
            list(client.scan(*STATE))

    @pytest.mark.proves("Q3")
    def test_a_route_that_stays_stale_ends_at_the_deadline(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Whole states are asked for no longer than the deadline either (Q3)."""
        state.on_ask = lambda ask, _: error_frame("stale-route", ask.request_id)
        began = time.monotonic()
        with pytest.raises(DeadlineExceededError):
            client.count(*STATE, deadline_seconds=0.3)
        with pytest.raises(DeadlineExceededError):
            next(client.scan(*STATE, deadline_seconds=0.3))
        with pytest.raises(DeadlineExceededError):
            client.get(*STATE, "N1", deadline_seconds=0.3)
        assert time.monotonic() - began < WAIT_SECONDS

    def test_what_makes_no_sense(self, client: QueryableStateClient) -> None:
        """Wrong arguments are told before anything is asked, where that is possible."""
        with pytest.raises(ConfigurationError, match="limit"):
            client.scan(*STATE, limit=-1)
        with pytest.raises(ConfigurationError, match="limit"):
            client.scan(*STATE, limit=1.5)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(ConfigurationError, match="state_name"):
            client.scan("flights", "")
        with pytest.raises(ConfigurationError, match=r"job_id.*without '/'"):
            client.get("a/b", "state", "N1")
        with pytest.raises(ConfigurationError, match=r"job_id.*without '/'"):
            client.describe_all("a/b")
        with pytest.raises(WrongKeyTypeError):
            next(client.scan(*STATE, start=7))


class TestWhatThereIs:
    def test_jobs_and_states(self, client: QueryableStateClient) -> None:
        """What exists is told by name."""
        assert client.jobs() == ["flights"]
        assert client.states("flights") == ["aircraft"]
        (only,) = client.describe_all("flights")
        assert only == client.describe(*STATE)
        assert (only.name, only.kind, only.owner) == ("aircraft", "value", "query")

    def test_what_is_not_there(self, client: QueryableStateClient) -> None:
        """Jobs and states that do not exist are different errors."""
        with pytest.raises(UnknownJobError):
            client.get("nothing", "aircraft", "N1")
        with pytest.raises(UnknownJobError):
            client.states("nothing")
        with pytest.raises(UnknownStateError):
            client.get("flights", "nothing", "N1")
        with pytest.raises(UnknownStateError):
            client.describe("flights", "nothing")
        with pytest.raises(UnknownStateError):
            client.count("flights", "nothing")

    @pytest.mark.parametrize(
        ("call", "said"),
        [
            (lambda c: c.get("", "s", 1), "job_id"),
            (lambda c: c.get("j", "x" * 256, 1), "state_name"),
            (lambda c: c.get("j", "\ud800", 1), "state_name"),
            (lambda c: c.get(7, "s", 1), "job_id"),
            (lambda c: c.get("j", [], 1), "state_name"),
            (lambda c: c.get_many("j", "s", "N1"), r"write \['N1'\]"),
            (lambda c: c.get_many("j", "s", 1), r"write \[1\]"),
            (lambda c: c.states(""), "job_id"),
            (lambda c: c.describe("j", ""), "state_name"),
            (lambda c: c.get("j", "s", 1, deadline_seconds=0), "deadline_seconds"),
            (lambda c: c.get("j", "s", 1, deadline_seconds=-1), "deadline_seconds"),
            (
                lambda c: c.get("j", "s", 1, deadline_seconds=float("nan")),
                "deadline_seconds",
            ),
            (lambda c: c.jobs(deadline_seconds="5"), "deadline_seconds"),
            (lambda c: c.get("j", "s", 1, min_batch_id=-1), "min_batch_id"),
            (lambda c: c.count("j", "s", min_batch_id=True), "min_batch_id"),
        ],
    )
    def test_wrong_arguments(
        self,
        client: QueryableStateClient,
        call: Callable[[QueryableStateClient], object],
        said: str,
    ) -> None:
        """The error names the argument."""
        with pytest.raises((ConfigurationError, UnknownJobError), match=said):
            call(client)


class TestRefusals:
    @pytest.mark.proves("Q4")
    def test_unavailable_at_once(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """Rule Q4: the others go on being answered, these fail and are named."""
        state.on_ask = lambda ask, _: (
            error_frame(
                "state-unavailable", ask.request_id, "?", None, (1, 3, 5, 7), 0.5, "x"
            )
            if ask.node_index == 1
            else None
        )
        keys = [f"N{n}" for n in range(20)]
        here = [key for key in keys if state.owners[state.keys.key_group(key)] == 0]
        away = [key for key in keys if key not in here]
        assert (client.get_many(*STATE, here)).keys() == set(here)
        with pytest.raises(StateUnavailableError) as caught:
            client.get_many(*STATE, keys)
        groups = sorted({state.keys.key_group(key) for key in away})
        assert caught.value.key_groups == tuple(groups)
        assert caught.value.retry_after_seconds == 0.5
        partial = client.get_many(*STATE, [*keys, "X"], partial=True)
        assert partial.values.keys() == set(here)
        assert set(partial.unavailable) - {"X"} == set(away)
        assert isinstance(partial.error, StateUnavailableError)

    def test_everything_there_is_no_partial_result(
        self, client: QueryableStateClient
    ) -> None:
        """With all nodes there, nothing is unavailable."""
        found = client.get_many(*STATE, ["N1", "X"], partial=True)
        assert (found.values, found.unavailable, found.error) == (
            {"N1": row(1)},
            (),
            None,
        )
        assert (client.get_many(*STATE, [], partial=True)).values == {}

    def test_rate_limits(
        self, state: ScriptedState, client: QueryableStateClient
    ) -> None:
        """The error says when to come again, and the next question is asked."""
        state.on_ask = lambda ask, _: error_frame(
            "rate-limited", ask.request_id, 2.5, "caller"
        )
        with pytest.raises(RateLimitedError) as caught:
            client.get(*STATE, "N1")
        assert caught.value.retry_after_seconds == 2.5
        state.on_ask = None
        assert client.get(*STATE, "N1") == row(1)

    def test_no_credential(self, services: HAServices, state: ScriptedState) -> None:
        """A token that is not known is told at once, not at the deadline."""
        with ScriptedProxy(state) as proxy, Lead(services, proxy.address):
            with QueryableStateClient(services, "wrong") as client:
                proxy.greet = lambda hello: error_frame(
                    "not-authenticated", hello.request_id, "the proxy", "unknown token"
                )
                with pytest.raises(AuthenticationError, match="unknown token"):
                    client.get(*STATE, "N1")
                (hello,) = proxy.requests.items
                assert isinstance(hello, Hello)
                assert hello.token == "wrong"

    def test_a_token_file_that_is_gone(
        self, services: HAServices, proxy: ScriptedProxy, tmp_path: Path
    ) -> None:
        """One that asks hears about the file."""
        credentials = Credentials(token_file=tmp_path / "none")
        with QueryableStateClient(services, credentials) as client:
            with pytest.raises(ConfigurationError, match="cannot be read"):
                client.get(*STATE, "N1")

    def test_curve(
        self, services: HAServices, state: ScriptedState, tmp_path: Path
    ) -> None:
        """Keys admit whom the proxy lists, and tell strangers what they are."""
        mine = CurveKeyPair.generate()
        files = write_key_pair(mine, tmp_path / "mine")
        allow_list = parse_allow_list(
            f"[clients.me]\npublic_key = '{mine.public_key}'\nroles = ['observe']",
            source="test",
        )
        with (
            ScriptedProxy(
                state, key_pair=CurveKeyPair.generate(), allow_list=allow_list
            ) as proxy,
            Lead(services, proxy.address),
        ):
            credentials = Credentials(curve_secret_key_file=files.secret_file)
            with QueryableStateClient(services, credentials) as client:
                assert client.get(*STATE, "N1") == row(1)
            with QueryableStateClient(services) as stranger:
                with pytest.raises(AuthenticationError, match="allow-list"):
                    stranger.get(*STATE, "N1")


class TestTrouble:
    def test_another_version(
        self, proxy: ScriptedProxy, client: QueryableStateClient
    ) -> None:
        """A proxy that never said what can be read is not waited for."""
        proxy.greet = lambda _: [b"LDQ\x63"]
        with pytest.raises(RemoteProtocolError, match="version 99"):
            client.get(*STATE, "N1")

    def test_nobody_leads(self, services: HAServices) -> None:
        """Without a proxy the error says so, in time."""
        with QueryableStateClient(services, deadline_seconds=0.2) as client:
            with pytest.raises(NoLeaderError):
                client.get(*STATE, "N1")

    def test_no_name_service(self) -> None:
        """A name service that does not answer is another error."""
        nowhere = HAConfig(
            url="leaderserver://127.0.0.1:1", connect_timeout_seconds=0.2
        )
        with QueryableStateClient(nowhere, deadline_seconds=1.0) as client:
            with pytest.raises(UnreachableError):
                client.get(*STATE, "N1")

    def test_no_name_service_within_a_short_deadline(self) -> None:
        """Also where connecting may take longer than the question."""
        url = "leaderserver://127.0.0.1:1"
        with QueryableStateClient(url, deadline_seconds=0.2) as client:
            with pytest.raises(UnreachableError, match="did not answer within"):
                client.get(*STATE, "N1")

    @pytest.mark.proves("Q3")
    def test_why_the_name_service_does_not_answer(self) -> None:
        """A deadline as long as the connect timeout is told what was seen, too (Q3)."""
        nowhere = HAConfig(
            url="leaderserver://127.0.0.1:1", connect_timeout_seconds=2.0
        )
        with QueryableStateClient(nowhere, deadline_seconds=2.0) as client:
            with pytest.raises(UnreachableError) as caught:
                client.get(*STATE, "N1")
        # What is said is measured, and a busy machine takes a little longer.
        assert re.fullmatch(
            r"leaderserver://127\.0\.0\.1:1 did not answer within [2-9](\.\d)? s: "
            r"nothing listens at 127\.0\.0\.1:1: start it, or correct the port",
            str(caught.value),
        )

    def test_no_configuration(self) -> None:
        """What names no name service is refused in one line (E9)."""
        for config in (None, 7, HAConfig):
            with pytest.raises(ConfigurationError, match="a URL"):
                QueryableStateClient(config)  # type: ignore[arg-type]  # that is the point

    def test_the_proxy_restarts_while_nobody_asks(
        self, services: HAServices, state: ScriptedState, reserved: ReservedPort
    ) -> None:
        """A connection that closed meanwhile costs the next question nothing."""
        endpoint = Endpoint(host=reserved.host, port=reserved.port)
        proxy = ScriptedProxy(state, endpoint=endpoint)
        with Lead(services, proxy.address):
            with QueryableStateClient(
                services, deadline_seconds=WAIT_SECONDS
            ) as client:
                assert client.get(*STATE, "N1") == row(1)
                proxy.close()
                with ScriptedProxy(state, endpoint=endpoint):
                    assert client.get(*STATE, "N2") == row(2)

    def test_the_leader_changes_while_nobody_asks(
        self, services: HAServices, state: ScriptedState
    ) -> None:
        """The next question goes to the new leader, not to the old one."""
        with ScriptedProxy(state) as old, ScriptedProxy(state) as new:
            with QueryableStateClient(
                services, deadline_seconds=WAIT_SECONDS
            ) as client:
                with Lead(services, old.address):
                    client.get(*STATE, "N1")
                old.is_silent = True
                with Lead(services, new.address):
                    assert client.get(*STATE, "N2") == row(2)

    def test_sessions_that_are_forgotten(
        self, proxy: ScriptedProxy, client: QueryableStateClient
    ) -> None:
        """A session that the proxy dropped is opened again."""
        for number in range(5):
            proxy.call(proxy.forget_sessions)
            assert client.get(*STATE, f"N{number}") == row(number)

    def test_slow_answers(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Late is late: the deadline is kept, and the late answer does no harm."""
        held: list[tuple[bytes, Ask, bytes]] = []

        def hold(ask: Ask, payload: bytes) -> Reply:
            held.append((proxy.last_routing_id, ask, payload))
            return [b"LDQ"]

        client.get(*STATE, "N1")
        state.on_ask = hold
        with pytest.raises(DeadlineExceededError, match="gave no answer"):
            client.get(*STATE, "N1", deadline_seconds=0.2)
        state.on_ask = None
        (routing_id, ask, payload) = held[0]
        proxy.call(lambda: proxy.send(routing_id, state.answer(ask, payload)))
        assert client.get(*STATE, "N2") == row(2)

    @pytest.mark.proves("Q2")
    def test_a_least_batch_is_waited_for(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Rule Q2: the question carries it, and how long it may be waited for."""
        asks: list[Ask] = []

        def note(ask: Ask, _: bytes) -> Reply:
            asks.append(ask)
            return None

        state.on_ask = note
        client.get(*STATE, "N1", min_batch_id=7, deadline_seconds=2)
        assert asks[0].min_batch_id == 7
        assert asks[0].deadline_ms is not None
        assert 0 < asks[0].deadline_ms <= 2_000

    @pytest.mark.proves("Q1")
    def test_answers_do_not_go_back_in_time(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """Rule Q1: an answer older than one before is not delivered."""
        state.batch_ids = [5, 5]
        assert (client.lookup(*STATE, "N1")).batch_id == 5
        state.batch_ids = [4, 4]

        def catch_up(ask: Ask, _: bytes) -> Reply:
            if ask.min_batch_id == 5:
                state.batch_ids = [5, 5]
            return None

        state.on_ask = catch_up
        assert (client.lookup(*STATE, "N1")).batch_id == 5
        assert state.ask_count == 3

    @pytest.mark.parametrize(
        "rubbish",
        [
            [b""],
            [b"HTTP/1.1 400"],
            [b"LDQ\x01\xc1", b"\xc1"],
            [b"LDQ\x63"],
            [b"LDQ\x01" + msgspec.msgpack.encode({"type": "told"})],
            [b"a", b"b", b"c", b"d", b"e"],
            [bytes(100_000)],
        ],
        ids=["empty", "stranger", "no-msgpack", "version", "no-told", "frames", "big"],
    )
    def test_rubbish_is_passed_over(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
        rubbish: list[bytes],
    ) -> None:
        """A malformed message is logged, and is no answer to anything."""

        def spoil(ask: Ask, payload: bytes) -> Reply:
            for _ in range(3):
                proxy.send(proxy.last_routing_id, rubbish)
            return None

        state.on_ask = spoil
        with capture_logs() as logs:
            assert client.get(*STATE, "N1") == row(1)
            assert client.get(*STATE, "N2") == row(2)
        assert {log["event"] for log in logs} >= {"frame.dropped"}

    @pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x91\x07"])
    def test_an_answer_without_sense(
        self, state: ScriptedState, client: QueryableStateClient, payload: bytes
    ) -> None:
        """What answers the question with nonsense is an error, and not fatal."""
        reading = Reading(generation=9, batch_id=9, age_ms=0)

        def lie(ask: Ask, _: bytes) -> Reply:
            told = Told(request_id=ask.request_id, reading=reading)
            return [encode(told), payload]

        state.on_ask = lie
        with pytest.raises(RemoteProtocolError):
            client.get(*STATE, "N1")
        with pytest.raises(RemoteProtocolError):
            client.count(*STATE)
        state.on_ask = None
        assert client.get(*STATE, "N1") == row(1)

    def test_an_answer_to_something_else(self, services: HAServices) -> None:
        """A reply of the wrong kind is an error of the proxy."""
        state = ScriptedState()

        def confuse(message: msgspec.Struct, _: bytes) -> Reply:
            reading = Reading(generation=1, batch_id=1, age_ms=0)
            return Told(request_id=message.request_id, reading=reading)  # type: ignore[attr-defined]  # every request has one

        with ScriptedProxy(confuse) as proxy, Lead(services, proxy.address):
            with QueryableStateClient(services) as client:
                with pytest.raises(RemoteProtocolError, match="no answer"):
                    client.jobs()
                proxy.handle = state
                assert client.jobs() == ["flights"]

    def test_too_large_to_be_taken(
        self,
        proxy: ScriptedProxy,
        state: ScriptedState,
        client: QueryableStateClient,
    ) -> None:
        """A frame above the limit costs the connection, and the deadline at most."""
        big = encode_payload([b"x" * (70 * 1024 * 1024)])
        state.on_ask = lambda ask, _: [
            b"LDQ\x01"
            + msgspec.msgpack.encode(
                {
                    "type": "told",
                    "request_id": ask.request_id,
                    "reading": {"generation": 1, "batch_id": 1, "age_ms": 0},
                }
            ),
            big,
        ]
        with pytest.raises(DeadlineExceededError):
            client.get(*STATE, "N1", deadline_seconds=1.0)
        state.on_ask = None
        assert client.get(*STATE, "N1") == row(1)


class TestClosing:
    def test_a_client_that_never_asked(self, services: HAServices) -> None:
        """Closing what was hardly opened is no trouble."""
        QueryableStateClient(services).close()

    def test_services_that_were_given_stay_open(
        self, services: HAServices, proxy: ScriptedProxy
    ) -> None:
        """Only what the client opened itself is closed with it."""
        with QueryableStateClient(services) as client:
            client.get(*STATE, "N1")
        with QueryableStateClient(services) as client:
            client.get(*STATE, "N1")

    def test_a_url_is_enough(self, state: ScriptedState) -> None:
        """A client opens the name service itself, from a URL or a configuration."""
        name = f"embedded:url-{next(_names)}"
        with (
            open_ha_services(name) as services,
            ScriptedProxy(state) as proxy,
            Lead(services, proxy.address),
        ):
            for config in (name, HAConfig(url=name)):
                with QueryableStateClient(config) as client:
                    assert client.get(*STATE, "N1") == row(1)

    def test_wrong_settings(self, services: HAServices) -> None:
        """What is wrong is told where the client is made."""
        with pytest.raises(ConfigurationError, match="deadline_seconds"):
            QueryableStateClient(services, deadline_seconds=0)
        with pytest.raises(ConfigurationError):
            QueryableStateClient("nonsense")

    def test_whoever_asks_too_late(self, services: HAServices) -> None:
        """A client that is closed answers nothing, and can be closed again."""
        client = QueryableStateClient(services)
        client.close()
        client.close()
        with pytest.raises(LocalProtocolError):
            client.get(*STATE, "N1")
