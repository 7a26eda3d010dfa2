"""
Faults in the shipped code, on purpose: what the simulation must find.

A simulation that finds nothing proves little until it is seen to find something.  A
mutation replaces a few characters of a shipped module while it is imported; nothing is
written.  If the text is not there any more, that is an error: the mutation must be
brought up to date with the code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Final, final

from attrs import frozen


if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["MUTATIONS", "Mutation", "install", "install_from_arguments"]

_OPTION: Final = "--mutation"


@frozen(kw_only=True)
class Mutation:
    """
    One change of one module.

    Attributes:
        name: What it is called on the command line.
        rule: What it breaks.
        module: Where.
        before: Text that occurs there exactly once.
        after: What it becomes.
        is_rare: Whether a few hundred seeds are too few to find it.
        seed: The first one that was seen to find it: a good one to begin with.
    """

    name: str
    rule: str
    module: str
    before: str
    after: str
    is_rare: bool = False
    seed: int = 0

    @property
    def rules(self) -> str:
        """Return the names of what it breaks: ``E5, E9``."""
        return self.rule.partition(":")[0]


MUTATIONS: Final = (
    Mutation(
        name="belief-outlives-lease",
        rule="E4: the holder believes for 0.9 lease",
        module="leaderserver.client.core.contenders",
        before="self._outbox.lease_ns * 9 // 10",
        after="self._outbox.lease_ns * 12 // 10",
    ),
    Mutation(
        name="belief-from-arrival",
        rule="E4: from the send of the heartbeat",
        module="leaderserver.client.core.contenders",
        before="until_ns = sent_ns + self",
        after="until_ns = self._outbox.now_ns + self",
        seed=59,
    ),
    Mutation(
        name="clock-rates-ignored",
        rule="E4: clock rates differ by up to 5 %",
        module="leaderserver.client.core.contenders",
        before="self._outbox.lease_ns * 9 // 10",
        after="self._outbox.lease_ns * 100 // 100",
    ),
    Mutation(
        name="barrier-dropped",
        rule="E4: another is granted only after the lease has passed",
        module="election.component",
        before="self.barrier_ns = 0 if has_stopped else leadership.barrier_ns",
        after="self.barrier_ns = 0",
    ),
    Mutation(
        name="heartbeat-numbers-unchecked",
        rule="E5: a heartbeat counts only if its number is above all earlier ones",
        module="leaderserver.server.service",
        before="if message.number <= client.number:",
        after="if message.number < 0:",
        seed=3,
    ),
    Mutation(
        name="grant-before-record",
        rule="E2: an epoch is durable before its grant is sent",
        module="leaderserver.server.election_steps",
        before="elif not self._held.keep(effect):",
        after="else:",
        seed=1,
    ),
    Mutation(
        name="affirmed-before-record",
        rule="E2: an affirmation says what a grant says",
        module="leaderserver.server.core.held_effects",
        before="if hold is None or hold.epoch != affirmation.epoch:",
        after="if True:",
        seed=1,
    ),
    Mutation(
        name="writes-out-of-order",
        rule="L2: a successor's record follows its predecessor's commits",
        module="leaderserver.server.core.storage_queue",
        before="job = lane.waiting.popleft()",
        after="job = lane.waiting.pop()",
        seed=6,
    ),
    Mutation(
        name="uncertain-refused",
        rule="L4: what a failed sync leaves is uncertain",
        module="leaderserver.server.store_tasks",
        before="return UncertainReply(detail=str(outcome))",
        after="return FailedReply(reason=Failure.STORAGE, detail=str(outcome))",
        seed=259,
    ),
    Mutation(
        name="stall-unexcused",
        rule="E9: its own pause costs no leadership",
        module="election.patience",
        before="excused_ns += now_ns - due_ns",
        after="excused_ns += 0",
        seed=8,
    ),
    Mutation(
        name="stalls-postpone-without-end",
        rule="E5, E9: what stalls take is bounded by them plus a lease",
        module="election.patience",
        before="self.patient_ns + wait_ns + min(excused_ns, grace_ns)",
        after="self.patient_ns + wait_ns + 20 * excused_ns",
        seed=4,
    ),
    Mutation(
        name="stalls-overlooked",
        rule="E9: late by more than a fifth of the shortest lease is a stall",
        module="election.patience",
        before="now_ns - due_ns > self._tick_ns:",
        after="now_ns - due_ns > 100 * self._tick_ns:",
        seed=274,
    ),
    Mutation(
        name="acknowledgement-window-unchecked",
        rule="E5: a heartbeat names an acknowledgement of the last session timeout",
        module="election.sessions",
        before="if named_ns is not None and named_ns >= oldest_ns:",
        after="if oldest_ns is not None:",
        seed=35,
    ),
    Mutation(
        name="undecided-time-skipped",
        rule="E9: after a start nothing is granted for the longest lease",
        module="election.leaderships",
        before="self.is_undecided = config.undecided_ns > 0",
        after="self.is_undecided = False",
        seed=3,
    ),
    Mutation(
        name="old-claim-reinstated",
        rule="E9: a claim is reinstated unless a higher epoch is recorded",
        module="election.component",
        before=(
            "return (claim.epoch, False) < (self.epoch_max, self.is_epoch_max_ended)"
        ),
        after="return False",
        seed=18,
    ),
    Mutation(
        name="stale-commit-accepted",
        rule="L2: a commit is atomic with the check of its leadership",
        module="election.core",
        before="            and leadership.session_id == session_id\n            and "
        "leadership.leader_session_id == leader_session_id\n            and "
        "leadership.epoch == epoch\n",
        after="",
    ),
    Mutation(
        name="epochs-unrecorded",
        rule="E2: an epoch is on record before its grant is sent",
        module="election.leaderships",
        before="            RecordEpoch(component_id=component.component_id, "
        "epoch=affirmation.epoch),\n",
        after="",
    ),
    Mutation(
        name="unrecorded-epochs-known",
        rule="E2: an epoch is on record before anybody is told of it",
        module="election.component",
        before="publication = Publication(epoch=epoch, confirm_count=0, leader=None)",
        after="publication = Publication(epoch=epoch if self.leadership is None else "
        "self.leadership.epoch - 1, confirm_count=0, leader=None)",
        seed=122,
    ),
    Mutation(
        name="publications-unordered",
        rule="R3: only a greater publication is taken",
        module="retrieval.core",
        before="if self._newest is None or publication.rank > self._newest.rank:",
        after="if self._newest is None or publication.rank != self._newest.rank:",
        seed=2,
    ),
    Mutation(
        name="gaps-unnoticed",
        rule="N1: a lost last message is noticed",
        module="leaderserver.client.core.subscriptions",
        before="if subscription is not None and revision > subscription.revision:",
        after="if subscription is not None and revision < 0:",
        seed=3,
    ),
    Mutation(
        name="older-leader-by-broadcast-untold",
        rule="R3: a retriever that is ahead of its server is told",
        module="leaderserver.client.core.subscriptions",
        before="            self._check_not_behind(subscription, publication, "
        "message.revision)\n",
        after="",
        seed=64,
    ),
    Mutation(
        name="older-leader-untold-to-latecomers",
        rule="R3: a retriever that is opened later is told, too",
        module="leaderserver.client.core.subscriptions",
        before="        if subscription.refused is not None:\n",
        after="        if subscription is None:\n",
        seed=4,
    ),
    Mutation(
        name="contenders-ahead-untold",
        rule="E8: a contender that is ahead of its server is told",
        module="leaderserver.server.requests",
        before="        if not self._core.admits(epoch_known):\n",
        after="        if epoch_known < 0:\n",
        seed=4,
    ),
    Mutation(
        name="revisions-outlive-session",
        rule="N1: a lost last message of the next server is noticed",
        module="leaderserver.client.core.subscriptions",
        before="            subscription.revision = 0\n",
        after="",
        is_rare=True,
        seed=43145,
    ),
    Mutation(
        name="late-grant-revives",
        rule="E3: what is over stays over",
        module="election.holder",
        before="if session.epoch <= self._ended_epoch_max:",
        after="if session.epoch < 0:",
        seed=63,
    ),
    Mutation(
        name="end-forgotten",
        rule="E4: a leadership that is not affirmed is over",
        module="leaderserver.client.core.contenders",
        before="            and number > contender.affirmed_number\n        ):\n",
        after="            and number < 0\n        ):\n",
        seed=198,
    ),
    Mutation(
        name="ended-session-kept",
        rule="E5: what the server has ended is lost",
        module="leaderserver.client.core.core",
        before="was_ended = incarnation == session.incarnation",
        after="was_ended = False",
    ),
    Mutation(
        name="claims-given-up-at-restart",
        rule="E9: another server has judged nothing yet",
        module="leaderserver.client.core.core",
        before="was_ended = incarnation == session.incarnation",
        after="was_ended = True",
        seed=31,
    ),
    Mutation(
        name="revocation-acknowledged-early",
        rule="E4: acknowledged means that the contender has stopped",
        module="election.holder",
        before="if self._unacknowledged is not None and self._revokes_under_way == 0:",
        after="if self._unacknowledged is not None:",
    ),
    Mutation(
        name="late-grant-delivered",
        rule="E4: a grant is delivered only while its lease runs",
        module="election.holder",
        before="        if until_ns <= self._now_ns:\n            return",
        after="        if until_ns < 0:\n            return",
    ),
    Mutation(
        name="unrecorded-epoch-granted",
        rule="E2: what could not be recorded is not granted",
        module="leaderserver.server.election_steps",
        before="        if error is None:\n            self._hindered.pop",
        after="        if True:\n            self._hindered.pop",
        seed=30,
    ),
    Mutation(
        name="dead-contender-granted",
        rule="E1: only those heard from within their lease are granted",
        module="election.leaderships",
        before="if session.may_be_granted(now):",
        after="if session is not None:",
        seed=2,
    ),
    Mutation(
        name="earlier-leases-forgotten",
        rule="E9: nothing is granted for the longest lease of an earlier server",
        module="leaderserver.server.core.lease_record",
        before="longest_ns = max((lease_ns, *self.needed().values()))",
        after="longest_ns = lease_ns",
        is_rare=True,
        seed=765,
    ),
    Mutation(
        name="unrecorded-leases-ignored",
        rule="E9: what left no record is waited for, too",
        module="leaderserver.server.core.lease_record",
        before="            return max(longest_ns, unrecorded_ns)",
        after="            return longest_ns",
        is_rare=True,
        seed=690,
    ),
    Mutation(
        name="clock-believed",
        rule="E2: epochs rise though a clock is set back",
        module="election.epochs",
        before="return max(used + 1, at_least)",
        after="return at_least",
        seed=98,
    ),
    Mutation(
        name="observers-report",
        rule="N4: reports count only of who may contend",
        module="leaderserver.server.requests",
        before="is_heard = client.principal.may_contend(body.component_id)",
        after="is_heard = True",
        seed=4,
    ),
    Mutation(
        name="batches-overtaken",
        rule="E7, E8: what is withdrawn while its registration waits does not stay",
        module="leaderserver.server.service",
        before="client.batch_count and isinstance(message.body, Ordered)",
        after="client.batch_count < 0",
        seed=293,
    ),
    Mutation(
        name="decided-early",
        rule="E9: after a start nothing is granted for the longest lease",
        module="election.core",
        before="            undecided_ns, grace_ns=undecided_ns, now=self._clock.now",
        after="            undecided_ns // 2, grace_ns=0, now=self._clock.now",
    ),
    Mutation(
        name="last-heartbeat-refutes-death",
        rule="E5: what came over a closed connection was sent before it closed",
        module="election.sessions",
        before="not (is_late and named_ns <= cut.patient_ns)",
        after="not (is_late and named_ns < 0)",
        is_rare=True,
    ),
    Mutation(
        name="unconfirmed-end-unpublished",
        rule="R2: a retriever is told that nobody leads, whoever led before",
        module="election.leaderships",
        before="if published is None or published.epoch < event.epoch:",
        after="if published is not None and published.epoch < event.epoch:",
        is_rare=True,
    ),
)


def _source_of(mutation: Mutation) -> tuple[str, str]:
    """Return the path and the mutated source of a module."""
    spec = importlib.machinery.PathFinder.find_spec(
        mutation.module, _search_path(mutation.module)
    )
    assert spec is not None
    assert spec.origin is not None
    loader = spec.loader
    assert isinstance(loader, importlib.machinery.SourceFileLoader)
    source = loader.get_data(spec.origin).decode()
    if source.count(mutation.before) != 1:
        message = (
            f"mutation {mutation.name}: {mutation.module} holds its text "
            f"{source.count(mutation.before)} times: bring it up to date"
        )
        raise LookupError(message)
    return spec.origin, source.replace(mutation.before, mutation.after)


def _search_path(module: str) -> list[str] | None:
    """Return where *module* is looked for, without importing its packages."""
    package = module.rpartition(".")[0]
    if not package:
        return None
    spec = importlib.machinery.PathFinder.find_spec(package, _search_path(package))
    assert spec is not None
    return spec.submodule_search_locations


@final
class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with its mutation, and leaves all others alone."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation
        self._origin, self._source = _source_of(mutation)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self._origin, loader=self
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._origin, "exec"), module.__dict__)


def install(name: str, mutations: Sequence[Mutation] = MUTATIONS) -> None:
    """
    Make the mutation *name*, one of *mutations*, part of what is imported from now.

    Raises:
        LookupError: If there is no such mutation, or it does not fit the code.
    """
    found = [mutation for mutation in mutations if mutation.name == name]
    if not found:
        known = ", ".join(mutation.name for mutation in mutations)
        raise LookupError(f"no mutation {name!r}; there are {known}")
    (mutation,) = found
    assert mutation.module not in sys.modules
    sys.meta_path.insert(0, _Importer(mutation))


def install_from_arguments(
    arguments: Sequence[str], mutations: Sequence[Mutation] = MUTATIONS
) -> None:
    """Install what ``--mutation NAME`` asks for, if it is there."""
    if _OPTION in arguments:
        install(arguments[arguments.index(_OPTION) + 1], mutations)
