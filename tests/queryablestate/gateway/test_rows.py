"""Rows over HTTP: pages, whole states, and their formats."""

from __future__ import annotations

import csv
import http.client
import io
import json
from datetime import date
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest

from queryablestate import QueryableStateClient
from tests.queryablestate.gateway.asking import Asker
from tests.queryablestate.gateway.conftest import NAMES, Served


pytestmark = [pytest.mark.shells, pytest.mark.proves("F2")]

JOB = "/v1/jobs/flights"
AIRCRAFT = f"{JOB}/states/aircraft/rows"
DELAYS = f"{JOB}/states/delays/rows"
LOG = f"{JOB}/states/log/rows"
ENTRIES = f"{JOB}/states/delays/keys/N1/entries"


def keys(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the keys of rows, in their order."""
    return [row["key"] for row in rows]


class TestPages:
    """F2: JSON is a page."""

    @pytest.mark.parametrize("limit", [1, 99, 125, 250, 1_000])
    def test_page_after_page(self, ask: Asker, limit: int) -> None:
        """All rows in the order of their keys, each once; and each page's batch."""
        if limit == 1:
            path, expected = f"{AIRCRAFT}?prefix=N00&limit=1", NAMES[:10]
        else:
            path, expected = f"{AIRCRAFT}?limit={limit}", NAMES
        found: list[Any] = []
        token: str | None = ""
        while token is not None:
            answer = ask.get(f"{path}&page_token={token}" if token else path)
            document = answer.document
            assert (document["generation"], document["batch_id"]) == (1, 0)
            assert len(document["rows"]) == min(limit, len(expected) - len(found))
            found += keys(document["rows"])
            token = document["next_page_token"]
            assert answer.headers.get("lodestar-next-page-token") == token
            assert ("link" in answer.headers) is (token is not None)
        assert tuple(found) == expected

    def test_a_hundred_rows_unless_it_is_said(self, ask: Asker) -> None:
        """A person who looks is not sent a million."""
        document = ask.get(AIRCRAFT).document
        assert keys(document["rows"]) == list(NAMES[:100])
        assert document["next_page_token"]

    def test_the_link_leads_to_the_next_page(self, ask: Asker) -> None:
        """Clients follow it without knowing what a token is."""
        answer = ask.get(f"{AIRCRAFT}?limit=2&prefix=N1")
        link = answer.headers["link"]
        assert link.endswith('>; rel="next"')
        query = link.removeprefix("<").partition(">")[0]
        assert keys(ask.get(f"{AIRCRAFT}{query}").document["rows"]) == ["N102", "N103"]

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("prefix=N24", NAMES[240:250]),
            ("start=N245", NAMES[245:]),
            ("start=N003&stop=N005", NAMES[3:5]),
            ("prefix=N00&start=N008", NAMES[8:10]),
            ("prefix=X", ()),
            ("start=N005&stop=N003", ()),
        ],
    )
    def test_a_part_of_a_state(
        self, ask: Asker, query: str, expected: tuple[str, ...]
    ) -> None:
        """By the beginning of keys, from a key on, up to a key."""
        document = ask.get(f"{AIRCRAFT}?{query}").document
        assert tuple(keys(document["rows"])) == expected
        assert (document["generation"], document["batch_id"]) == (1, 0)

    def test_maps_and_lists(self, ask: Asker) -> None:
        """A row for each entry, and for each item."""
        rows = ask.get(f"{DELAYS}?prefix=N2").document["rows"]
        assert rows == [{"key": "N2", "map_key": "JFK", "value": {"minutes": None}}]
        rows = ask.get(f"{LOG}?limit=2").document["rows"]
        assert [row["value"]["event"] for row in rows] == ["e0", "e1"]
        more = ask.get(f"{LOG}?limit=2").document["next_page_token"]
        rows = ask.get(f"{LOG}?limit=2&page_token={more}").document["rows"]
        assert [row["value"]["event"] for row in rows] == ["e2", "e3"]

    def test_the_entries_of_one_map(self, ask: Asker) -> None:
        """From a map key on; page by page, too."""
        document = ask.get(f"{ENTRIES}?start=A03&limit=2").document
        assert [row["map_key"] for row in document["rows"]] == ["A03", "A04"]
        token = document["next_page_token"]
        path = f"{ENTRIES}?start=A03&stop=A07&limit=2"
        assert ask.get(f"{path}&page_token={token}").status == 400  # another question
        document = ask.get(f"{ENTRIES}?start=A03&limit=2&page_token={token}").document
        assert [row["map_key"] for row in document["rows"]] == ["A05", "A06"]
        nothing = ask.get(f"{JOB}/states/delays/keys/X/entries").document
        assert nothing["rows"] == []

    @pytest.mark.parametrize(
        "query",
        [
            "limit=0",
            "limit=1001",
            "limit=x",
            "limit=-1",
            "page_token=",
            "page_token=x",
            "page_token=%00",
            "page_token=DMeVwsngR-wBTjEAAAFDAAAA",
            "key=N1",
        ],
    )
    def test_what_cannot_be_asked(self, ask: Asker, query: str) -> None:
        """400 names the parameter."""
        answer = ask.get(f"{AIRCRAFT}?{query}")
        assert (answer.status, answer.problem) == (400, "bad-request")
        if "key" not in query:
            assert answer.document["parameter"] == query.partition("=")[0]


