"""
How long messages take to encode and decode, and how large they are.

Workload: the three messages that cross the wire most.  Unit: nanoseconds for encoding
plus decoding; bytes.  Bad: above 10 µs, or a heartbeat above 200 bytes.
"""

from __future__ import annotations

import uuid

from benchmarks._harness import Figure, figure, report, rounds, sized, timed_ns
from leaderserver.codec import decode_to_client, decode_to_server, encode
from leaderserver.message_parts import AffirmationRecord, PublicationRecord
from leaderserver.messages import (
    AcknowledgedHeartbeat,
    HeartbeatRequest,
    Published,
    Reply,
    Request,
)


_REPEAT = sized(5_000, tiny=2)
_ROUND_COUNT = sized(9, tiny=1)


def run() -> list[Figure]:
    """Measure, and return the figures."""
    heartbeat = Request(
        secret=bytes(32), number=123_456, body=HeartbeatRequest(acknowledged=123_455)
    )
    acknowledged = Reply(
        number=123_456,
        body=AcknowledgedHeartbeat(
            affirmations=[
                AffirmationRecord(
                    component_id="prod/flights",
                    contender_id=uuid.UUID(int=1).hex,
                    leader_session_id=uuid.UUID(int=2),
                    epoch=933_660_950_244_884_481,
                )
            ],
            is_undecided=False,
            revisions={},
        ),
    )
    published = Published(
        component_id="prod/flights",
        revision=7,
        publication=PublicationRecord(
            epoch=933_660_950_244_884_481,
            confirm_count=1,
            address="tcp://10.0.0.5:7000",
            leader_session_id=uuid.UUID(int=2),
        ),
    )
    figures = [
        figure(
            "heartbeat",
            "ns",
            rounds(
                lambda: timed_ns(
                    lambda: decode_to_server(encode(heartbeat)), repeat=_REPEAT
                ),
                count=_ROUND_COUNT,
            ),
        ),
        figure("heartbeat, size", "bytes", [len(encode(heartbeat))]),
    ]
    for name, message in (("acknowledgement", acknowledged), ("broadcast", published)):
        figures += [
            figure(
                name,
                "ns",
                rounds(
                    lambda m=message: timed_ns(  # type: ignore[misc]
                        lambda: decode_to_client(encode(m)), repeat=_REPEAT
                    ),
                    count=_ROUND_COUNT,
                ),
            ),
            figure(f"{name}, size", "bytes", [len(encode(message))]),
        ]
    report("codec", figures)
    return figures
