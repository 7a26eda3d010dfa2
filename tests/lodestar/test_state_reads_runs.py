from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from haservices import HAConfig, open_ha_services
from queryablestate.local_cluster import LocalStateCluster
from queryablestate.schema.schema import (
    AtomicType,
    DecimalType,
    Field,
    MapType,
    StateKind,
    StateSchema,
)
from tests.lodestar.publishing import Publisher
from tests.lodestar.running import call, environment, run


pytestmark = pytest.mark.shells

AIRCRAFT = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("tailnum", AtomicType.STRING),),
    value=(
        Field("origin", AtomicType.STRING),
        Field("delay", AtomicType.DOUBLE),
        Field("seen", AtomicType.TIMESTAMP),
        Field("fare", DecimalType(6, 2)),
        Field("tags", MapType(AtomicType.STRING, AtomicType.INT)),
    ),
)
ROUTES = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("origin", AtomicType.STRING), Field("day", AtomicType.DATE)),
    value=(Field("flights", AtomicType.BIGINT),),
)
DELAYS = StateSchema(
    kind=StateKind.MAP,
    key=(Field("tailnum", AtomicType.STRING),),
    map_key=(Field("origin", AtomicType.STRING),),
    value=(Field("minutes", AtomicType.INT),),
)
LOG = StateSchema(
    kind=StateKind.LIST,
    key=(Field("flight", AtomicType.INT),),
    value=(Field("event", AtomicType.STRING),),
)
STATES = {"aircraft": AIRCRAFT, "routes": ROUTES, "delays": DELAYS, "log": LOG}
Answer = Callable[..., tuple[int, str, str]]
SEEN = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
AIRCRAFT_ROWS = [
    ("N14228", "EWR", 2.5, SEEN, Decimal("99.50"), {"late": 1}),
    ("N24211", "LGA", None, SEEN, None, {}),
    (None, "JFK", 0.0, SEEN, Decimal("0.10"), None),
    ("-5,x", "JFK", 1.0, SEEN, None, None),
]


@pytest.fixture(scope="module")
def at(leader_server_url: str) -> Iterator[tuple[str, ...]]:
    """Return the options that name a name service with a proxy, nodes and state."""
    cluster_id = f"reads-{uuid.uuid4()}"
    config = HAConfig(url=leader_server_url, cluster_id=cluster_id, lease_seconds=3.0)
    with open_ha_services(config) as ha, LocalStateCluster(ha, nodes=2):
        publisher = Publisher(config, "flights", STATES)
        publisher.write(
            {
                "aircraft": AIRCRAFT_ROWS,
                "routes": [
                    (("JFK", date(2013, 1, 1)), 297),
                    (("JFK", date(2013, 1, 2)), 321),
                    (("LGA", date(2013, 1, 1)), 240),
                    (("a,b", None), 1),
                ],
                "delays": [
                    ("N14228", "EWR", 2),
                    ("N14228", "JFK", 33),
                    ("N24211", "LGA", 4),
                ],
                "log": [(7, f"event {number}") for number in range(5)],
            }
        )
        yield ("--url", leader_server_url, "--cluster-id", cluster_id)


