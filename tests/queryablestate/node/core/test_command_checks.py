from __future__ import annotations

import pytest

from nameservice import RemoteProtocolError
from queryablestate.node.core.command_checks import check_command
from queryablestate.wire.job_assignment import CopySource, JobAssignment
from queryablestate.wire.node_messages import (
    AssignJob,
    CollectStages,
    FenceWriters,
    NodeEmptied,
    NodeRegistered,
    ToNode,
)
from tests.queryablestate.node_entries import assignment, joining, source


KEY = "?key=" + "0a" * 32


def assign(job: JobAssignment) -> AssignJob:
    """Return a command that assigns *job*."""
    return AssignJob(leader_epoch=1, job=job)


def register(*jobs: JobAssignment, session_timeout_ms: int = 1) -> NodeRegistered:
    """Return an answer that assigns *jobs*."""
    return NodeRegistered(
        leader_epoch=1,
        control_id="c",
        session_timeout_ms=session_timeout_ms,
        jobs=jobs,
    )


def collect(
    *sources: CopySource, timeout_ms: int = 1, assignment_version: int = 1
) -> CollectStages:
    """Return a command to collect rows from *sources*."""
    return CollectStages(
        leader_epoch=1,
        verify_id=1,
        job_id="job",
        query_id="q",
        writer_epoch=1,
        batch_id=0,
        assignment_version=assignment_version,
        stages=(),
        sources=sources,
        timeout_ms=timeout_ms,
    )


def at(address: str | None, *key_groups: int) -> CopySource:
    """Return a source that is reached at *address*."""
    return CopySource(node_id="a", address=address, key_groups=key_groups)


def moving(*sources: CopySource) -> JobAssignment:
    """Return an assignment by which key groups 1 and 2 are copied from *sources*."""
    return assignment(key_groups=(0,), joining=joining({1: 0, 2: 5}), sources=sources)


class TestJobs:
    """A node holds no key group that no key can have, and each in one way."""

    @pytest.mark.proves("S1")
    @pytest.mark.parametrize(
        ("job", "expected"),
        [
            (assignment(max_parallelism=0), "a max parallelism of 0"),
            (assignment(max_parallelism=32_769), "a max parallelism of 32769"),
            (assignment(version=-1), "version -1 of an assignment"),
            (assignment(sequence=-1), "made after entry -1"),
            (assignment(key_groups=(4,)), "key groups outside 0 to 3"),
            (assignment(key_groups=(-1,)), "key groups outside 0 to 3"),
            (assignment(key_groups=(1, 0)), "not sorted"),
            (assignment(key_groups=(1, 1)), "not sorted"),
            (assignment(key_groups=(), copies=(4,)), "key groups outside 0 to 3"),
            (assignment(key_groups=(), copies=(2, 1)), "not sorted"),
            (assignment(key_groups=(0, 1), copies=(1,)), "held in two ways"),
            (
                assignment(
                    copies=(2,), joining=joining({2: 1}), sources=(source("a", 2),)
                ),
                "held in two ways",
            ),
            (
                assignment(joining=joining({4: 1}), sources=(source("a", 4),)),
                "key groups outside 0 to 3",
            ),
            (
                assignment(joining=joining({2: -1}), sources=(source("a", 2),)),
                "a copy of key group 2 since",
            ),
        ],
    )
    def test_key_groups_that_cannot_be_are_refused(
        self, job: JobAssignment, expected: str
    ) -> None:
        """S1: whether they are asked, kept or copied; alone or among others."""
        for command in (assign(job), register(assignment("other"), job)):
            with pytest.raises(RemoteProtocolError, match=expected):
                check_command(command)

    @pytest.mark.proves("S2")
    @pytest.mark.parametrize(
        ("job", "expected"),
        [
            (moving(source("a", 1)), "sources that do not offer exactly"),
            (moving(source("a", 1, 2, 3)), "sources that do not offer exactly"),
            (moving(source("a", 1, 2), source("b", 2)), "with two sources"),
            (moving(source("a", 2, 1)), "not sorted"),
            (moving(source("a", 1, 2, 4)), "key groups outside 0 to 3"),
            (moving(at("tcp://*:1", 1, 2)), "the address of 'a'"),
            (moving(at("elsewhere", 1, 2)), "the address of 'a'"),
            (moving(at("tcp://10.0.0.1:1?key=0a", 1, 2)), "the address of 'a'"),
        ],
    )
    def test_sources_that_cannot_be_are_refused(
        self, job: JobAssignment, expected: str
    ) -> None:
        """S2: each key group is copied from one place, which can be reached."""
        with pytest.raises(RemoteProtocolError, match=expected):
            check_command(assign(job))

    @pytest.mark.parametrize("session_timeout_ms", [0, -1])
    def test_a_session_timeout_is_positive(self, session_timeout_ms: int) -> None:
        """A node without a timeout would ask without end."""
        with pytest.raises(RemoteProtocolError, match="a session timeout below 1 ms"):
            check_command(register(session_timeout_ms=session_timeout_ms))

    def test_a_job_is_assigned_once(self) -> None:
        """It would not be clear which of the two holds."""
        with pytest.raises(RemoteProtocolError, match="assigned twice"):
            check_command(register(assignment(), assignment()))


class TestOthers:
    """S2, O6: what else a node is told."""

    @pytest.mark.parametrize(
        ("command", "expected"),
        [
            (collect(timeout_ms=-1), "a timeout of -1 ms"),
            (collect(assignment_version=-1), "version -1 of an assignment"),
            (collect(source("a", 1), source("b", 1)), "with two sources"),
            (collect(source("a", 32_768)), "key groups outside 0 to 32767"),
            (collect(at("elsewhere", 1)), "the address of 'a'"),
            (NodeEmptied(leader_epoch=1, reason="tired"), "since 'tired'"),
        ],
    )
    def test_what_makes_no_sense_is_refused(
        self, command: ToNode, expected: str
    ) -> None:
        """Rows are collected once, from where they can be had."""
        with pytest.raises(RemoteProtocolError, match=expected):
            check_command(command)

    @pytest.mark.parametrize(
        "command",
        [
            assign(assignment(key_groups=())),
            assign(assignment(key_groups=(0, 3), copies=(1, 2), sequence=9)),
            assign(moving(source("a", 1, 2))),
            assign(moving(at(None, 1), source("b", 2))),
            assign(moving(at(f"tcp://10.0.0.1:1{KEY}", 1, 2))),
            register(),
            register(assignment(), assignment("other")),
            FenceWriters(leader_epoch=1, fences=()),
            collect(source("a", 1), at(None, 2)),
            NodeEmptied(leader_epoch=1, reason="empty"),
            NodeEmptied(leader_epoch=1, reason="nobody"),
        ],
    )
    def test_what_makes_sense_passes(self, command: ToNode) -> None:
        """Nothing else is looked at here."""
        check_command(command)
