"""What came in and still waits, by what the kernel says and what was given (N3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from nameservice import NS_PER_SECOND
from zmqtransport import ConnectionId, TCPProgress
from zmqtransport.inflow import Inflow


A, B, C = (ConnectionId(number) for number in (7, 8, 9))
KIB = 1024


def took(
    read: Mapping[ConnectionId, int],
    received: Mapping[ConnectionId, int] | None = None,
) -> dict[ConnectionId, TCPProgress]:
    """Return what the kernel says: all of *received* was read, if that is not said."""
    return {
        connection: TCPProgress(
            written_bytes=0,
            read_bytes=read_bytes,
            received_bytes=(received or read)[connection],
        )
        for connection, read_bytes in read.items()
    }


def excess(
    made: Inflow,
    progress: Mapping[ConnectionId, TCPProgress],
    *,
    now_ns: int,
    is_urgent: bool = False,
) -> Sequence[ConnectionId]:
    """Return what must be ended if nothing was given while the kernel was asked."""
    return made.excess(progress, made.before(), now_ns=now_ns, is_urgent=is_urgent)


def inflow() -> Inflow:
    """Return one with small limits, and three connections."""
    made = Inflow(
        bytes_per_connection_max=1_000 * KIB,
        bytes_max=2_000 * KIB,
        frame_overhead_bytes=2,
    )
    for connection in (A, B, C):
        made.opened(connection, now_ns=0)
    return made


@pytest.mark.proves("N3")
def test_what_was_given_waits_no_more() -> None:
    """N3: a connection that sends much, and whose messages are handled, is well."""
    made = inflow()
    for _ in range(100):
        made.given(A, [4, 100_000])
    read = 100 * (6 + 9 + 100_000)
    assert excess(made, took({A: read}), now_ns=0) == []


@pytest.mark.proves("N3")
def test_short_and_long_frames_are_counted_as_zmtp_sends_them() -> None:
    """N3: what is counted as given is never more than was read (ZeroMQ RFC 23)."""
    made = inflow()
    made.given(A, [255, 256])
    # Had more been counted than was read, this were taken for another connection.
    assert excess(made, took({A: 2 + 255 + 9 + 256 + 1_000 * KIB}), now_ns=0) == []
    assert excess(made, took({A: 2 + 255 + 9 + 256 - 1 + 2_000 * KIB}), now_ns=0) == [A]


@pytest.mark.proves("N3")
def test_one_connection_has_a_limit() -> None:
    """N3: a message that never ends costs its connection."""
    made = inflow()
    assert excess(made, took({A: 1_200 * KIB, B: 500 * KIB}), now_ns=0) == [A]


@pytest.mark.proves("N3")
def test_all_together_have_a_limit() -> None:
    """N3: those with the most go, until half of what may wait is free."""
    made = inflow()
    read = {A: 900 * KIB, B: 950 * KIB, C: 400 * KIB}
    assert excess(made, took(read), now_ns=0) == [B, A]


@pytest.mark.proves("N3")
def test_those_with_little_stay() -> None:
    """N3: a flood never costs those with few."""
    made = inflow()
    read = {A: 990 * KIB, B: 10 * KIB, C: 20 * KIB}
    assert excess(made, took(read), now_ns=0) == []
    assert excess(made, took(read), now_ns=0, is_urgent=True) == [A]


@pytest.mark.proves("N3")
def test_pings_are_allowed_for() -> None:
    """N3: a client that is silent for a month is not taken for a flood."""
    made = inflow()
    month_ns = 30 * 86_400 * NS_PER_SECOND
    assert excess(made, took({A: 30 * 86_400 * 50}), now_ns=month_ns) == []


@pytest.mark.proves("N3")
def test_what_comes_while_the_kernel_is_asked_ends_no_connection() -> None:
    """N3: what was read is known at least; it may seem less than what was given."""
    made = inflow()
    made.given(A, [9_000 * KIB])
    read, received = {A: 5_000 * KIB}, {A: 9_100 * KIB}
    assert excess(made, took(read, received), now_ns=0) == []
    assert excess(made, took(read), now_ns=0) == [A]


@pytest.mark.proves("N3")
def test_what_is_given_while_the_kernel_is_asked_ends_no_connection() -> None:
    """N3: the server is given more of an old connection than the kernel knew of."""
    made = inflow()
    made.given(A, [9_000 * KIB])
    before = made.before()
    progress = took({A: 9_001 * KIB})
    made.given(A, [5 * KIB])
    assert made.excess(progress, before, now_ns=0) == []


@pytest.mark.proves("N3")
def test_a_connection_that_comes_meanwhile_is_not_ended_for_the_one_before() -> None:
    """N3: what the kernel said is of the connection that had the number then."""
    made = inflow()
    made.given(A, [9_000 * KIB])
    before = made.before()
    progress = took({A: 9_001 * KIB})
    made.opened(A, now_ns=0)
    assert made.excess(progress, before, now_ns=0) == []
    made.closed(A)
    assert made.excess(progress, before, now_ns=0) == []


@pytest.mark.proves("N3")
def test_a_number_that_is_used_again_starts_anew() -> None:
    """N3: none inherits what another has sent and was given."""
    made = inflow()
    made.given(A, [10_000 * KIB])
    assert excess(made, took({A: 5_000 * KIB}), now_ns=0) == [A]
    made.opened(A, now_ns=0)
    assert excess(made, took({A: 60 * KIB}), now_ns=0) == []
    made.closed(A)
    made.given(A, [10_000 * KIB])
    assert excess(made, took({A: 5_000 * KIB}), now_ns=0) == [A]
    assert set(made.connections) == {B, C}


@pytest.mark.proves("N3")
def test_who_is_admitted_has_a_limit_of_its_own() -> None:
    """N3: a node sends what it was asked for; the next one of its number is no node."""
    made = inflow()
    made.admit(A, 5_000 * KIB)
    lately = {A: 5_000 * KIB, B: 900 * KIB, C: 900 * KIB}
    assert excess(made, took(lately), now_ns=NS_PER_SECOND) == []
    beyond = {**lately, A: 5_100 * KIB}
    assert excess(made, took(beyond), now_ns=NS_PER_SECOND) == [A]
    made.opened(A, now_ns=NS_PER_SECOND)
    assert A in excess(made, took(lately), now_ns=NS_PER_SECOND)


@pytest.mark.proves("N3")
def test_many_who_are_admitted_are_not_ended_for_each_other() -> None:
    """N3: writers bring much at once, and each has shown that it may."""
    made = inflow()
    at_most = dict.fromkeys((A, B, C), 1000 * KIB)
    assert excess(made, took(at_most), now_ns=0) != []
    for connection in at_most:
        made.admit(connection)
    assert excess(made, took(at_most), now_ns=0) == []
    assert excess(made, took({**at_most, B: 1_100 * KIB}), now_ns=0) == [B]


@pytest.mark.proves("N3")
def test_who_is_dismissed_is_a_stranger() -> None:
    """N3: of a node that is none any more no more may wait than of any."""
    made = inflow()
    made.admit(A, 5_000 * KIB)
    made.dismiss(A)
    assert excess(made, took({A: 1_100 * KIB}), now_ns=0) == [A]


@pytest.mark.proves("N3")
def test_of_most_connections_it_is_seen_at_once_that_nothing_waits() -> None:
    """N3: a closer look takes four times as long."""
    made = inflow()
    made.given(A, [1_000 * KIB])
    given_bytes = 1_000 * KIB + 9
    assert not made.may_wait(A, given_bytes)
    assert not made.may_wait(A, given_bytes + 64 * KIB)
    assert made.may_wait(A, given_bytes + 64 * KIB + 1)
    assert made.may_wait(A, 100)  # another connection, which is not known yet
    assert made.may_wait(ConnectionId(99), 0)


@pytest.mark.proves("N3")
def test_who_is_gone_is_not_admitted() -> None:
    """N3: it is no error, either."""
    made = inflow()
    made.closed(A)
    made.admit(A, 5_000 * KIB)
    made.dismiss(B)
    assert excess(made, took({A: 5_000 * KIB}), now_ns=NS_PER_SECOND) == [A]


@pytest.mark.proves("N3")
@pytest.mark.parametrize(
    ("frame_size_bytes_max", "connection_bytes_max", "bytes_max"),
    [
        (1 << 20, 64 << 20, 256 << 20),
        (32 << 20, 128 << 20, 256 << 20),
        (256 << 20, 1 << 30, 2 << 30),
    ],
)
def test_the_bounds_of_a_port_go_by_its_frames(
    frame_size_bytes_max: int, connection_bytes_max: int, bytes_max: int
) -> None:
    """N3: four frames of a connection may wait, and no less than 64 MiB."""
    made = Inflow.of_frames(frame_size_bytes_max, is_secured=False)
    made.opened(A, now_ns=0)
    assert made.bytes_max == bytes_max
    allowed_bytes = connection_bytes_max + 64 * KIB
    assert excess(made, took({A: allowed_bytes}), now_ns=0) == []
    assert excess(made, took({A: allowed_bytes + 1}), now_ns=0) == [A]