@pytest.fixture
def answer(at: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> Answer:
    """Return what asks, and says how it ended."""

    def ask(verb: str, *arguments: str) -> tuple[int, str, str]:
        # Options first: behind a "--" there are only operands.
        result = call(capsys, verb, *at, *arguments)
        return result.exit_code, result.out, result.err

    return ask


class TestGet:
    """``lodestar get`` (N5)."""

    def test_the_columns_of_one_key(self, answer: Answer) -> None:
        """A line for each column, in the order of the schema."""
        code, out, err = answer("get", "flights", "aircraft", "N14228")
        assert (code, err) == (0, "")
        assert out.splitlines() == [
            "origin  EWR",
            "delay   2.5",
            "seen    2013-01-01T05:15:00Z",
            "fare    99.50",
            'tags    {"late":1}',
        ]

    def test_one_key_as_json(self, answer: Answer) -> None:
        """Q2: JSON has the value, exact, and as of when it is."""
        code, out, _ = answer("get", "flights", "aircraft", "N14228", "--json")
        assert code == 0
        document = json.loads(out)
        assert document.pop("age_seconds") >= 0
        assert document == {
            "key": "N14228",
            "value": {
                "origin": "EWR",
                "delay": 2.5,
                "seen": "2013-01-01T05:15:00Z",
                "fare": "99.50",
                "tags": {"late": 1},
            },
            "generation": 1,
            "batch_id": 0,
            "cached": False,
        }

    def test_several_keys(self, answer: Answer) -> None:
        """A table with the keys; as JSON an array in the order of the question."""
        keys = ("N24211", "N14228")
        code, out, _ = answer("get", "flights", "aircraft", *keys)
        assert code == 0
        lines = [line.split()[:3] for line in out.splitlines()]
        assert lines == [
            ["tailnum", "origin", "delay"],
            ["N24211", "LGA", "null"],
            ["N14228", "EWR", "2.5"],
        ]
        _, out, _ = answer("get", "flights", "aircraft", *keys, "--json")
        assert [each["key"] for each in json.loads(out)] == list(keys)

    @pytest.mark.proves("N5")
    def test_a_missing_key_is_exit_code_3(self, answer: Answer) -> None:
        """N5: not found is 3, with a line that names the key as it was typed."""
        code, out, err = answer("get", "flights", "aircraft", "N0")
        assert (code, out) == (3, "")
        assert err == "lodestar get: flights/aircraft holds nothing under 'N0'\n"

    @pytest.mark.proves("N5")
    def test_what_is_there_is_told_even_if_something_is_missing(
        self, answer: Answer
    ) -> None:
        """N5: 3 if any is missing, a line for each, and the others on stdout."""
        code, out, err = answer(
            *("get", "flights", "aircraft", "N0", "N14228", "N1", "--json")
        )
        assert code == 3
        assert [each["key"] for each in json.loads(out)] == ["N14228"]
        assert [line.split()[-1] for line in err.splitlines()] == ["'N0'", "'N1'"]

    def test_a_key_of_several_columns(self, answer: Answer) -> None:
        """Columns are separated by commas; JSON says what commas cannot."""
        code, out, _ = answer("get", "flights", "routes", "JFK,2013-01-01")
        assert (code, out) == (0, "flights  297\n")
        code, out, _ = answer(
            "get", "flights", "routes", '["a,b", null]', "--json-key", "--json"
        )
        assert code == 0
        document = json.loads(out)
        assert document["key"] == {"origin": "a,b", "day": None}
        again = json.dumps(document["key"])
        code, out, _ = answer("get", "flights", "routes", again, "--json-key")
        assert (code, out) == (0, "flights  1\n")

    def test_null_and_keys_like_options(self, answer: Answer) -> None:
        """Null has an option; what looks like an option stands behind ``--``."""
        code, out, _ = answer("get", "flights", "aircraft", "--null-key", "--json")
        assert (code, json.loads(out)["key"]) == (0, None)
        code, out, _ = answer("get", "flights", "aircraft", "--", "-5,x")
        assert code == 0
        code, _, err = answer("get", "flights", "routes", "--null-key")
        assert code == 2
        assert "--json-key" in err

    def test_a_map(self, answer: Answer) -> None:
        """A row for each entry; of one entry the columns; and so in JSON."""
        code, out, _ = answer("get", "flights", "delays", "N14228")
        assert code == 0
        assert [line.split() for line in out.splitlines()] == [
            ["origin", "minutes"],
            ["EWR", "2"],
            ["JFK", "33"],
        ]
        _, out, _ = answer("get", "flights", "delays", "N14228", "--json")
        assert json.loads(out)["value"] == [
            {"map_key": "EWR", "value": {"minutes": 2}},
            {"map_key": "JFK", "value": {"minutes": 33}},
        ]
        one = ("N14228", "--map-key", "JFK")
        assert answer("get", "flights", "delays", *one)[1] == "minutes  33\n"
        _, out, _ = answer("get", "flights", "delays", *one, "--json")
        assert json.loads(out) == {
            "key": "N14228",
            "map_key": "JFK",
            "value": {"minutes": 33},
        }
        code, _, err = answer("get", "flights", "delays", "N14228", "--map-key", "X")
        assert code == 3
        assert "('N14228', 'X')" in err

    def test_a_list(self, answer: Answer) -> None:
        """A line for each item, or for those that a slice means."""
        code, out, _ = answer("get", "flights", "log", "7")
        assert code == 0
        assert out.splitlines() == ["event", *(f"event {n}" for n in range(5))]
        code, out, _ = answer("get", "flights", "log", "7", "--start", "-2", "--json")
        assert json.loads(out) == {
            "key": 7,
            "value": [{"event": "event 3"}, {"event": "event 4"}],
        }

    @pytest.mark.proves("N5")
    def test_a_list_from_far_beyond_its_end(self, answer: Answer) -> None:
        """A slice means it; no message can say it, and the encoder's error was told."""
        far = "9" * 30
        code, out, err = answer(
            "get", "flights", "log", "7", "--start", f"-{far}", "--stop", far, "--json"
        )
        assert (code, err) == (0, "")
        assert len(json.loads(out)["value"]) == 5
        code, out, _ = answer("get", "flights", "log", "7", "--start", far, "--json")
        assert (code, json.loads(out)["value"]) == (0, [])

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("arguments", "code", "saying"),
        [
            (["flights", "aircraft"], 2, "KEY is wanted"),
            (["flights", "log", "x"], 2, "'x' is no key of (flight int): flight takes"),
            (["flights", "log", "99999999999"], 2, "is no key of (flight int)"),
            (["flights", "routes", "JFK"], 2, "2 values separated by commas"),
            (["flights", "aircraft", "N" * 500], 2, "at most 480"),
            (["flights", "aircraft", "N1", "--map-key", "x"], 2, "for a map state"),
            (["flights", "aircraft", "N1", "--start", "1"], 2, "for a list state"),
            (["flights", "aircraft", "N1", "--json-key"], 2, "it is not JSON"),
            (["flights", "nothing", "N1"], 3, "job 'flights' has no state 'nothing'"),
            (["nothing", "aircraft", "N1"], 3, "no state of a job 'nothing'"),
            (
                ["flights", "aircraft", "N1", "--min-batch", "9", "--deadline", "0.2"],
                5,
                "0.2",
            ),
        ],
    )
    def test_what_cannot_be_told_has_its_exit_code(
        self, answer: Answer, arguments: list[str], code: int, saying: str
    ) -> None:
        """N5: bad usage is 2, not found 3, not in time 5; one line each."""
        found, out, err = answer("get", *arguments)
        assert (found, out) == (code, ""), err
        assert saying in err
        assert len(err.splitlines()) == 1

    @pytest.mark.parametrize(
        ("arguments", "saying"),
        [
            (("rescale", "fligths", "--nodes", "1"), "did you mean 'flights'?"),
            (("drop-state", "flights", "logs", "--yes"), "did you mean 'log'?"),
            (("forget-job", "fligths", "--yes"), "did you mean 'flights'?"),
            (("snapshot", "fligths", "/nowhere"), "did you mean 'flights'?"),
            (
                ("operator-state", "flights", "offsets"),
                "job 'flights' has published no operator state 'offsets'",
            ),
        ],
    )
    def test_verbs_of_operators_too(
        self, answer: Answer, arguments: tuple[str, ...], saying: str
    ) -> None:
        """N5: an operator that rescales or drops may slip as well."""
        code, _, err = answer(*arguments)
        assert code == 3
        assert saying in err.splitlines()[-1]
        assert "there are 'aircraft'" not in err


