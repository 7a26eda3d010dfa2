from __future__ import annotations

import pytest
from attrs import evolve

from queryablestate.node.core.job import served_part
from queryablestate.node.core.standing import Standing
from queryablestate.node.readers.page import (
    PAGE_SIZE_BYTES,
    PageContent,
    PageReader,
    PageWriter,
    key_groups_in,
)


pytestmark = pytest.mark.proves("D2", "Q4")

SECRET = bytes(range(32))
STANDING = Standing(
    leader_epoch=3,
    secret=SECRET,
    lease_until_ns=100,
    direct_until_ns=50,
    leader_ms=7,
    leader_ms_at_ns=20,
    jobs=((served_part("a", 1, (0, 9, 127)), True), (served_part("b", 2, ()), False)),
)


class Shared:
    """A page, one who writes it and one who reads."""

    def __init__(self, size_bytes: int = PAGE_SIZE_BYTES) -> None:
        self.memory = bytearray(size_bytes)
        self.fences = 0
        self.writer = PageWriter(memoryview(self.memory), "run")
        self.reader = self.another()

    def another(self) -> PageReader:
        """Return a reader that has seen nothing yet."""
        return PageReader(memoryview(self.memory), self.fenced)

    def fenced(self) -> None:
        """Count."""
        self.fences += 1

    def look(self) -> PageContent:
        """Return what is there."""
        content = self.reader.look()
        assert content is not None
        return content


class TestWhatIsWritten:
    def test_nothing_at_first(self) -> None:
        """A page that a node has just made lets no one answer."""
        assert Shared().look() == PageContent(run="run", store="")

    def test_it_is_read_at_once(self) -> None:
        """Q4: who looks after it was written sees it, and the same until the next."""
        shared = Shared()
        shared.look()
        shared.writer.publish(STANDING, store="rows-1")
        content = shared.look()
        assert (content.run, content.store) == ("run", "rows-1")
        assert (content.leader_epoch, content.lease_until_ns) == (3, 100)
        assert (content.direct_until_ns, content.leader_ms) == (50, 7)
        assert content.leader_ms_at_ns == 20
        assert [(job.job_id, job.is_caught_up) for job in content.jobs] == [
            ("a", True),
            ("b", False),
        ]
        assert key_groups_in(content.jobs[0].key_groups) == (0, 9, 127)
        assert key_groups_in(content.jobs[1].key_groups) == ()
        assert shared.look() is content
        shared.writer.withdraw()
        assert shared.look() == PageContent(run="", store="")

    def test_what_is_the_same_is_not_written(self) -> None:
        """The node publishes after each step; most change nothing."""
        shared = Shared()
        shared.writer.publish(STANDING, store="rows-1")
        shared.writer.publish(evolve(STANDING), store="rows-1")
        assert shared.writer.count == 2  # the first time it was made

    def test_each_look_is_fenced_on_both_sides(self) -> None:
        """What is read of rows is not read before, or after, it was looked."""
        shared = Shared()
        shared.look()
        shared.look()
        assert shared.fences == 4


class TestChanges:
    def changes(self, shared: Shared) -> dict[str, int]:
        """Return the number of each job's part."""
        return {job.job_id: job.change for job in shared.look().jobs}

    def test_a_part_that_was_another_meanwhile(self) -> None:
        """S3: though it reads the same again; a job is assigned, resets, catches up."""
        shared = Shared()
        shared.writer.publish(STANDING, store="rows-1")
        first = self.changes(shared)
        (a, _), b = STANDING.jobs
        behind = evolve(STANDING, jobs=((a, False), b))
        shared.writer.publish(behind, store="rows-1")
        shared.writer.publish(STANDING, store="rows-1")
        second = self.changes(shared)
        assert second["a"] > first["a"]
        assert second["b"] == first["b"]
        assigned_again = evolve(STANDING, jobs=((evolve(a), True), b))
        shared.writer.publish(assigned_again, store="rows-1")
        assert self.changes(shared)["a"] > second["a"]

    def test_a_job_that_was_gone_meanwhile(self) -> None:
        """W5: the same part of it is another one when it is back."""
        shared = Shared()
        shared.writer.publish(STANDING, store="rows-1")
        first = self.changes(shared)
        shared.writer.publish(evolve(STANDING, jobs=()), store="rows-1")
        assert self.changes(shared) == {}
        shared.writer.publish(STANDING, store="rows-1")
        assert not set(first.values()) & set(self.changes(shared).values())

    def test_a_heartbeat_changes_no_part(self) -> None:
        """Else reads would be refused several times a second."""
        shared = Shared()
        shared.writer.publish(STANDING, store="rows-1")
        first = self.changes(shared)
        shared.writer.publish(evolve(STANDING, direct_until_ns=60), store="rows-1")
        assert shared.look().direct_until_ns == 60
        assert self.changes(shared) == first


class TestTornReads:
    @pytest.mark.parametrize("direction", [1, -1])
    def test_no_mixture_of_two_pages_is_read(self, direction: int) -> None:
        """Whatever part of a write is seen, in either order: one page, or none."""
        shared = Shared(4096)
        shared.writer.publish(STANDING, store="rows-1")
        before, one = bytes(shared.memory), shared.look()
        (a, _), b = STANDING.jobs
        shared.writer.publish(
            evolve(STANDING, direct_until_ns=70, jobs=((a, False), b)), store="rows-1"
        )
        after, two = bytes(shared.memory), shared.look()
        seen = set()
        for cut in range(400):
            parts = (after, before)[::direction]
            shared.memory[:] = parts[0][:cut] + parts[1][cut:]
            content = shared.another().look()
            assert content in {None, one, two}
            seen.add(content)
        assert seen >= {None, one if direction == 1 else two}

    def test_a_writer_that_was_killed_meanwhile(self) -> None:
        """Q4: no one answers by a page that was not finished, until it is written."""
        shared = Shared()
        shared.writer.publish(STANDING, store="rows-1")
        shared.look()
        shared.memory[0] |= 1
        assert shared.reader.look() is None
        assert shared.another().look() is None
        successor = PageWriter(memoryview(shared.memory), "another")
        assert shared.look() == PageContent(run="another", store="")
        successor.publish(STANDING, store="rows-1")
        assert shared.look().run == "another"

    def test_a_successor_takes_no_number_again(self) -> None:
        """S3: else a reader that was left behind would go by what it has kept."""
        shared = Shared()
        for until_ns in range(51, 60):
            shared.writer.publish(
                evolve(STANDING, direct_until_ns=until_ns), store="rows-1"
            )
        assert shared.look().run == "run"
        PageWriter(memoryview(shared.memory), "another")
        assert shared.look() == PageContent(run="another", store="")

    def test_rubbish(self) -> None:
        """What no node has written is read by no one."""
        shared = Shared(4096)
        shared.memory[:] = b"\xfe" * 4096
        assert shared.another().look() is None


class TestRoom:
    @pytest.mark.proves("B1")
    def test_more_jobs_than_fit(self) -> None:
        """B1: those that do not are left out: clients ask the proxy about them."""
        shared = Shared(4096)
        jobs = tuple(
            (served_part(f"job-{number}" * 10, 1, (number,)), True)
            for number in range(200)
        )
        shared.writer.publish(evolve(STANDING, jobs=jobs), store="rows-1")
        found = shared.look().jobs
        assert 1 <= len(found) < 200
        assert shared.writer.left_out_count == 200 - len(found)
        shared.writer.publish(STANDING, store="rows-1")
        assert shared.writer.left_out_count == 0
