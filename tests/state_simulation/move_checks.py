"""
What must hold while key groups move: each check names its rule (S1 to S4).

The books follow the assignments that the leader store takes, and look into the data
directories; they trust nothing that a core says of itself.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from queryablestate.wire.records import BatchDecided, collected_stage_id
from tests.state_simulation.content import live_at


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from queryablestate.node.core.effects import ResetJobRows
    from queryablestate.wire.node_messages import CollectStages
    from queryablestate.wire.records import AssignmentRecord
    from queryablestate.wire.staging_messages import StagedRows
    from tests.state_simulation.checkers import Checker
    from tests.state_simulation.content import Row
    from tests.state_simulation.disk import Disk
    from tests.state_simulation.model import StateModel


__all__ = ["MoveChecker"]


@final
class MoveChecker:
    """
    Books over assignments and copies.

    Args:
        checker: Counts what is checked, and has the books of jobs and disks.
        is_in_use: Returns whether a data directory is the one that its node has now.
        has_come_back: Returns whether the control plane has heard of the present
            process of a node.
        now_us: Returns what the wall clocks show.

    Attributes:
        present: The assignment of each job.
        losable: Key groups of which every in-sync copy was on a data directory that
            was lost: only their rows may be missing.
        answered_at: When each key group of each state was answered for last.
        collected: Stages that nodes have collected rows of, by the id they are kept
            under.
    """

    def __init__(
        self,
        checker: Checker,
        is_in_use: Callable[[str], bool],
        has_come_back: Callable[[str], bool],
        now_us: Callable[[], int],
    ) -> None:
        self._checker = checker
        self._has_come_back = has_come_back
        self._now_us = now_us
        self._require = checker.require
        self._is_in_use = is_in_use
        self.present: dict[str, AssignmentRecord] = {}
        self.losable: set[tuple[str, int]] = set()
        self.collected: dict[bytes, bytes] = {}
        self.counts: Counter[str] = Counter()
        self._versions: dict[tuple[str, int], AssignmentRecord] = {}
        self._primaries: dict[tuple[str, int, int], str] = {}
        self._put_back: set[str] = set()
        self._doubtful: set[tuple[str, str, int]] = set()

    # -- assignments -----------------------------------------------------------------

    def written(
        self,
        job_id: str,
        record: AssignmentRecord,
        *,
        is_settled: bool,
        registered: Mapping[str, str],
    ) -> None:
        """
        Take note of an assignment that the leader store took.

        Args:
            job_id: Of which job.
            record: The assignment.
            is_settled: Whether the proxy leader may change one.
            registered: The data directory of each node as the control plane has it.
        """
        require, former = self._require, self.present.get(job_id)
        if former is not None:
            self._end_doubts(job_id)
        sequence = self._checker.job(job_id).sequence
        require(
            "S2 an assignment is ordered with decisions",
            record.sequence == sequence,
            record,
            "after entry",
            sequence,
        )
        count = len(record.node_ids)
        for owners in record.owners:
            require(
                "S1 a key group has one primary, and copies on different nodes",
                bool(owners)
                and len(set(owners)) == len(owners)
                and all(0 <= index < count for index in owners),
                record,
            )
        self.present[job_id] = self._versions[job_id, record.version] = record
        if former is not None:
            require(
                "S2 assignments have rising versions",
                record.version == former.version + 1,
                record,
                "after",
                former,
            )
            require(
                "S2 a new leader waits before it changes an assignment",
                is_settled,
                record,
            )
            for key_group in range(len(record.owners)):
                self._check_step(job_id, former, record, key_group, registered)
            self._count(former, record)
        elif self._checker.job(job_id).restored:
            for store_id in self._put_back:  # what was loaded there may be gone
                self._doubt(store_id, job_id)
        self.look_for_losses(job_id)

    def _check_step(
        self,
        job_id: str,
        former: AssignmentRecord,
        record: AssignmentRecord,
        key_group: int,
        registered: Mapping[str, str],
    ) -> None:
        require = self._require
        job = self._checker.job(job_id)
        has_rows = any(one.has_rows_at(job.sequence) for one in job.states.values())
        before = _owners(former, key_group)
        after = _owners(record, key_group)
        # What is begun on another data directory is another copy.
        joining = {
            node_id: since
            for node_id, since in _joining(former, key_group).items()
            if node_id in record.node_ids
            and _store_id(record, node_id) == _store_id(former, node_id)
        }
        for node_id in after:
            if node_id in before or not has_rows:
                continue  # of a job without rows everybody has a whole copy
            require(
                "S1 only a copy that was being made is promoted",
                node_id in joining,
                node_id,
                key_group,
                record,
                "after",
                former,
            )
            store_id = _store_id(record, node_id)
            if (store_id, job_id, key_group) in self._doubtful:
                if not self._has_come_back(node_id):
                    continue  # it was promoted before anything was known of that
                self._doubtful.remove((store_id, job_id, key_group))
            self._check_promoted(job_id, self._checker.disks[store_id], key_group)
        for node_id, since in _joining(record, key_group).items():
            require(
                "S2 each node that is to have rows is brought what is decided since",
                since == joining.get(node_id, record.sequence),
                node_id,
                key_group,
                record,
                "after",
                former,
            )
        had = [n for n in before if self._is_sound(job_id, key_group, former, n)]
        if had and not any(self._is_sound(job_id, key_group, record, n) for n in after):
            require(
                "S1 a sound copy is not given up for one that is known to be lost",
                any(registered.get(n) == _store_id(record, n) for n in after),
                key_group,
                record,
                "after",
                former,
            )

    def _check_promoted(self, job_id: str, disk: Disk, key_group: int) -> None:
        """See to it that a copy that is in sync from now on is whole."""
        require = self._require
        require(
            "S1 a copy is in sync only when it is complete",
            key_group in disk.complete(job_id),
            disk,
            key_group,
        )
        position = disk.position(job_id)
        for number, state in self._checker.job(job_id).states.items():
            expected = contents_at(state, position)
            if disk.lost(number, (key_group,)):
                self._check_lost(job_id, key_group, disk)
                continue
            now_us = self._now_us()
            expected = live_at(expected, state.plan, now_us)
            contents = disk.contents(number, state.plan, (key_group,), now_us)
            require(
                "S1 a copy holds what the chain says when it is put into use",
                (contents or {}) == _part(expected, (key_group,)),
                disk,
                "at entry",
                position,
                state.plan.state_name,
                contents,
                "instead of",
                _part(expected, (key_group,)),
            )

    def _check_lost(self, job_id: str, key_group: int, disk: Disk) -> None:
        self._require(
            "S1 rows are lost only if every copy of them is",
            (job_id, key_group) in self.losable,
            job_id,
            key_group,
            disk,
        )

    def _count(self, former: AssignmentRecord, record: AssignmentRecord) -> None:
        counts = self.counts
        counts["assignments changed"] += 1
        for key_group in range(len(record.owners)):
            before = set(_owners(former, key_group))
            after = set(_owners(record, key_group))
            joining = _joining(former, key_group)
            counts["copies promoted"] += len(after - before)
            counts["copies taken out"] += len(before - after)
            counts["copies given up"] += len(
                joining.keys() - after - _joining(record, key_group).keys()
            )
            moved = _owners(former, key_group)[0] != _owners(record, key_group)[0]
            counts["primaries changed"] += moved

    def _is_sound(
        self, job_id: str, key_group: int, record: AssignmentRecord, node_id: str
    ) -> bool:
        """Return whether a copy is on a data directory that has been there since."""
        store_id = _store_id(record, node_id)
        is_doubtful = (store_id, job_id, key_group) in self._doubtful
        return self._is_in_use(store_id) and not is_doubtful

    def had_applied(
        self, node_id: str, disk: Disk | None, job_id: str, sequence: int
    ) -> bool:
        """Return whether a node had an entry, and it is not known that it has not."""
        return (
            disk is not None
            and disk.had_applied(job_id, sequence)
            and not self._has_come_back(node_id)
        )

    def _staged(
        self, node_id: str, disk: Disk, key: tuple[bytes, int]
    ) -> StagedRows | None:
        """Return a chunk that is there, as far as the control plane can know."""
        rows = disk.staged.get(key)
        if rows is None and not self._has_come_back(node_id):
            return disk.vanished.get(key)
        return rows

    def _end_doubts(self, job_id: str) -> None:
        """Take copies for sound again that have all there is, known to be there."""
        sequence = self._checker.job(job_id).sequence
        for one in [one for one in self._doubtful if one[1] == job_id]:
            store_id, _, key_group = one
            record, disk = self.present[job_id], self._checker.disks[store_id]
            if store_id not in record.store_ids or disk.position(job_id) < sequence:
                continue
            node_id = record.node_ids[record.store_ids.index(store_id)]
            if (
                node_id in _owners(record, key_group)
                and self._has_come_back(node_id)
                and self._is_whole(job_id, disk, key_group)
            ):
                self._doubtful.discard(one)

    def _is_whole(self, job_id: str, disk: Disk, key_group: int) -> bool:
        """Return whether a copy holds what the chain says."""
        if key_group not in disk.complete(job_id):
            return False
        now_us = self._now_us()
        for number, state in self._checker.job(job_id).states.items():
            expected = contents_at(state, disk.position(job_id))
            expected = _part(live_at(expected, state.plan, now_us), (key_group,))
            contents = disk.contents(number, state.plan, (key_group,), now_us)
            if disk.lost(number, (key_group,)) or (contents or {}) != expected:
                return False
        return True

    def put_back(self, store_id: str) -> None:
        """Doubt what is on a data directory that was put back to an older state."""
        self._put_back.add(store_id)
        for job_id in self.present:
            self._doubt(store_id, job_id)
        self.look_for_losses()

    def _doubt(self, store_id: str, job_id: str) -> None:
        count = len(self.present[job_id].owners)
        self._doubtful.update((store_id, job_id, group) for group in range(count))

    def look_for_losses(self, job_id: str | None = None) -> None:
        """Take note of key groups of which every in-sync copy is lost now."""
        for one in self.present if job_id is None else (job_id,):
            record = self.present[one]
            for key_group in range(len(record.owners)):
                if not any(
                    self._is_sound(one, key_group, record, node_id)
                    for node_id in _owners(record, key_group)
                ):
                    self.losable.add((one, key_group))

    # -- decisions -------------------------------------------------------------------

    def decided(
        self,
        job_id: str,
        entry: BatchDecided,
        expected: Mapping[int, Sequence[Row]],
        registered: Mapping[str, str],
    ) -> None:
        """
        Take note of a batch, before it is in the books.

        Args:
            job_id: Of which job.
            entry: The decision.
            expected: What the batch brings to nodes, by state number.
            registered: The data directory of each node as the control plane has it.
        """
        record = self.present[job_id]
        self._require(
            "S2 a decision names the present assignment",
            entry.assignment_version == record.version,
            entry,
            record,
        )
        for node_id in record.node_ids:
            key_groups = {
                key_group
                for key_group in range(len(record.owners))
                if node_id in _owners(record, key_group)
                or node_id in _joining(record, key_group)
            }
            disk = self._checker.disks[registered[node_id]]
            brought: dict[int, list[tuple[bytes, bytes | None]]] = {}
            for stage in entry.stages:
                for index in range(stage.chunk_counts.get(node_id, 0)):
                    rows = self._staged(node_id, disk, (stage.stage_id, index))
                    self._require(
                        "W3 no decision names rows that no node has",
                        rows is not None,
                        node_id,
                        "lacks chunks for",
                        entry,
                    )
                    assert rows is not None
                    brought.setdefault(rows.state_number, []).extend(
                        (key, value)
                        for key, value in zip(rows.keys, rows.values, strict=True)
                        if int.from_bytes(key[:2], "big") in key_groups
                    )
            for number, all_rows in expected.items():
                due = [(r.key, r.value) for r in all_rows if r.group in key_groups]
                self._require(
                    "S2 each node that has or makes a copy is brought its rows, once",
                    sorted(brought.get(number, []), key=repr) == sorted(due, key=repr),
                    node_id,
                    sorted(key_groups),
                    entry,
                    brought.get(number),
                    "instead of",
                    due,
                )

    def collects(self, command: CollectStages) -> None:
        """Take note that a node is to collect rows."""
        groups = sorted({g for one in command.sources for g in one.key_groups})
        for stage in command.stages:
            kept_id = collected_stage_id(
                stage.stage_id, command.assignment_version, groups
            )
            self.collected[kept_id] = stage.stage_id

    # -- answers ---------------------------------------------------------------------

    def answered(
        self,
        job_id: str,
        node_id: str,
        disk: Disk,
        *,
        version: int,
        key_groups: Sequence[int],
        lost: Sequence[int],
        is_copy: bool = False,
    ) -> None:
        """
        Take note that a node answers.

        Args:
            job_id: For a state of which job.
            node_id: Which node.
            disk: Its data directory.
            version: By which assignment it was asked.
            key_groups: For which key groups.
            lost: Those of them of which the store says that their rows are lost.
            is_copy: Whether it was asked as one that has an in-sync copy (rule D4).
        """
        require = self._require
        require("W7 rows that were lost are not answered for", not lost, disk, lost)
        record = self._versions[job_id, version]
        complete = disk.complete(job_id)
        for key_group in key_groups:
            require(
                "S1 only whole copies answer",
                key_group in complete,
                disk,
                key_group,
                complete,
            )
            if is_copy:
                require(
                    "D4 only in-sync copies answer in place of a primary",
                    node_id in _owners(record, key_group)[1:],
                    node_id,
                    key_group,
                    record,
                )
                continue
            require(
                "S3 only the primary of a key group answers for it",
                _owners(record, key_group)[0] == node_id,
                node_id,
                key_group,
                record,
            )
            primary = self._primaries.setdefault((job_id, version, key_group), node_id)
            require(
                "S3 one node at most answers for a key group under one assignment",
                primary == node_id,
                node_id,
                "after",
                primary,
            )
        require(
            "S2 a node answers once it has applied what came before its assignment",
            disk.position(job_id) >= record.sequence,
            disk,
            disk.position(job_id),
            record,
        )

    def begun_anew(self, node_id: str, disk: Disk, effect: ResetJobRows) -> None:
        """Take note that a node is told to begin a job with nothing."""
        record, job = self.present[effect.job_id], self._checker.job(effect.job_id)
        holds = any(node_id in _owners(record, g) for g in range(len(record.owners)))
        # It may hear late: what was dropped before it was in sync is no loss. What was
        # decided after it is to begin, and is not here yet, is applied afterwards.
        begins = max(effect.sequence, disk.position(effect.job_id))
        sequence = max(effect.sequence, record.sequence)
        has_rows = any(
            state.has_rows_at(begins) and state.has_rows_at(sequence)
            for state in job.states.values()
        )
        # Rows of a snapshot are loaded, and become the job's with its first entry.
        has_loaded = bool(job.restored) and effect.sequence < job.sequence_first
        # It was asked for them before an older state of its disk was put back.
        next_index = max(0, disk.position(effect.job_id) + 1 - job.sequence_first)
        has_verified = any(
            (stage.stage_id, index) in disk.vanished
            for entry in job.chain[next_index:]
            if isinstance(entry, BatchDecided)
            for stage in entry.stages
            for index in range(stage.chunk_counts.get(node_id, 0))
        )
        is_suspect = disk.is_suspect(effect.job_id)
        self._require(
            "W7 rows are given up only if a disk was lost or exchanged",
            not (holds and has_rows) or is_suspect or has_loaded or has_verified,
            disk,
            effect,
            record,
        )

    # -- at the end ------------------------------------------------------------------

    def check_balance(self, job_id: str, node_count: int) -> None:
        """
        See to it that a job that is settled is as it should be.

        Args:
            job_id: The job.
            node_count: How many nodes could have it.
        """
        record = self.present[job_id]
        group_count = len(record.owners)
        due_count = min(record.node_count, node_count, group_count)
        copies: Counter[int] = Counter()
        primaries: Counter[int] = Counter()
        for owners in record.owners:
            copies.update(owners)
            primaries[owners[0]] += 1
        require = self._require
        require(
            "S1 a settled job has the nodes that are wanted",
            len(record.node_ids) == due_count and not any(record.joining),
            record,
            "of",
            node_count,
        )
        degree = min(record.replica_count, due_count)
        require(
            "S4 each key group has the copies that are wanted",
            all(len(owners) == degree for owners in record.owners),
            record,
        )
        for counts in (copies, primaries):
            every = [counts[index] for index in range(due_count)]
            require(
                "S1 copies are balanced to within one",
                max(every) - min(every) <= 1,
                record,
                every,
            )

    def check_disk(self, node_id: str, disk: Disk, job_id: str) -> None:
        """Compare what a node has with what it should have, to the last row."""
        require, record = self._require, self.present[job_id]
        held = tuple(
            g for g in range(len(record.owners)) if node_id in _owners(record, g)
        )
        others = tuple(g for g in range(len(record.owners)) if g not in held)
        job = self._checker.job(job_id)
        if held:
            require(
                "W3 everything decided is applied everywhere",
                disk.position(job_id) == job.sequence,
                disk,
                disk.position(job_id),
                "of",
                job.sequence,
            )
        if held or disk.position(job_id) >= 0:
            require(
                "S1 a node holds what it is assigned, and nothing else",
                disk.complete(job_id) == held and disk.copying(job_id) == 0,
                disk,
                job_id,
                disk.complete(job_id),
                "instead of",
                held,
            )
        require(
            "S2 entries are kept for copies only as long as they are needed",
            not disk.kept_entries(job_id),
            disk,
            disk.kept_entries(job_id),
        )
        for number, state in sorted(job.states.items()):
            now_us = self._now_us()
            rest = disk.contents(number, state.plan, others, now_us=1)
            require(
                "S1 rows that a node gives away are gone",
                not rest,
                disk,
                number,
                rest,
            )
            lost = disk.lost(number, held)
            for key_group in lost:
                self._check_lost(job_id, key_group, disk)
            sound = tuple(g for g in held if g not in lost)
            if not sound:
                continue
            contents = disk.contents(number, state.plan, sound, now_us)
            if state.dropped_at is not None or not state.versions:
                require("W5 what was dropped is gone", contents is None, number)
                continue
            newest = live_at(state.versions[-1].contents, state.plan, now_us)
            expected = _part(newest, sound)
            require(
                "W3 a node holds what the chain says, whole and once",
                (contents or {}) == expected,
                state.plan.state_name,
                disk,
                contents,
                "instead of",
                expected,
            )


def contents_at(state: StateModel, position: int) -> Mapping[bytes, tuple[bytes, ...]]:
    """Return what a state holds once the entry *position* is applied."""
    if state.dropped_at is not None and state.dropped_at <= position:
        return {}
    for version in reversed(state.versions):
        if version.sequence <= position:
            return version.contents
    return {}


def _part(
    contents: Mapping[bytes, tuple[bytes, ...]], key_groups: Sequence[int]
) -> dict[bytes, tuple[bytes, ...]]:
    """Return the rows of some key groups."""
    return {
        key: values
        for key, values in contents.items()
        if int.from_bytes(key[:2], "big") in key_groups
    }


def _owners(record: AssignmentRecord, key_group: int) -> list[str]:
    return [record.node_ids[index] for index in record.owners[key_group]]


def _joining(record: AssignmentRecord, key_group: int) -> dict[str, int]:
    copies = record.joining[key_group] if record.joining else ()
    return {record.node_ids[copy.node_index]: copy.since for copy in copies}


def _store_id(record: AssignmentRecord, node_id: str) -> str:
    return record.store_ids[record.node_ids.index(node_id)]