class TestStates:
    """``lodestar states`` (N5)."""

    def test_a_line_for_each_state(self, answer: Answer) -> None:
        """What can be asked, with what its keys are and how old it is."""
        code, out, _ = answer("states", "flights")
        assert code == 0
        lines = out.splitlines()
        assert lines[0].split()[:4] == ["JOB", "STATE", "KIND", "KEY"]
        assert [line.split()[1] for line in lines[1:]] == sorted(STATES)
        assert "origin string, day date" in out
        assert answer("states")[1].split()[:4] == out.split()[:4]

    def test_the_documents(self, answer: Answer) -> None:
        """JSON has every column with its type."""
        code, out, _ = answer("states", "--json")
        assert code == 0
        by_name = {each["state"]: each for each in json.loads(out)}
        delays = by_name["delays"]
        assert delays["kind"] == "map"
        assert delays["key"] == [{"name": "tailnum", "type": "string"}]
        assert delays["map_key"] == [{"name": "origin", "type": "string"}]
        assert delays["value"] == [{"name": "minutes", "type": "int"}]
        assert delays["nodes"] == ["node-1", "node-2"]
        assert delays["max_parallelism"] == 128

    @pytest.mark.proves("N5")
    def test_an_unknown_job_is_exit_code_3(self, answer: Answer) -> None:
        """N5: not found is 3."""
        code, out, err = answer("states", "nothing")
        assert (code, out) == (3, "")
        assert "'nothing'" in err


