from __future__ import annotations

import json
from datetime import date

from lodestar.state_output import found_text, rows_text, states_text
from queryablestate.client.documents import (
    FoundKey,
    found_document,
    row_document,
    state_document,
)
from queryablestate.client.results import StateEntry, StateInformation
from queryablestate.schema.schema import AtomicType, Field, StateKind, StateSchema


PAIR = StateSchema(
    kind=StateKind.VALUE,
    key=(Field("origin", AtomicType.STRING), Field("day", AtomicType.DATE)),
    value=(Field("flights", AtomicType.BIGINT), Field("raw", AtomicType.BINARY)),
)
MAP = StateSchema(
    kind=StateKind.MAP,
    key=(Field("tailnum", AtomicType.STRING),),
    map_key=(Field("origin", AtomicType.STRING), Field("year", AtomicType.INT)),
    value=(Field("minutes", AtomicType.INT),),
)
LIST = StateSchema(
    kind=StateKind.LIST,
    key=(Field("flight", AtomicType.INT),),
    value=(Field("event", AtomicType.STRING),),
)
KEY = ("JFK", date(2013, 1, 1))
ROW = {"flights": 297, "raw": b"\x00\xff"}
ENTRY = StateEntry(
    value=ROW, generation=2, batch_id=None, age_seconds=0.2500001, cached=True
)


class TestFound:
    def test_one_row_for_people(self) -> None:
        """A line for each column, values as they would be typed."""
        found = [FoundKey(KEY, (), ROW, ENTRY)]
        assert found_text(PAIR, found, is_one=True).splitlines() == [
            "flights  297",
            "raw      0x00ff",
        ]

    def test_several_rows_for_people(self) -> None:
        """Key columns first; a value that is not there yet is null."""
        found = [FoundKey(KEY, (), ROW, ENTRY), FoundKey(KEY, (), {}, ENTRY)]
        assert found_text(PAIR, found, is_one=False).splitlines() == [
            "origin  day         flights  raw",
            "JFK     2013-01-01  297      0x00ff",
            "JFK     2013-01-01  null     null",
        ]

    def test_maps_and_lists_for_people(self) -> None:
        """Of one key alone the key is not told; an empty map says so."""
        entries = {("JFK", 2013): {"minutes": 4}, ("LGA", None): {"minutes": 5}}
        found = [FoundKey("N1", (), entries, None)]
        assert found_text(MAP, found, is_one=True).splitlines() == [
            "origin  year  minutes",
            "JFK     2013  4",
            "LGA     null  5",
        ]
        found = [FoundKey(7, (), [{"event": "a"}, {"event": "b"}], None)]
        assert found_text(LIST, found, is_one=True).splitlines() == ["event", "a", "b"]
        assert found_text(LIST, found, is_one=False).splitlines() == [
            "flight  event",
            "7       a",
            "7       b",
        ]
        empty = [FoundKey(7, (), [], None)]
        assert found_text(LIST, empty, is_one=True) == "there are no rows"

    def test_a_text_stays_on_its_line(self) -> None:
        """What a job stored cannot move the cursor."""
        found = [FoundKey(7, (), [{"event": "a\nb\x1b"}], None)]
        assert found_text(LIST, found, is_one=True).splitlines() == [
            "event",
            "a\\nb\\x1b",
        ]

    def test_the_documents(self) -> None:
        """Q2: what is known of when it is; a key that can be given back."""
        document = found_document(PAIR, FoundKey(KEY, (), ROW, ENTRY))
        assert json.loads(json.dumps(document)) == {
            "key": {"origin": "JFK", "day": "2013-01-01"},
            "value": {"flights": 297, "raw": "AP8="},
            "generation": 2,
            "batch_id": None,
            "age_seconds": 0.25,
            "cached": True,
        }
        entries = {("JFK", 2013): {"minutes": 4}}
        assert found_document(MAP, FoundKey("N1", (), entries, None)) == {
            "key": "N1",
            "value": [
                {
                    "map_key": {"origin": "JFK", "year": 2013},
                    "value": {"minutes": 4},
                }
            ],
        }
        one = FoundKey("N1", (("JFK", 2013),), {"minutes": 4}, None)
        assert found_document(MAP, one) == {
            "key": "N1",
            "map_key": {"origin": "JFK", "year": 2013},
            "value": {"minutes": 4},
        }


class TestRows:
    def test_a_scan(self) -> None:
        """Key, map key and value have columns of their own."""
        rows = [("N1", (("JFK", 2013),), {"minutes": 4})]
        assert rows_text(MAP, rows).splitlines() == [
            "tailnum  origin  year  minutes",
            "N1       JFK     2013  4",
        ]
        assert row_document(MAP, *rows[0]) == {
            "key": "N1",
            "map_key": {"origin": "JFK", "year": 2013},
            "value": {"minutes": 4},
        }
        assert rows_text(MAP, []) == "there are no rows"


class TestStates:
    STATE = StateInformation(
        job_id="flights",
        name="routes",
        kind="value",
        schema="…",
        key_columns=("origin", "day"),
        map_key_columns=(),
        value_columns=("flights", "raw"),
        has_ttl=False,
        generation=1,
        batch_id=None,
        owner="query",
        max_parallelism=128,
        nodes=("n-1", "n-2"),
        age_seconds=None,
        registered_schema=PAIR,
    )

    def test_a_line_for_each(self) -> None:
        """Before the first batch there is neither a batch nor an age."""
        heading, line = states_text([self.STATE]).splitlines()
        assert " ".join(heading.split()) == (
            "JOB STATE KIND KEY BATCH AGE GENERATION NODES"
        )
        assert " ".join(line.split()) == (
            "flights routes value origin string, day date - - 1 n-1 n-2"
        )
        assert states_text([]) == "there are no states"

    def test_the_document(self) -> None:
        """Programs get every column with its type, and who writes."""
        assert state_document(self.STATE) == {
            "job": "flights",
            "state": "routes",
            "kind": "value",
            "key": [
                {"name": "origin", "type": "string"},
                {"name": "day", "type": "date"},
            ],
            "map_key": [],
            "value": [
                {"name": "flights", "type": "bigint"},
                {"name": "raw", "type": "binary"},
            ],
            "has_ttl": False,
            "generation": 1,
            "batch_id": None,
            "age_seconds": None,
            "query_id": "query",
            "max_parallelism": 128,
            "nodes": ["n-1", "n-2"],
        }
