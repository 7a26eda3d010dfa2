from __future__ import annotations

import pytest

from nameservice import RemoteProtocolError
from queryablestate.wire.codec import (
    decode_copied_rows,
    decode_from_copy_source,
    decode_to_copy_source,
    encode,
    encode_payload,
)
from queryablestate.wire.copy_messages import (
    AllowPages,
    CloseCopy,
    CopiedRows,
    CopiedState,
    CopiedStates,
    CopyContinues,
    CopyOpened,
    CopyPage,
    CopyRefused,
    FromCopySource,
    OpenCopy,
    ReadStages,
    StagesPage,
    StagesRead,
    ToCopySource,
    key_groups_of,
    runs_of,
)
from queryablestate.wire.records import StageRecord


STAGE = StageRecord(stage_id=bytes(16), chunk_counts={"a": 2}, row_count=3)
STATE = CopiedState(
    state_number=1,
    kind="map",
    has_ttl=True,
    generation=2,
    batch_id=None,
    decided_at_us=3,
    lost=((1, 2),),
)
OPEN = OpenCopy(
    copy_id=1,
    job_id="job",
    key_groups=((0, 3),),
    sequence_min=9,
    page_count=8,
    page_size_bytes=1 << 20,
)


@pytest.mark.parametrize(
    "message",
    [
        OPEN,
        ReadStages(
            copy_id=1,
            job_id="job",
            writer_epoch=2,
            batch_id=3,
            stages=(STAGE,),
            key_groups=((0, 0), (2, 5)),
            page_count=1,
        ),
        AllowPages(copy_id=1, page_count=0),
        CloseCopy(copy_id=1),
    ],
)
def test_requests_arrive_as_they_were_sent(message: ToCopySource) -> None:
    """S2: what a node asks another for."""
    assert decode_to_copy_source(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        CopyOpened(
            copy_id=1,
            states=CopiedStates(sequence=7, states=(STATE,), key_groups=((0, 3),)),
        ),
        CopyPage(copy_id=1, page_index=0, is_last=False),
        StagesPage(copy_id=1, page_index=0, stage_index=0),
        StagesRead(copy_id=1, page_count=1, missing=(bytes(16),)),
        CopyContinues(copy_id=1),
        CopyRefused(copy_id=1, reason="busy", detail="ask again later"),
    ],
)
def test_answers_arrive_as_they_were_sent(message: FromCopySource) -> None:
    """S2: what a node is told by another."""
    assert decode_from_copy_source(encode(message)) == message


def test_rows_arrive_as_they_were_sent() -> None:
    """S2: keys and values as they lie on disk."""
    rows = CopiedRows(state_number=1, keys=[b"k"], values=[b"v"])
    assert decode_copied_rows(encode_payload(rows)) == rows
    with pytest.raises(RemoteProtocolError):
        decode_copied_rows(b"\xc1")


@pytest.mark.parametrize(
    "envelope",
    [
        b"",
        b"LDQ\2",
        encode(OPEN)[:-1],
        encode(CopyContinues(copy_id=1)),
        encode(AllowPages(copy_id=1, page_count=5_000)),
        encode(AllowPages(copy_id=0, page_count=1)),
    ],
)
def test_what_is_no_request_is_refused(envelope: bytes) -> None:
    """N3: other messages, other versions, and numbers without a meaning."""
    with pytest.raises(RemoteProtocolError):
        decode_to_copy_source(envelope)


@pytest.mark.parametrize(
    ("key_groups", "runs"),
    [((), ()), ((5,), ((5, 5),)), ((0, 1, 2, 7, 8), ((0, 2), (7, 8)))],
)
def test_key_groups_travel_as_runs(
    key_groups: tuple[int, ...], runs: tuple[tuple[int, int], ...]
) -> None:
    """Thousands of key groups side by side are two numbers."""
    assert runs_of(key_groups) == runs
    assert key_groups_of(runs) == key_groups


@pytest.mark.parametrize(
    "runs", [((2, 1),), ((1, 2), (2, 3)), ((0, 1 << 15),), ((-1, 0),)]
)
def test_runs_that_are_none_are_seen(runs: tuple[tuple[int, int], ...]) -> None:
    """What a stranger sends is looked at before it is counted out."""
    assert key_groups_of(runs) is None
