from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import msgspec
import pytest

from examples.flights.delivery import DeliveryError, deliver
from examples.flights.endpoint import DELIVERY_PATH, Endpoint
from examples.flights.messages import (
    Accepted,
    Answer,
    CarrierSummary,
    PartitionSummary,
    Refused,
)
from haservices.testing.reserved_port import ReservedPort
from retrieval import LeaderRetriever
from tests.retrieval.fakes import FakeRetrievalDriver, leader


pytestmark = pytest.mark.shells

TIMEOUT_SECONDS = 30.0
SUMMARY = PartitionSummary(
    stream_id="0" * 32,
    batch_id=3,
    partition_id=1,
    carriers={"UA": CarrierSummary(flight_count=5, distance_miles=12)},
)


@contextmanager
def retrieving(driver: FakeRetrievalDriver) -> Iterator[LeaderRetriever]:
    """Yield a started retriever that *driver* tells."""
    with LeaderRetriever("flights", driver, clears_on_suspended=False) as retriever:
        yield retriever


def refuse(summary: PartitionSummary) -> Answer:
    """Answer as a collector that does not lead."""
    return Refused(reason="not-leader", detail="waits")


def accept(summary: PartitionSummary) -> Answer:
    """Answer as a collector that leads under epoch 8."""
    assert summary == SUMMARY
    return Accepted(epoch=8, is_repeated=False)


def post(
    endpoint: Endpoint, path: str, headers: dict[str, str], body: bytes
) -> tuple[int, bytes]:
    """Return status and content of the response."""
    parts = urlsplit(endpoint.address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(
        parts.hostname, parts.port, timeout=TIMEOUT_SECONDS
    )
    with closing(connection):
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


class TestDeliver:
    def test_an_acknowledged_delivery_is_over(self) -> None:
        """The receipt says who acknowledged, and that nothing was repeated."""
        driver = FakeRetrievalDriver()
        with closing(Endpoint(accept)) as endpoint, retrieving(driver) as retriever:
            driver.publish(leader(8, endpoint.address))
            receipt = deliver(SUMMARY, retriever, timeout_seconds=TIMEOUT_SECONDS)
        assert (receipt.partition_id, receipt.flight_count) == (1, 5)
        assert (receipt.epoch, receipt.is_repeated, receipt.retries) == (8, False, ())

    def test_it_goes_to_whoever_leads_next(self, reserved: ReservedPort) -> None:
        """A refusal and a dead leader are repeated with the leader found then."""
        driver = FakeRetrievalDriver()
        dead = f"http://127.0.0.1:{reserved.port}"

        def refuse_and_die(summary: PartitionSummary) -> Answer:
            driver.publish(leader(7, dead))
            return refuse(summary)

        with (
            closing(Endpoint(refuse_and_die)) as deposed,
            closing(Endpoint(accept)) as successor,
            retrieving(driver) as retriever,
        ):
            driver.publish(leader(6, deposed.address))
            told = threading.Timer(
                0.5, lambda: driver.publish(leader(8, successor.address))
            )
            told.start()
            receipt = deliver(SUMMARY, retriever, timeout_seconds=TIMEOUT_SECONDS)
            told.join()
        reasons = [(retry.epoch, retry.reason) for retry in receipt.retries]
        assert reasons[0] == (6, "not-leader")
        assert set(reasons[1:]) == {(7, "connection refused")}
        assert receipt.epoch == 8

    def test_a_leader_that_dies_before_it_answers_is_asked_again(self) -> None:
        """What became of it is not known, and repeating is safe."""
        driver = FakeRetrievalDriver()

        def close_at_once(listener: socket.socket) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1)
            driver.publish(leader(8, endpoint.address))

        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            closing(Endpoint(accept)) as endpoint,
            retrieving(driver) as retriever,
        ):
            driver.publish(leader(7, f"http://127.0.0.1:{listener.getsockname()[1]}"))
            dying = threading.Thread(target=close_at_once, args=(listener,))
            dying.start()
            receipt = deliver(SUMMARY, retriever, timeout_seconds=TIMEOUT_SECONDS)
            dying.join()
        assert receipt.retries[0].reason == "connection closed before an answer"
        assert receipt.epoch == 8

    def test_nobody_leading_in_time_is_an_error(self) -> None:
        """The error says what was tried; nothing waits for ever."""
        with (
            retrieving(FakeRetrievalDriver()) as retriever,
            pytest.raises(DeliveryError, match=r"batch 3 partition 1 .*no leader"),
        ):
            deliver(SUMMARY, retriever, timeout_seconds=0.05)

    def test_a_final_refusal_is_not_repeated(self) -> None:
        """What will never be counted here is not brought again."""
        driver = FakeRetrievalDriver()
        answer = Refused(reason="other-stream", detail="these are others")
        with (
            closing(Endpoint(lambda _: answer)) as endpoint,
            retrieving(driver) as retriever,
        ):
            driver.publish(leader(8, endpoint.address))
            with pytest.raises(DeliveryError) as caught:
                deliver(SUMMARY, retriever, timeout_seconds=TIMEOUT_SECONDS)
        assert [retry.reason for retry in caught.value.retries] == ["other-stream"]


class TestEndpoint:
    @pytest.mark.parametrize(
        ("path", "headers", "body"),
        [
            ("/elsewhere", {}, msgspec.json.encode(SUMMARY)),
            (DELIVERY_PATH, {}, b"{"),
            (DELIVERY_PATH, {}, b'{"stream_id": "x"}'),
            (DELIVERY_PATH, {"Content-Length": "-1"}, b""),
            (DELIVERY_PATH, {"Content-Length": "1000000"}, b""),
        ],
    )
    def test_what_is_no_delivery_is_refused(
        self, path: str, headers: dict[str, str], body: bytes
    ) -> None:
        """Malformed requests are answered, and never reach the totals."""
        delivered: list[PartitionSummary] = []

        def never(summary: PartitionSummary) -> Answer:
            delivered.append(summary)
            return accept(summary)

        with closing(Endpoint(never)) as endpoint:
            status, content = post(endpoint, path, headers, body)
            refused = msgspec.json.decode(content, type=Refused)
            assert (status, refused.reason) == (400, "malformed")
            status, content = post(
                endpoint, DELIVERY_PATH, {}, msgspec.json.encode(SUMMARY)
            )
        assert status == 200
        accepted = msgspec.json.decode(content, type=Accepted)
        assert accepted == Accepted(epoch=8, is_repeated=False)
        assert delivered == [SUMMARY]
