from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import StorageError
from queryablestate.store import plans, restores
from queryablestate.store.layout import (
    FENCE_PREFIX,
    IDENTITY_KEY,
    JOB_PREFIX,
    META_DATABASE,
    PIECE_KEY_SUFFIX_SIZE_BYTES,
    SLOT_COUNT_MAX,
    SLOT_PREFIX,
    STAGED_DATABASE,
    STATE_PREFIX,
    FenceMark,
    Identity,
    JobMark,
    StagedBatch,
    StateMark,
    batch_prefix,
    chunk_prefix,
    decode_fence,
    decode_identity,
    decode_job,
    decode_staged_batch,
    decode_state,
    encode_record,
    fence_key,
    hold_key,
    item_index_first,
    job_key,
    kept_key,
    piece_key,
    slot_name,
    staged_batch_of,
    staged_key,
    state_key,
    state_number_of,
)
from queryablestate.wire.records import STAGE_ID_SIZE_BYTES
from tests.queryablestate.store_batches import chunk


IDENTITY = Identity(format=1, node_id="n", store_id="s", control_id=None)
JOB_MARK = JobMark(job_id="job", sequence=2**40)
FENCE_MARK = FenceMark(query_id="q", writer_epoch=3)
STATE_MARK = StateMark(
    job_id="job",
    slot=3,
    kind="map",
    has_ttl=True,
    generation=2,
    batch_id=None,
    decided_at_us=1,
    lost=(),
)
STAGED_BATCH = StagedBatch(
    job_id="job", query_id="q", writer_epoch=1, batch_id=0, received_at_us=5
)
KEYS = {
    "job": "6a6f622fdada1933e852f44aa87cc82c96012ad8",
    "fence": "66656e63652f0da5b20d2434de358c3728401411dfb1",
    "state": "73746174652f0000000000000102",
    "hold": "686f6c642fdada1933e852f44aa87cc82c96012ad8",
    "staged": "7374616765642fdada1933e852f44aa87cc82c96012ad8",
    "kept": "6b6570742fdada1933e852f44aa87cc82c96012ad80000000000000005",
    "piece": "d2e09173961f8fe02fe865c11237e3c4"
    "73737373737373737373737373737373"
    "0000000100000004",
    "slot": "726f77732d30303037",
    "identity": "6964656e74697479",
    "databases": "6d65746120737461676564",
    "plans": "706c616e2f206e6578742f2070726f672f206c6173742f",
    "load": "6c6f61642f2d4e1f50c09a9d7adce7355ef7fdd27a",
}


class TestRecords:
    @pytest.mark.proves("W7")
    def test_they_come_back_as_they_were_stored(self) -> None:
        """What is kept of jobs, queries and states outlives the process (W7)."""
        assert decode_identity(encode_record(IDENTITY)) == IDENTITY
        assert decode_job(encode_record(JOB_MARK)) == JOB_MARK
        assert decode_fence(encode_record(FENCE_MARK)) == FENCE_MARK
        assert decode_state(encode_record(STATE_MARK)) == STATE_MARK
        assert decode_staged_batch(encode_record(STAGED_BATCH)) == STAGED_BATCH

    @pytest.mark.parametrize(
        "decode",
        [
            decode_identity,
            decode_job,
            decode_fence,
            decode_state,
            decode_staged_batch,
        ],
    )
    @pytest.mark.parametrize("stored", [b"", b"\x00", b"\x93\xa1\xff\x01\x02"])
    def test_damage_is_told(self, decode: object, stored: bytes) -> None:
        """A record that cannot be read is a `StorageError` that says what to do."""
        assert callable(decode)
        with pytest.raises(StorageError, match="remove it"):
            decode(stored)

    @pytest.mark.proves("W2")
    def test_a_batch_is_told_by_what_its_chunks_say(self) -> None:
        """The head of a batch has what decides when it is superseded (W2)."""
        envelope, _ = chunk(
            [], job_id="job", query_id="q", writer_epoch=1, batch_id=0, index=9
        )
        assert staged_batch_of(envelope, 5, 0) == STAGED_BATCH