class TestScan:
    """``lodestar scan`` (N5)."""

    def test_rows_in_the_order_of_the_keys(self, answer: Answer) -> None:
        """Over all nodes, nulls first."""
        code, out, err = answer("scan", "flights", "routes")
        assert (code, err) == (0, "")
        assert [line.split() for line in out.splitlines()] == [
            ["origin", "day", "flights"],
            ["JFK", "2013-01-01", "297"],
            ["JFK", "2013-01-02", "321"],
            ["LGA", "2013-01-01", "240"],
            ["a,b", "null", "1"],
        ]

    def test_json_lines(self, answer: Answer) -> None:
        """Each line is complete in itself; an entry has its map key, an item none."""
        _, out, _ = answer("scan", "flights", "delays", "--json", "--limit", "2")
        assert [json.loads(line) for line in out.splitlines()] == [
            {"key": "N14228", "map_key": "EWR", "value": {"minutes": 2}},
            {"key": "N14228", "map_key": "JFK", "value": {"minutes": 33}},
        ]
        _, out, _ = answer("scan", "flights", "log", "--json")
        assert [json.loads(line)["value"]["event"] for line in out.splitlines()] == [
            f"event {number}" for number in range(5)
        ]

    @pytest.mark.parametrize(
        ("state", "options", "first_keys"),
        [
            ("aircraft", ["--prefix", "N1"], ["N14228"]),
            ("aircraft", ["--start", "N2"], ["N24211"]),
            ("aircraft", ["--start", "A", "--stop", "N2"], ["N14228"]),
            ("aircraft", ["--start", '"N2"', "--json-key"], ["N24211"]),
            ("routes", ["--prefix", "LGA"], [{"origin": "LGA", "day": "2013-01-01"}]),
        ],
    )
    def test_a_part(
        self, answer: Answer, state: str, options: list[str], first_keys: list[object]
    ) -> None:
        """What keys begin with, where they start and where they stop."""
        code, out, err = answer("scan", "flights", state, "--json", *options)
        assert code == 0, err
        assert [json.loads(line)["key"] for line in out.splitlines()] == first_keys

    @pytest.mark.parametrize(
        ("options", "map_keys"),
        [
            (["--key", "N14228"], ["EWR", "JFK"]),
            (["--key", "N14228", "--start", "F"], ["JFK"]),
            (["--key", '"N14228"', "--json-key", "--stop", '"F"'], ["EWR"]),
            (["--key", "N1"], []),
        ],
    )
    def test_one_map(
        self, answer: Answer, options: list[str], map_keys: list[str]
    ) -> None:
        """The entries of one key, and of them those from one map key to another."""
        code, out, err = answer("scan", "flights", "delays", "--json", *options)
        assert code == 0, err
        found = [json.loads(line) for line in out.splitlines()]
        assert [one["map_key"] for one in found] == map_keys
        assert all(one["key"] == "N14228" for one in found)

    @pytest.mark.parametrize(
        ("state", "options", "saying"),
        [
            ("log", ["--key", "7"], "--key is for a map state; flights/log is a list"),
            ("delays", ["--key", "N1", "--prefix", "N"], "--prefix"),
        ],
    )
    def test_no_map(
        self, answer: Answer, state: str, options: list[str], saying: str
    ) -> None:
        """Exit code 2 for what has no entries, and for a prefix within a map."""
        code, _, err = answer("scan", "flights", state, *options)
        assert (code, len(err.splitlines())) == (2, 1)
        assert saying in err

    def test_nothing_there(self, answer: Answer) -> None:
        """An empty part is no error: a person is told so."""
        code, out, _ = answer("scan", "flights", "aircraft", "--prefix", "X")
        assert (code, out) == (0, "there are no rows\n")

    @pytest.mark.proves("N5")
    def test_wrong_usage(self, answer: Answer) -> None:
        """N5: exit code 2 for what is no key, 3 for what is not there."""
        code, _, err = answer("scan", "flights", "log", "--prefix", "1")
        assert (code, len(err.splitlines())) == (2, 1)
        assert answer("scan", "flights", "nothing")[0] == 3