class TestWholeStates:
    """F2: JSON lines, CSV and Arrow are all rows."""

    def test_json_lines(self, ask: Asker) -> None:
        """An object on each line."""
        answer = ask.get(AIRCRAFT, Accept="application/x-ndjson")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["lodestar-batch-id"] == "0"
        found = [json.loads(line) for line in answer.body.splitlines()]
        assert keys(found) == list(NAMES)

    def test_csv(self, ask: Asker) -> None:
        """A heading and a line for each row; what needs quotes has them."""
        answer = ask.get(LOG, Accept="text/csv;q=0.9, application/json;q=0.5")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.reader(io.StringIO(answer.body.decode())))
        assert rows[0] == ["carrier", "day", "event", "fare"]
        assert rows[1] == ["AA", "2026-03-01", "e0", "0.00"]
        assert rows[-1] == ["x,y", "2026-03-01", "z", ""]

    def test_arrow(self, served: Served) -> None:
        """A table with the types of the schema; the same that a client makes."""
        answer = served.ask.get(f"{LOG}?format=arrow")
        table = pa.ipc.open_stream(answer.body).read_all()
        assert table.schema.metadata[b"lodestar.batch_id"] == b"0"
        assert table.to_pylist()[1] == {
            "carrier": "AA",
            "day": date(2026, 3, 1),
            "event": "e1",
            "fare": Decimal("1.00"),
        }
        with QueryableStateClient(served.config) as client:
            expected = client.table("flights", "aircraft")
        answer = served.ask.get(f"{JOB}/states/aircraft/rows?format=arrow")
        assert pa.ipc.open_stream(answer.body).read_all().equals(expected)

    @pytest.mark.parametrize("name", ["ndjson", "csv", "arrow"])
    def test_pages_of_them(self, ask: Asker, name: str) -> None:
        """With a limit they are a page, and headers say where the next one is."""
        path = f"{AIRCRAFT}?format={name}&limit=200"
        first = ask.get(path)
        token = first.headers["lodestar-next-page-token"]
        second = ask.get(f"{path}&page_token={token}")
        assert "lodestar-next-page-token" not in second.headers
        counts = [self.row_count(name, each.body) for each in (first, second)]
        assert counts == [200, 50]

    @staticmethod
    def row_count(name: str, body: bytes) -> int:
        """Return how many rows *body* has."""
        if name == "arrow":
            count: int = pa.ipc.open_stream(body).read_all().num_rows
            return count
        return len(body.splitlines()) - (name == "csv")

    @pytest.mark.parametrize("name", ["ndjson", "csv", "arrow"])
    def test_nothing(self, ask: Asker, name: str) -> None:
        """No row, but what says which columns there would be."""
        answer = ask.get(f"{AIRCRAFT}?format={name}&prefix=X")
        assert answer.status == 200
        assert self.row_count(name, answer.body) == 0

    def test_a_state_of_many_pages(self, served: Served) -> None:
        """Page after page in one answer; a client that leaves ends it."""
        rows = [(f"M{n:05}", n, None) for n in range(5_000)]
        served.publisher.write({"aircraft": rows})
        answer = served.ask.get(f"{AIRCRAFT}?format=ndjson&prefix=M")
        assert len(answer.body.splitlines()) == 5_000
        connection = http.client.HTTPConnection(*served.ask.address)
        connection.request("GET", f"{AIRCRAFT}?format=csv&prefix=M")
        assert connection.getresponse().read(1_000)
        connection.close()
        assert served.ask.get("/v1/jobs").status == 200

    @pytest.mark.parametrize(
        ("path", "accept"),
        [
            (f"{AIRCRAFT}?format=xml", "*/*"),
            (AIRCRAFT, "image/png"),
            (AIRCRAFT, "application/json;q=0"),
        ],
    )
    def test_another_format(self, ask: Asker, path: str, accept: str) -> None:
        """406 says which ones there are."""
        answer = ask.get(path, Accept=accept)
        assert (answer.status, answer.problem) == (406, "not-acceptable")
        assert "arrow" in answer.document["detail"]


@pytest.mark.parametrize("text", ["a b", "ü", "x/y", "&", "+"])
def test_parameters_are_percent_encoded(ask: Asker, text: str) -> None:
    """What stands behind the question mark is text of any kind, too."""
    assert ask.get(f"{AIRCRAFT}?prefix={quote(text, safe='')}").status == 200