class TestKeys:
    def test_the_kinds_of_records_do_not_mix(self) -> None:
        """No prefix of ``meta`` begins with another one."""
        prefixes = [IDENTITY_KEY, JOB_PREFIX, FENCE_PREFIX, STATE_PREFIX]
        assert not any(
            one.startswith(other)
            for one in prefixes
            for other in prefixes
            if one is not other
        )

    def test_they_have_their_prefix_and_a_size_that_fits(self) -> None:
        """Ids of any length make keys that LMDB takes (511 bytes at most)."""
        long = "é" * 10_000
        assert job_key(long).startswith(JOB_PREFIX)
        assert fence_key(long, long).startswith(FENCE_PREFIX)
        prefix = batch_prefix(long, 2**64 - 1, 2**64 - 1)
        piece = piece_key(chunk_prefix(prefix, b"s" * 16, 2**32 - 1), 2**32 - 1)
        assert len(piece) == len(prefix) + PIECE_KEY_SUFFIX_SIZE_BYTES
        assert max(map(len, (job_key(long), fence_key(long, long), piece))) <= 100

    @pytest.mark.proves("W7")
    def test_they_are_those_of_every_release(self) -> None:
        """
        W7: a directory of the release before is looked up by the same keys.

        Under others it would be taken for one that has nothing.
        """
        chunk_key = chunk_prefix(batch_prefix("j", 2, 3), b"s" * STAGE_ID_SIZE_BYTES, 1)
        keys = {
            "job": job_key("j"),
            "fence": fence_key("j", "q"),
            "state": state_key(258),
            "hold": hold_key("j"),
            "staged": staged_key("j"),
            "kept": kept_key("j", 5),
            "piece": piece_key(chunk_key, 4),
            "slot": slot_name(7),
            "identity": IDENTITY_KEY,
            "databases": META_DATABASE + b" " + STAGED_DATABASE,
            "plans": b" ".join(
                (
                    plans._PLAN_PREFIX,
                    plans._NEXT_PREFIX,
                    plans._PROGRESS_PREFIX,
                    plans._LAST_PREFIX,
                )
            ),
            "load": restores._key("r"),
        }
        assert {name: key.hex() for name, key in keys.items()} == KEYS

    @given(st.lists(st.integers(0, 2**64 - 1), min_size=2, unique=True))
    def test_states_sort_by_number(self, numbers: list[int]) -> None:
        """States are walked over in the order of their numbers."""
        keys = sorted(map(state_key, numbers))
        assert [state_number_of(key) for key in keys] == sorted(numbers)

    @pytest.mark.proves("W2")
    def test_batches_are_told_apart(self) -> None:
        """Job, epoch and batch id each count, and do not run into each other (W2)."""
        batches = [
            ("1", 1, 1),
            ("1", 1, 11),
            ("1", 11, 1),
            ("11", 1, 1),
            ("1 1", 1, 1),
            ("", 1, 11),
        ]
        assert len({batch_prefix(*batch) for batch in batches}) == len(batches)

    def test_pieces_sort_within_their_chunk_and_chunks_within_their_stage(
        self,
    ) -> None:
        """What is read in one go lies in one stretch."""
        prefix = batch_prefix("job", 1, 1)
        places = [
            (stage, index, piece)
            for stage in (b"a" * 16, b"b" * 16)
            for index in (0, 1, 255, 256, 70_000)
            for piece in (0, 255, 256)
        ]
        keys = [
            piece_key(chunk_prefix(prefix, stage, index), piece)
            for stage, index, piece in places
        ]
        assert keys == sorted(keys)
        assert all(key.startswith(prefix) for key in keys)

    def test_slots_have_names_of_their_own(self) -> None:
        """No two slots share a database, nor one with anything else."""
        names = {slot_name(slot) for slot in range(SLOT_COUNT_MAX)}
        assert len(names) == SLOT_COUNT_MAX
        assert all(name.startswith(SLOT_PREFIX) for name in names)

    @pytest.mark.proves("W6")
    @given(st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1))
    def test_item_indexes_rise_from_entry_to_entry(
        self, sequence: int, count: int
    ) -> None:
        """However many items an entry brings, the next one's come after (W6)."""
        assert item_index_first(sequence) + count < item_index_first(sequence + 1)
        assert item_index_first(sequence + 1) + count < 2**64