@pytest.mark.proves("N5")
class TestMisspelt:
    """What is not there is answered with what may be meant (N5)."""

    @pytest.mark.parametrize(
        ("job", "state", "saying"),
        [
            ("fligths", "aircraft", "did you mean 'flights'?"),
            ("flights", "aircrafts", "did you mean 'aircraft'?"),
            ("zzz", "aircraft", "there are 'flights'"),
            ("flights", "zzz", "there are 'aircraft', 'delays', 'log', 'routes'"),
        ],
    )
    def test_jobs_and_states(
        self, answer: Answer, job: str, state: str, saying: str
    ) -> None:
        """N5: still one line, and exit code 3."""
        code, out, err = answer("get", job, state, "N14228")
        assert (code, out) == (3, "")
        assert saying in err
        assert len(err.splitlines()) == 1


class TestCount:
    """``lodestar count`` (N5)."""

    @pytest.mark.parametrize(
        ("state", "count"), [("aircraft", 4), ("routes", 4), ("delays", 2), ("log", 1)]
    )
    def test_keys_are_counted(self, answer: Answer, state: str, count: int) -> None:
        """Lists and maps count once for each key."""
        assert answer("count", "flights", state) == (0, f"{count}\n", "")
        _, out, _ = answer("count", "flights", state, "--json")
        assert json.loads(out) == {"job": "flights", "state": state, "count": count}

    @pytest.mark.proves("N5")
    def test_an_unknown_state_is_exit_code_3(self, answer: Answer) -> None:
        """N5: not found is 3."""
        assert answer("count", "flights", "nothing")[0] == 3


@pytest.mark.proves("N5")
class TestAsProcess:
    """The same from a shell."""

    def test_a_value(self, at: tuple[str, ...]) -> None:
        """N5: standard output has the answer, standard error nothing."""
        result = run("get", "flights", "aircraft", "N14228", *at)
        assert (result.exit_code, result.err) == (0, "")
        assert result.out.startswith("origin  EWR\n")

    def test_a_reader_that_has_had_enough(self, at: tuple[str, ...]) -> None:
        """N5: ``scan | head`` is done, and not failed."""
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb") as closed:
            done = subprocess.run(
                [sys.executable, "-m", "lodestar", "scan", "flights", "aircraft", *at],
                stdout=closed,
                stderr=subprocess.PIPE,
                timeout=60,
                env=environment(),
                check=False,
            )
        assert (done.returncode, done.stderr) == (0, b"")

    def test_no_proxy_is_exit_code_5(self, leader_server_url: str) -> None:
        """N5: a proxy that is away is no key that is not there."""
        result = run(
            *("get", "flights", "aircraft", "N14228", "--deadline", "3"),
            *("--url", leader_server_url, "--cluster-id", "no-proxy-here"),
        )
        assert (result.exit_code, result.out) == (5, "")
        assert "answers, but no proxy serves queryable state" in result.err
        assert len(result.err.splitlines()) == 1

    def test_no_name_service_is_exit_code_5(self) -> None:
        """N5: in time, however long connecting would be tried."""
        result = run(
            *("count", "flights", "aircraft", "--deadline", "0.5"),
            *("--url", "leaderserver://127.0.0.1:1"),
        )
        assert (result.exit_code, result.out) == (5, "")
        assert "leaderserver://127.0.0.1:1 did not answer" in result.err
        assert "proxy" not in result.err
        assert len(result.err.splitlines()) == 1


@pytest.mark.proves("N5")
def test_a_scan_that_is_cut_says_so(
    answer: Answer, leader_server_url: str, at: tuple[str, ...]
) -> None:
    """N5: people get 100 rows, and are told how to get more; ``--json`` gets all."""
    config = HAConfig(url=leader_server_url, cluster_id=at[-1], lease_seconds=3.0)
    publisher = Publisher(config, "long", {"log": LOG})
    publisher.write({"log": [(7, f"event {number}") for number in range(101)]})
    code, out, err = answer("scan", "long", "log")
    assert (code, len(out.splitlines())) == (0, 1 + 100)
    assert "the first 100 rows, there are more: say how many with --limit" in err
    code, out, err = answer("scan", "long", "log", "--json")
    assert (code, len(out.splitlines()), err) == (0, 101, "")
