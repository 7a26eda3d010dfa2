"""Frames between a server of SQL and its workers."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from queryablestate.sql import jobs
from queryablestate.sql.jobs import Done, FrameReader, Rows


@pytest.mark.proves("F6")
@pytest.mark.parametrize("place", [2, 4, 100])
def test_a_frame_outlives_who_waits_for_it(place: int) -> None:
    """
    A statement is cancelled when a part of its rows has come, and the worker goes on.

    The rest was taken for the beginning of a frame: the worker, which was healthy, was
    killed for it.
    """
    frames = [
        Rows(number=1, rows=[b"x" * 1_000]),
        Done(number=1, is_worker_spent=False),
    ]
    packed = [msgspec.msgpack.encode(frame) for frame in frames]
    sent = b"".join(len(one).to_bytes(4, "big") + one for one in packed)

    async def received() -> list[jobs.FromWorker]:
        stream = asyncio.StreamReader()
        reader = FrameReader(stream, jobs.from_worker)
        stream.feed_data(sent[:place])
        waits = asyncio.create_task(reader.receive())
        await asyncio.sleep(0)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        stream.feed_data(sent[place:])
        return [await reader.receive() for _ in frames]

    assert asyncio.run(received()) == frames
