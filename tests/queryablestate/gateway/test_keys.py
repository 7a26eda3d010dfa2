"""Keys, entries, items and counts over HTTP, against a real cluster."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.queryablestate.gateway.asking import Answer, Asker
from tests.queryablestate.gateway.conftest import NAMES, ODD_NAMES, Served


pytestmark = [pytest.mark.shells, pytest.mark.proves("F2")]

JOB = "/v1/jobs/flights"
AIRCRAFT = f"{JOB}/states/aircraft"
DELAYS = f"{JOB}/states/delays"
LOG = f"{JOB}/states/log"
ODD = f"{JOB}/states/{quote('odd: ü&?', safe='')}"


def as_of(answer: Answer) -> tuple[Any, ...]:
    """Return as of when *answer* is: the same in its headers and in its document."""
    document, headers = answer.document, answer.headers
    assert headers["lodestar-generation"] == str(document["generation"])
    assert headers["lodestar-batch-id"] == str(document["batch_id"])
    assert abs(float(headers["lodestar-age-seconds"]) - document["age_seconds"]) < 0.001
    return (document["generation"], document["batch_id"])


class TestWhatThereIs:
    """F2: jobs and states."""

    def test_jobs(self, ask: Asker) -> None:
        """Those that have state."""
        assert ask.get("/v1/jobs").document == {"jobs": [{"job": "flights"}]}

    def test_states(self, ask: Asker) -> None:
        """Each with its schema and its last batch."""
        document = ask.get(f"{JOB}/states").document
        assert [one["state"] for one in document["states"]] == [
            "aircraft",
            "delays",
            "log",
            "odd: ü&?",
        ]

    def test_a_state(self, ask: Asker) -> None:
        """Columns with their types; as of when its last batch is."""
        answer = ask.get(DELAYS)
        assert as_of(answer) == (1, 0)
        document = answer.document
        assert document["kind"] == "map"
        assert document["key"] == [{"name": "tailnum", "type": "string"}]
        assert document["map_key"] == [{"name": "origin", "type": "string"}]
        assert document["value"] == [{"name": "minutes", "type": "int"}]

    @pytest.mark.parametrize(
        ("path", "problem"),
        [
            ("/v1/jobs/x/states", "unknown-job"),
            ("/v1/jobs/x/states/y", "unknown-job"),
            (f"{JOB}/states/y", "unknown-state"),
            (f"{JOB}/states/y/keys/k", "unknown-state"),
            (f"{JOB}/states/{'y' * 256}/count", "unknown-state"),
            ("/v1/jobs/%00/states", "unknown-job"),
            (f"{AIRCRAFT}/keys/X", "unknown-key"),
            (f"{DELAYS}/keys/N1/entries/X", "unknown-key"),
            ("/v1/jobs/", "unknown-path"),
            ("/v2/jobs", "unknown-path"),
            (f"{AIRCRAFT}/keys", "unknown-path"),
        ],
    )
    def test_what_is_not_there(self, ask: Asker, path: str, problem: str) -> None:
        """404, and the problem says what is missing."""
        answer = ask.get(path)
        assert (answer.status, answer.problem) == (404, problem)

    def test_counts(self, ask: Asker) -> None:
        """Keys; lists and maps count once for each."""
        counts = {"aircraft": len(NAMES), "delays": 2, "log": 2}
        for state, count in counts.items():
            answer = ask.get(f"{JOB}/states/{state}/count")
            assert as_of(answer) == (1, 0)
            assert answer.document["count"] == count


class TestKeys:
    """F2: what a state holds under a key."""

    def test_a_value(self, ask: Asker) -> None:
        """An object of its columns, typed as the schema says."""
        answer = ask.get(f"{AIRCRAFT}/keys/N007")
        assert as_of(answer) == (1, 0)
        assert answer.document["key"] == "N007"
        assert answer.document["value"] == {"delay": 7, "last": "2026-03-01T12:00:00Z"}
        assert answer.document["cached"] is False

    def test_nothing_says_as_of_when(self, ask: Asker) -> None:
        """That a key is not there is as of a batch, too."""
        answer = ask.get(f"{AIRCRAFT}/keys/X")
        assert as_of(answer) == (1, 0)

    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_any_key_can_be_said(self, ask: Asker, name: str) -> None:
        """Percent-encoded, a slash is no end of the key."""
        answer = ask.get(f"{ODD}/keys/{quote(name, safe='')}")
        assert answer.document["key"] == name
        # All 64 bits of it; what JSON has no number for is text.
        assert answer.document["value"] == {"n": 2**62 + 1, "x": "NaN"}

    def test_several_columns(self, ask: Asker) -> None:
        """Separated by commas, or as JSON."""
        expected = [{"event": f"e{n}", "fare": f"{n}.00"} for n in range(5)]
        as_json = quote(json.dumps({"day": "2026-03-01", "carrier": "AA"}), safe="")
        for path in ("AA,2026-03-01", f"{as_json}?json_key=true"):
            document = ask.get(f"{LOG}/keys/{path}").document
            assert document["key"] == {"carrier": "AA", "day": "2026-03-01"}
            assert document["value"] == expected
        as_json = quote('["x,y","2026-03-01"]', safe="")
        answer = ask.get(f"{LOG}/keys/{as_json}?json_key=1")
        assert answer.document["value"] == [{"event": "z", "fare": None}]

    def test_a_part_of_a_list(self, ask: Asker) -> None:
        """As a slice means it; with its batch, too."""
        for query, numbers in (
            ("start=-2", (3, 4)),
            ("start=1&stop=3", (1, 2)),
            ("stop=-4", (0,)),
            ("start=9", ()),
        ):
            answer = ask.get(f"{LOG}/keys/AA,2026-03-01?{query}")
            assert as_of(answer) == (1, 0)
            found = [item["event"] for item in answer.document["value"]]
            assert found == [f"e{number}" for number in numbers]

    def test_a_map(self, ask: Asker) -> None:
        """As a whole, or one entry of it."""
        document = ask.get(f"{DELAYS}/keys/N1").document
        assert document["value"][3] == {"map_key": "A03", "value": {"minutes": 3}}
        answer = ask.get(f"{DELAYS}/keys/N1/entries/A03")
        assert as_of(answer) == (1, 0)
        assert answer.document["map_key"] == "A03"
        assert answer.document["value"] == {"minutes": 3}

    @pytest.mark.parametrize(
        ("path", "problem"),
        [
            (f"{LOG}/keys/AA", "wrong-key"),
            (f"{LOG}/keys/AA,tomorrow", "wrong-key"),
            (f"{LOG}/keys/%5B1?json_key=true", "wrong-key"),
            (f"{AIRCRAFT}/keys/{'x' * 1_000}", "wrong-key"),
            (f"{AIRCRAFT}/keys/N1?start=1", "wrong-question"),
            (f"{AIRCRAFT}/keys/N1/entries", "wrong-question"),
            (f"{AIRCRAFT}/keys/N1/entries/a", "wrong-question"),
            (f"{AIRCRAFT}/keys/N1?json_key=perhaps", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?deadline=0", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?deadline=nan", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?deadline=61", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?min_batch_id=-1", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?min_batch_id={2**63}", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?min_generation=0", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?what=1", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?start=1&start=2", "bad-request"),
            (f"{AIRCRAFT}/keys/N1?start=%FF", "bad-request"),
            (f"{AIRCRAFT}/keys/%FF", "bad-request"),
        ],
    )
    def test_what_cannot_be_asked(self, ask: Asker, path: str, problem: str) -> None:
        """400, and the problem says what to write."""
        answer = ask.get(path)
        assert (answer.status, answer.problem) == (400, problem)
        assert len(answer.document["detail"]) > 10

    def test_a_batch_that_does_not_come(self, ask: Asker) -> None:
        """It is waited for within the deadline."""
        answer = ask.get(f"{AIRCRAFT}/keys/N001?min_batch_id=10000&deadline=0.2")
        assert answer.status in {503, 504}
        answer = ask.get(f"{AIRCRAFT}/keys/N001?min_batch_id=0&min_generation=1")
        assert answer.status == 200

    def test_a_method_that_is_not_there(self, ask: Asker) -> None:
        """405 says which one is."""
        answer = ask.ask("DELETE", f"{AIRCRAFT}/keys/N001")
        assert (answer.status, answer.problem) == (405, "wrong-method")
        assert answer.headers["allow"] == "GET, HEAD"
        assert ask.get(f"{AIRCRAFT}/keys:batchGet").headers["allow"] == "POST"

    def test_another_form(self, ask: Asker) -> None:
        """A key is JSON, and nothing else."""
        answer = ask.get(f"{AIRCRAFT}/keys/N001", Accept="text/csv")
        assert (answer.status, answer.problem) == (406, "not-acceptable")
        answer = ask.get(f"{AIRCRAFT}/keys/N001", Accept="text/html, */*;q=0.1")
        assert answer.status == 200

    def test_head(self, ask: Asker) -> None:
        """The headers of a GET, and no body."""
        answer = ask.ask("HEAD", f"{AIRCRAFT}/keys/N001")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["lodestar-batch-id"] == "0"


class TestManyKeys:
    """F2: keys:batchGet."""

    PATH = f"{AIRCRAFT}/keys:batchGet"

    def test_in_their_order(self, ask: Asker) -> None:
        """Each with its batch, also those that are not there."""
        document = ask.post(self.PATH, {"keys": ["N002", "X", "N001"]}).document
        found = [
            (one["key"], one["exists"], one.get("value", {}).get("delay"))
            for one in document["results"]
        ]
        assert found == [("N002", True, 2), ("X", False, None), ("N001", True, 1)]
        assert {one["batch_id"] for one in document["results"]} == {0}
        assert (document["generation"], document["batch_id"]) == (1, 0)

    def test_a_thousand(self, ask: Asker) -> None:
        """As many as there may be, the same ones often."""
        keys = [NAMES[n % len(NAMES)] for n in range(1_000)]
        results = ask.post(self.PATH, {"keys": keys}).document["results"]
        assert [one["key"] for one in results] == keys

    def test_keys_as_json(self, ask: Asker) -> None:
        """Of several columns, by name or in their order."""
        keys = [["AA", "2026-03-01"], {"day": "2026-03-01", "carrier": "AA"}]
        results = ask.post(f"{LOG}/keys:batchGet", {"keys": keys}).document["results"]
        assert [len(one["value"]) for one in results] == [5, 5]

    @pytest.mark.parametrize(
        ("document", "problem"),
        [
            ([], "bad-request"),
            ({}, "bad-request"),
            ({"keys": []}, "bad-request"),
            ({"keys": "N1"}, "bad-request"),
            ({"keys": ["N1"] * 1_001}, "bad-request"),
            ({"keys": ["N1"], "partial": 1}, "bad-request"),
            ({"keys": ["N1"], "more": 1}, "bad-request"),
            ({"keys": [1]}, "wrong-key"),
            ({"keys": [{"tailnum": "N1"}]}, "wrong-key"),
            ({"keys": ["x" * 500]}, "wrong-key"),
        ],
    )
    def test_what_is_no_list_of_keys(
        self, ask: Asker, document: Any, problem: str
    ) -> None:
        """400 says what is wanted."""
        answer = ask.post(self.PATH, document)
        assert (answer.status, answer.problem) == (400, problem)

    @pytest.mark.parametrize(
        ("body", "content_type", "status"),
        [
            (b"{", "application/json", 400),
            (b"\xff", "application/json", 400),
            (b"[" * 100_000, "application/json", 400),
            (b'{"keys": [NaN]}', "application/json", 400),
            (b"keys=1", "application/x-www-form-urlencoded", 415),
            (b'{"keys": ["N001"]}', "Application/JSON; charset=utf-8", 200),
        ],
    )
    def test_what_is_no_json(
        self, ask: Asker, body: bytes, content_type: str, status: int
    ) -> None:
        """400, or 415 if it does not say that it is."""
        answer = ask.ask("POST", self.PATH, body, {"Content-Type": content_type})
        assert answer.status == status


class TestTags:
    """F2: entity tags."""

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/jobs",
            f"{JOB}/states",
            AIRCRAFT,
            f"{AIRCRAFT}/keys/N001",
            f"{DELAYS}/keys/N1/entries/A01",
            f"{AIRCRAFT}/rows?limit=3",
            f"{AIRCRAFT}/rows?limit=3&format=csv",
            f"{AIRCRAFT}/count",
            "/v1/leaders/QUERY_PROXY",
            "/openapi.json",
        ],
    )
    def test_what_has_not_changed(self, ask: Asker, path: str) -> None:
        """304 without a body, though the batch grows older meanwhile."""
        tag = ask.get(path).headers["etag"]
        answer = ask.get(path, if_none_match=f'"other", {tag}')
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["etag"] == tag
        assert ask.get(path, if_none_match='"other"').status == 200

    def test_keys_in_a_body(self, ask: Asker) -> None:
        """A POST has its answer: no cache keeps one, so there is none to confirm."""
        path = f"{AIRCRAFT}/keys:batchGet"
        tag = ask.post(path, {"keys": ["N001"]}).headers["etag"]
        for given in (tag, "*"):
            answer = ask.post(path, {"keys": ["N001"]}, if_none_match=given)
            assert answer.status == 200
            assert answer.document["results"][0]["key"] == "N001"

    @pytest.mark.parametrize("path", [f"{AIRCRAFT}/keys/N001", f"{AIRCRAFT}/rows"])
    def test_a_list_on_several_lines(self, ask: Asker, path: str) -> None:
        """It is one list (RFC 9110, 5.3): proxies part and join such headers."""
        tag = ask.get(path).headers["etag"]
        start = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        tags = f'If-None-Match: "other"\r\nIf-None-Match: {tag}\r\n\r\n'
        assert ask.raw((start + tags).encode()).startswith(b"HTTP/1.1 304 ")
        types = "Accept: text/html\r\nAccept: application/json\r\n\r\n"
        assert ask.raw((start + types).encode()).startswith(b"HTTP/1.1 200 ")

    def test_a_batch_that_leaves_a_key_as_it_is(self, served: Served) -> None:
        """Its tag stays, and headers tell the newer batch; another key's changes."""
        ask = served.ask
        kept = ask.get(f"{AIRCRAFT}/keys/N100").headers["etag"]
        changed = ask.get(f"{AIRCRAFT}/keys/N101").headers["etag"]
        batch_id = served.publisher.write({"aircraft": [("N101", -1, None)]})
        answer = ask.get(
            f"{AIRCRAFT}/keys/N100?min_batch_id={batch_id}", if_none_match=kept
        )
        assert answer.status == 304
        assert answer.headers["lodestar-batch-id"] == str(batch_id)
        answer = ask.get(f"{AIRCRAFT}/keys/N101", if_none_match=changed)
        assert answer.status == 200
        assert answer.document["value"] == {"delay": -1, "last": None}
