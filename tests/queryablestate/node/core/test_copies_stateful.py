"""
A node to which key groups come, and from which they go, while everything breaks.

The proxy and the store of `test_node_core_stateful`, and what moves are made of.  The
control plane here gives key groups and takes them away as it likes, and puts a copy
into use when the node has called it complete.  Of each copy the store keeps in mind
which entries it has the rows of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from attrs import define, field, frozen
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from queryablestate.node.core.effects import (
    ApplyEntry,
    CancelFetch,
    FetchKeyGroups,
    FinishCopy,
    HoldKeyGroups,
    NodeEffect,
    ResetJobRows,
    SendToProxy,
)
from queryablestate.node.core.events import (
    CopyAdvanced,
    CopyFinished,
    KeyGroupsFetched,
    KeyGroupsHeld,
    ProxyDisconnected,
    StoreOpened,
)
from queryablestate.node.core.jobs import ServedJob
from queryablestate.wire.job_assignment import CopySource, JobAssignment
from queryablestate.wire.node_messages import (
    AssignJob,
    FromNode,
    KeyGroupsCopied,
    RegisterNode,
    ResetJob,
)
from queryablestate.wire.questions import Question
from tests.queryablestate.node.core.test_core_stateful import (
    NodeMachine,
    Proxy,
    Work,
)
from tests.queryablestate.node_entries import assignment, joining, source
from tests.tiers import machine_settings


GROUPS: Final = (1, 2, 3)
"""Those that come and go; 0 is always answered for."""

SOURCES: Final = ("a", "b")
CALM_COUNT: Final = 10


@frozen(kw_only=True)
class Version:
    """One assignment of the key groups, as far as the node has a part in it."""

    sequence: int
    primary: frozenset[int]
    secondary: frozenset[int]
    joining: Mapping[int, int]


@define(kw_only=True)
class Copy:
    """A copy in the store: which entries it has the rows of."""

    since: int
    begun: int
    kept: set[int] = field(factory=set)
    base: int | None = None
    is_complete: bool = False


class MovingMachine(NodeMachine):
    """Drives the core while key groups move, and holds it against the dumbest model."""

    def __init__(self) -> None:
        super().__init__()
        self.versions = {
            1: Version(
                sequence=0,
                primary=frozenset({0, 1}),
                secondary=frozenset(),
                joining={},
            )
        }
        self.source_of = dict.fromkeys(GROUPS, "a")
        self.away: frozenset[str] = frozenset()
        self.reported: frozenset[int] = frozenset()  # to the present leader
        self.copies: dict[int, Copy] = {}
        self.fetch: FetchKeyGroups | None = None
        self.fetch_id = 0
        self.cancelled_ids: list[int] = []
        self.row_count = 0

    # -- the control plane ---------------------------------------------------------

    @property
    def present(self) -> Version:
        """Return the newest assignment."""
        return self.versions[self.version]

    def assigned(self) -> JobAssignment:
        """Return what the node is to answer for, to hold and to copy."""
        present = self.present
        sources = []
        for node_id in SOURCES:
            groups = [
                g for g in sorted(present.joining) if self.source_of[g] == node_id
            ]
            one = source(node_id, *groups)
            if node_id in self.away:
                one = CopySource(
                    node_id=node_id, address=None, key_groups=one.key_groups
                )
            if groups:
                sources.append(one)
        return assignment(
            version=self.version,
            key_groups=tuple(sorted(present.primary)),
            sequence=present.sequence,
            copies=tuple(sorted(present.secondary)),
            joining=joining(dict(present.joining)),
            sources=tuple(sources),
        )

    def tell(self) -> None:
        """Tell the node what it is assigned, if it is there."""
        self.reported = frozenset()
        if self.proxy.is_registered:
            command = AssignJob(leader_epoch=self.proxy.epoch, job=self.assigned())
            self.to_node.append(command)

    def write(
        self, primary: set[int], secondary: set[int], joined: dict[int, int]
    ) -> None:
        """Write another assignment, and tell the node."""
        self.version += 1
        self.versions[self.version] = Version(
            sequence=self.head,
            primary=frozenset(primary),
            secondary=frozenset(secondary),
            joining=joined,
        )
        self.tell()

    def hear(self, message: FromNode) -> None:
        """Take note of what is copied; of what was said of before, nothing."""
        if isinstance(message, RegisterNode):
            self.reported = frozenset()
        if not isinstance(message, KeyGroupsCopied) or not self.proxy.is_registered:
            super().hear(message)
            return
        self.proxy.heard_at_ns = self.now_ns
        if message.assignment_version == self.version:
            assert self.present.joining.keys() >= set(message.key_groups)
            self.reported = frozenset(message.key_groups)

    @rule(
        group=st.sampled_from(GROUPS),
        to=st.sampled_from(["join", "join", "join", "primary", "secondary", "leave"]),
        node_id=st.sampled_from(SOURCES),
    )
    def move(self, group: int, to: str, node_id: str) -> None:
        """A key group is to come, or goes, or another copy is the one to ask."""
        primary, secondary = set(self.present.primary), set(self.present.secondary)
        joined = dict(self.present.joining)
        is_held = group in primary | secondary
        if to in {"primary", "secondary"} and not is_held:
            return
        for groups in (primary, secondary):
            groups.discard(group)
        joined.pop(group, None)
        match to:
            case "join":
                joined[group] = self.head
                self.source_of[group] = node_id
            case "primary":
                primary.add(group)
            case "secondary":
                secondary.add(group)
            case _:
                pass
        self.write(primary, secondary, joined)

    @precondition(lambda self: self.reported)
    @rule(is_primary=st.booleans())
    def promote(self, is_primary: bool) -> None:
        """S1: what the node has called complete is put into use, and is complete."""
        joined = dict(self.present.joining)
        for group in self.reported:
            copy = self.copies[group]
            assert copy.is_complete
            assert copy.since == joined.pop(group)
        # W7: and nothing that is about to throw it away is on its way.
        resets = [one for one in self.to_node if isinstance(one, ResetJob)]
        assert not any(one.leader_epoch == self.proxy.epoch for one in resets)
        assert not any(isinstance(work, ResetJobRows) for work in self.work)
        primary, secondary = set(self.present.primary), set(self.present.secondary)
        (primary if is_primary else secondary).update(self.reported)
        self.write(primary, secondary, joined)

    @precondition(lambda self: self.is_calm and not self.work and not self.to_node)
    @rule()
    def prune(self) -> None:
        """
        No entry is kept any more: a node that is behind begins anew (W7).

        What is on its way to the node, or just being applied, it has not told of: that
        is kept for it.
        """
        self.calm_count = 0
        self.first_kept = self.head + 1

    @rule(away=st.frozensets(st.sampled_from(SOURCES)))
    def sources_go_and_come(self, away: frozenset[str]) -> None:
        """The proxy says so: of nodes that are away there is no address."""
        self.away = away
        self.tell()

    # -- the store -----------------------------------------------------------------

    def do(self, work: Work, failure: str | None) -> None:
        """Have the store do something, or fail."""
        match work:
            case HoldKeyGroups():
                if failure is None:
                    self.hold(work)
                groups = [one.key_group for one in work.joining]
                copies = [] if failure else [(g, self.copies[g]) for g in groups]
                missing = [(g, copy) for g, copy in copies if not copy.is_complete]
                event = KeyGroupsHeld(
                    job_id="job",
                    assignment_version=work.assignment_version,
                    copied=tuple(g for g, copy in copies if copy.is_complete),
                    missing=tuple(g for g, _ in missing),
                    sequence_min=max(
                        (max(copy.since, copy.begun) for _, copy in missing), default=0
                    ),
                    failure=failure,
                )
                self.step(event)
            case FinishCopy():
                if failure is None:
                    self.complete(work)
                event_groups = () if failure else work.key_groups
                self.step(
                    CopyFinished(
                        job_id="job",
                        fetch_id=work.fetch_id,
                        key_groups=tuple(g for g in event_groups if g in self.copies),
                        failure=failure,
                    )
                )
            case ApplyEntry(entry=entry):
                if failure is None:
                    for copy in self.copies.values():
                        if entry.sequence > copy.since:  # or else no rows were brought
                            copy.kept.add(entry.sequence)
                super().do(work, failure)
            case ResetJobRows():
                if failure is None:
                    self.copies = {
                        group.key_group: Copy(since=group.since, begun=work.sequence)
                        for group in work.joining
                    }
                super().do(work, failure)

    def hold(self, work: HoldKeyGroups) -> None:
        """Keep copies that are the same; drop and begin others."""
        copies = self.copies
        held = {g: copy for g, copy in copies.items() if g in work.key_groups}
        for copy in held.values():
            assert copy.is_complete  # S1: no half copy is ever in sync
        self.copies = held
        for key_group, since in ((g.key_group, g.since) for g in work.joining):
            known = copies.get(key_group)
            if known is None or known.since != since:
                known = Copy(since=since, begun=self.position or 0)
            self.copies[key_group] = known

    def complete(self, work: FinishCopy) -> None:
        """Apply what was kept; S2: then there is every entry, and nothing twice."""
        for key_group in work.key_groups:
            copy = self.copies.get(key_group)
            if copy is None or copy.is_complete:
                continue
            assert copy.base == work.sequence
            replayed = {one for one in copy.kept if one > copy.base}
            assert replayed == set(range(copy.base + 1, (self.position or 0) + 1))
            copy.is_complete = True

    def perform(self, effect: NodeEffect) -> None:
        """Do one thing."""
        works = [type(work) for work in self.work]
        match effect:
            case HoldKeyGroups():
                # W7: whatever it says after a reset is of after the reset.
                assert not {ResetJobRows, HoldKeyGroups, FinishCopy} & set(works)
                assert not set(effect.key_groups) & {
                    one.key_group for one in effect.joining
                }
                self.work.append(effect)
            case FetchKeyGroups(fetch_id=fetch_id, source=place):
                assert self.fetch is None  # one at a time
                assert not {ResetJobRows, HoldKeyGroups, FinishCopy} & set(works)
                assert fetch_id > self.fetch_id
                assert place.address is not None
                assert place.key_groups
                for copy in map(self.copies.__getitem__, place.key_groups):
                    assert not copy.is_complete
                    assert effect.sequence_min >= max(copy.since, copy.begun)
                self.fetch, self.fetch_id = effect, fetch_id
            case CancelFetch():
                assert self.fetch is not None
                self.cancelled_ids.append(self.fetch.fetch_id)
                self.fetch = None
            case FinishCopy(sequence=sequence):
                assert FinishCopy not in works
                assert (self.position or 0) >= sequence
                assert self.fetch is None
                self.work.append(effect)
            case SendToProxy(message=KeyGroupsCopied() as message):
                joined = self.versions[message.assignment_version].joining
                for key_group in message.key_groups:
                    copy = self.copies[key_group]
                    assert copy.is_complete
                    assert copy.since == joined[key_group]
                assert self.is_connected
                self.to_proxy.append(message)
            case _:
                super().perform(effect)

    def check_may_answer(self, one: Question, served: ServedJob) -> None:
        """S1, S3: for what is in sync, as far as those who answered before."""
        super().check_may_answer(one, served)
        version = self.versions[served.assignment_version]
        assert set(served.key_groups) == version.primary
        assert (self.position or 0) >= version.sequence
        for key_group in served.key_groups:
            copy = self.copies.get(key_group)
            assert copy is None or copy.is_complete

    # -- what happens --------------------------------------------------------------

    @precondition(lambda self: self.fetch)
    @rule(back=st.integers(0, 3), is_failing=st.sampled_from([False, False, True]))
    def fetched(self, back: int, is_failing: bool) -> None:
        """A source has sent all rows, as they were a while ago; or it fails."""
        assert self.fetch is not None
        fetch, self.fetch = self.fetch, None
        sequence = max(fetch.sequence_min, self.head - back)
        assert sequence <= self.head
        if is_failing:
            sequence = 0
        else:
            for copy in map(self.copies.__getitem__, fetch.source.key_groups):
                copy.base = sequence
        self.step(
            KeyGroupsFetched(
                job_id="job",
                fetch_id=fetch.fetch_id,
                sequence=sequence,
                failure="unreachable" if is_failing else None,
            )
        )

    @precondition(lambda self: self.fetch)
    @rule(count=st.integers(1, 9))
    def rows_come(self, count: int) -> None:
        """Some rows are there, and the core is told."""
        self.row_count += count
        event = CopyAdvanced(
            job_id="job", row_count=self.row_count, size_bytes=self.row_count
        )
        self.step(event)

    @precondition(lambda self: self.cancelled_ids)
    @rule(is_failing=st.booleans())
    def hear_of_what_is_cancelled(self, is_failing: bool) -> None:
        """A fetch had ended before it was cancelled, and the core hears of it late."""
        self.step(
            KeyGroupsFetched(
                job_id="job",
                fetch_id=self.cancelled_ids.pop(),
                sequence=0 if is_failing else self.head,
                failure="unreachable" if is_failing else None,
            )
        )

    @precondition(lambda self: self.is_calm)
    @rule()
    def restart(self) -> None:
        """The process is killed: what the disk has is there, and nothing else."""
        self.calm_count = 0
        self.break_connection()
        self.work.clear()
        self.waiting.clear()
        self.fetch, self.fetch_id = None, 0
        self.cancelled_ids.clear()
        self.row_count = 0
        for copy in self.copies.values():
            if not copy.is_complete:
                copy.base = None
        self.core = self.new_core()
        self.is_connecting = False
        positions = {} if self.position is None else {"job": self.position}
        self.step(
            StoreOpened(
                store_id="s", control_id="c", positions=positions, fences={}, lost={}
            )
        )
        self.proxy = Proxy(self.proxy.epoch + 1)
        self.reported = frozenset()
        self.find()

    @precondition(lambda self: self.is_calm)
    @rule()
    def elect(self) -> None:
        """Another proxy leads: it knows of no copy that is complete."""
        self.reported = frozenset()
        super().elect()

    @rule(count=st.integers(1, 3))
    def settle(self, count: int) -> None:
        """For a while everybody does what is to be done."""
        self.work_together(count)

    @precondition(lambda self: self.present.joining)
    @rule(
        decided_count=st.integers(0, 3),
        back=st.integers(0, 3),
        is_failing=st.sampled_from([False, False, True]),
        is_promoted=st.booleans(),
        other=st.sampled_from([None, None, None, "join", "leave"]),
    )
    def copy(
        self,
        decided_count: int,
        back: int,
        is_failing: bool,
        is_promoted: bool,
        other: str | None,
    ) -> None:
        """A copy is made, while batches are decided; perhaps it is put into use."""
        self.work_together(4)
        if self.fetch is not None and other is not None:
            group = self.fetch.source.key_groups[0]
            self.move(group=group, to=other, node_id="b")
            self.work_together(4)
            if self.cancelled_ids:
                self.hear_of_what_is_cancelled(is_failing=False)
        if self.fetch is not None:
            for _ in range(decided_count):
                self.decide()
                self.work_together(2)
        if self.fetch is not None:
            self.fetched(back=back, is_failing=is_failing)
            self.work_together(3)
        if is_promoted and self.reported:
            self.promote(is_primary=True)

    @precondition(lambda self: self.is_calm and self.present.joining)
    @rule(is_pruned=st.booleans())
    def come_back_late(self, is_pruned: bool) -> None:
        """A node has missed something; the proxy does what it can as soon as it can."""
        self.calm_count = 0
        self.break_connection()
        self.is_connecting = True
        self.step(ProxyDisconnected())
        self.decide()
        if is_pruned:
            self.first_kept = self.head + 1
        self.jump()
        self.connect()
        for _ in range(4):
            while self.to_proxy:
                self.hear(self.to_proxy.popleft())
            self.arrive()
            if self.work:
                self.finish(is_failing=False)
            if self.reported:
                self.promote(is_primary=True)

    def work_together(self, count: int) -> None:
        """Have everybody do what is to be done, but for those who send rows."""
        for _ in range(count):
            self.talk(count=4)
            if self.work:
                self.finish(is_failing=False)

    @property
    def is_calm(self) -> bool:
        """Return whether it is time for something to break: copies take a while."""
        return self.calm_count >= CALM_COUNT

    # -- what always holds ---------------------------------------------------------

    @invariant()
    def what_is_fetched_is_wanted(self) -> None:
        """S2: never more than one fetch, and none for nothing."""
        figures = self.core.figures(now_ns=self.now_ns)
        if self.fetch is not None:
            assert figures["key_groups_copying"] > 0

    def go_on(self) -> None:
        """Have everybody do what is to be done, and nothing break."""
        if self.away:
            self.sources_go_and_come(frozenset())
        if self.fetch is not None:
            self.fetched(back=0, is_failing=False)
        super().go_on()

    def is_served(self) -> bool:
        """Return whether the node answers, and all that was to be copied is."""
        return super().is_served() and self.reported == self.present.joining.keys()


MovingMachine.TestCase.settings = machine_settings(examples=200, steps=60)
TestMoves = pytest.mark.proves("S1", "S2", "S3")(MovingMachine.TestCase)
