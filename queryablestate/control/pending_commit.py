"""A batch on its way from staged to applied, and who waits for it; pure."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias, final

from attrs import Factory, define, frozen

from queryablestate.control.effects import AnswerWriter, RefuseWriter
from queryablestate.wire.clients import BatchCommitted


if TYPE_CHECKING:
    from collections.abc import Collection

    from nameservice import NameServiceError
    from queryablestate.control.commit_verification import Verification
    from queryablestate.control.effects import ControlEffect
    from queryablestate.control.events import LinkId
    from queryablestate.wire.clients import CommitBatch


__all__ = ["CommitKey", "CommitPhase", "CommitWaiter", "PendingCommit", "key_of"]

CommitKey: TypeAlias = "tuple[str, str, int, int | None, tuple[int, ...]]"


class CommitPhase(Enum):
    """How far a commit is; see `queryablestate.control.commits`."""

    VERIFYING = "verifying"
    DECIDING = "deciding"
    APPLYING = "applying"


@final
@frozen(kw_only=True)
class CommitWaiter:
    """
    A writer that waits for a commit.

    Attributes:
        link: Its connection.
        request_id: The request that is to be answered.
        asked_at_ns: When it asked.
        deadline_ns: Until when it waits.
    """

    link: LinkId
    request_id: int
    asked_at_ns: int
    deadline_ns: int


@final
@define(kw_only=True)
class PendingCommit:
    """
    A batch on its way.

    Attributes:
        key: What names it.
        request: As it was asked for last.
        batch_id: The number that its rows are staged under.
        verification: What the nodes have said of these rows.
        wall_clock_us: The wall clock when it was asked for last.
        asked_at_ns: The time when that was.
        phase: How far it is.
        waiters: Who is to be told.
        sequence: Its place in the chain, from APPLYING on.
        is_repeated: Whether it had been decided before it was asked for.
        is_outdated: Whether rights were replaced since it was asked for.
    """

    key: CommitKey
    request: CommitBatch
    batch_id: int
    verification: Verification
    wall_clock_us: int
    asked_at_ns: int
    phase: CommitPhase = CommitPhase.VERIFYING
    waiters: list[CommitWaiter] = Factory(list)
    sequence: int = 0
    is_repeated: bool = False
    is_outdated: bool = False

    @property
    def deadline_ns(self) -> int:
        """Return until when a caller waits for it; 0 if none does."""
        return max((waiter.deadline_ns for waiter in self.waiters), default=0)

    def forget_links(self, links: Collection[LinkId]) -> None:
        """Forget who waited over these connections."""
        self.waiters = [one for one in self.waiters if one.link not in links]

    def give_up_late(self, now_ns: int) -> list[CommitWaiter]:
        """Forget those whose time is up, and return them."""
        late = [waiter for waiter in self.waiters if waiter.deadline_ns <= now_ns]
        if late:
            self.waiters = [one for one in self.waiters if one.deadline_ns > now_ns]
        return late

    def answers(self) -> list[ControlEffect]:
        """Tell all that wait that it is committed, and applied."""
        return [
            AnswerWriter(
                link=waiter.link,
                message=BatchCommitted(
                    request_id=waiter.request_id,
                    batch_id=self.batch_id,
                    is_repeated=self.is_repeated,
                ),
            )
            for waiter in self.waiters
        ]

    def refusals(self, error: NameServiceError) -> list[ControlEffect]:
        """Tell all that wait why it has failed."""
        return [
            RefuseWriter(link=waiter.link, request_id=waiter.request_id, error=error)
            for waiter in self.waiters
        ]


def key_of(request: CommitBatch) -> CommitKey:
    """Return what names the commit that *request* asks for."""
    return (
        request.job_id,
        request.query_id,
        request.writer_epoch,
        request.batch_id,
        request.state_numbers,
    )
