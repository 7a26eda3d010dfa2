"""What a log source has read, and who reads on (O1, O4); pure."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from rescaling import OperatorCheckpointError, SnapshotTooLargeError
from sparkpipeline.log.state import LogOffset, LogRange, plan_offset, plan_ranges


def there_and_back(offset: LogOffset) -> LogOffset:
    """Return what Spark's offset log would give back."""
    return LogOffset.from_json(json.loads(json.dumps(offset.to_json())))


@pytest.mark.proves("O4")
class TestOffsets:
    def test_an_offset_comes_back(self) -> None:
        """O4: the offset log holds all that there is to know."""
        offset = LogOffset(((("a", 7), ("b", 0)), (), (("c", 2**40),)))
        assert there_and_back(offset) == offset
        assert offset.positions == {"a": 7, "b": 0, "c": 2**40}
        assert there_and_back(LogOffset()) == LogOffset()

    @pytest.mark.parametrize(
        "content",
        [
            {},
            {"logOffset": 3},
            {"format_version": 2, "subtasks": []},
            {"format_version": 1, "subtasks": [[["a"]]]},
            {"format_version": 1, "subtasks": [[["a", "b"]]]},
            {"format_version": 1, "subtasks": [[["a", 1]], [["a", 2]]]},
            {"format_version": 1, "subtasks": [], "more": 1},
        ],
    )
    def test_another_offset_is_refused(self, content: dict[str, Any]) -> None:
        """O4: of another source, another version, or of a partition twice."""
        with pytest.raises(OperatorCheckpointError, match="checkpoint location"):
            LogOffset.from_json(content)


class TestPlanning:
    @pytest.mark.proves("O4")
    def test_partitions_are_shared_evenly(self) -> None:
        """O4: those that are new go where the fewest are, in the order of names."""
        ends = {"b": 5, "a": 3, "c": 0, "d": 1}
        offset = plan_offset(LogOffset(), ends, parallelism=2)
        assert offset == LogOffset(((("a", 3), ("d", 1)), (("b", 5),)))
        assert plan_ranges(LogOffset(), offset) == (
            (LogRange(name="a", begin=0, end=3), LogRange(name="d", begin=0, end=1)),
            (LogRange(name="b", begin=0, end=5),),
        )

    @pytest.mark.proves("O4")
    def test_nothing_to_read_is_no_batch(self) -> None:
        """O4: whatever the parallelism is now; there would be nothing in it."""
        offset = plan_offset(LogOffset(), {"a": 3, "b": 1}, parallelism=2)
        for parallelism in (1, 2, 3):
            ends = {"a": 3, "b": 1, "empty": 0}
            assert plan_offset(offset, ends, parallelism=parallelism) is offset
        assert plan_offset(LogOffset(), {}, parallelism=3) == LogOffset()

    @pytest.mark.proves("O4")
    def test_partitions_that_are_gone_are_forgotten(self) -> None:
        """
        O4: also when nothing else is there to be read; and they begin anew.

        A file that comes under the name would be read from where the old one ended:
        what stands before that would be lost, without an error if a line ends there.
        """
        start = plan_offset(LogOffset(), {"a": 3, "b": 1}, parallelism=2)
        offset = plan_offset(start, {"a": 3}, parallelism=2)
        assert offset.positions == {"a": 3}
        assert plan_ranges(start, offset) == ((), ())
        assert plan_offset(offset, {"a": 3}, parallelism=2) is offset
        again = plan_offset(offset, {"a": 3, "b": 2}, parallelism=2)
        assert plan_ranges(offset, again)[1] == (LogRange(name="b", begin=0, end=2),)
        assert plan_offset(again, {}, parallelism=1) == LogOffset(((),))

    @pytest.mark.proves("O2")
    def test_too_many_partitions_of_a_subtask_are_refused(self) -> None:
        """O2: when the offset is written, and more subtasks help."""
        ends = {f"partition-{number:07}": 1 for number in range(100_000)}
        with pytest.raises(SnapshotTooLargeError, match="more subtasks"):
            plan_offset(LogOffset(), ends, parallelism=1)
        assert len(plan_offset(LogOffset(), ends, parallelism=4).positions) == 100_000

    @pytest.mark.proves("O1", "O4")
    @pytest.mark.parametrize("seed", range(5))
    def test_every_byte_is_read_once(self, seed: int) -> None:
        """O1, O4: partitions grow and join, subtasks come and go, 200 random times."""
        rng = random.Random(seed)
        ends: dict[str, int] = {}
        read: dict[str, int] = {}
        offset = LogOffset()
        for _ in range(200):
            for name in rng.sample("abcdefghijkl", rng.randint(0, 3)):
                ends[name] = ends.get(name, 0) + rng.randint(0, 50)
            parallelism = rng.randint(1, 6)
            end = plan_offset(offset, ends, parallelism=parallelism)
            for own in plan_ranges(offset, end):
                for part in own:
                    assert read.get(part.name, 0) == part.begin
                    read[part.name] = part.end
            assert read == {name: at for name, at in ends.items() if at}
            if end is not offset:
                counts = [len(subtask) for subtask in end.subtasks]
                assert len(counts) == parallelism
                assert sum(counts) == len(read)
            offset = there_and_back(end)
