"""
Faults in the pure cores of the ZooKeeper backend, on purpose: no server is needed.

The machinery is that of `tests.simulation.mutations`.  ``python -m
tests.haservices.zookeeper.mutations --mutation NAME`` runs the tests of the core that
NAME breaks, and fails if they pass.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.mutations import Mutation, install_from_arguments


__all__ = ["CORE_MUTATIONS", "tests_of"]

ROOT: Final = Path(__file__).parents[3]

_HOLDING: Final = "haservices.zookeeper.holding_core"
_QUEUE: Final = "haservices.zookeeper.queue_core"
_ENTRY: Final = "haservices.zookeeper.queue_entry"
_LEAVING: Final = "haservices.zookeeper.queue_leaving"
_QUESTIONS: Final = "haservices.zookeeper.queue_questions"
_STORE: Final = "haservices.zookeeper.store_core"
_FEED: Final = "haservices.zookeeper.feed_core"
_OPERATIONS: Final = "haservices.zookeeper.operations_core"
_RETRIEVAL: Final = "haservices.zookeeper.retrieval_core"

CORE_MUTATIONS: Final = (
    Mutation(
        name="belief-from-answer",
        rule="E4: belief counts from the send of a write",
        module=_HOLDING,
        before="sent_ns = question.asked_ns",
        after="sent_ns = self._now_ns",
    ),
    Mutation(
        name="heartbeat-each-half",
        rule="E5: ten heartbeats fit into a timeout",
        module=_HOLDING,
        before="sent_ns + timeout_ns // HEARTBEATS_PER_TIMEOUT",
        after="sent_ns + timeout_ns // 2",
    ),
    Mutation(
        name="commit-unchecked",
        rule="L2: a commit is atomic with the check of its leadership",
        module=_HOLDING,
        before="check = CheckNode(path=self._node, version=version)",
        after="check = CheckNode(path=self._node)",
    ),
    Mutation(
        name="leader-unwatched",
        rule="N6: who deletes what is published ends the leadership",
        module=_HOLDING,
        before="if self._publication.is_confirmed and not self._is_leader_watched:",
        after="if False:",
    ),
    Mutation(
        name="first-but-one-holds",
        rule="E1: only the first in the queue holds the component",
        module=_QUEUE,
        before="        if place > 0:",
        after="        if place > 1:",
    ),
    Mutation(
        name="wrong-predecessor",
        rule="E1: each hears of the one before it",
        module=_QUEUE,
        before="queue[place - 1]",
        after="queue[place - 2]",
    ),
    Mutation(
        name="place-not-looked-at-again",
        rule="E1: the end of the one before is looked at",
        module=_ENTRY,
        before="            case PredecessorChanged():\n"
        "                self.is_place_known = False",
        after="            case PredecessorChanged():\n                pass",
    ),
    Mutation(
        name="gone-predecessor-believed",
        rule="E1: one that is gone before it is watched is not waited for",
        module=_QUEUE,
        before="entry.is_place_known = event.stat is not None",
        after="entry.is_place_known = True",
    ),
    Mutation(
        name="watch-not-set-again",
        rule="E1: no watch outlives the connection",
        module=_ENTRY,
        before="        self.is_watched = False\n        self.is_place_known = False",
        after="        pass",
    ),
    Mutation(
        name="own-watch-not-set-again",
        rule="N6: each change of our own node is looked at",
        module=_ENTRY,
        before="                self.is_watched = False",
        after="                pass",
    ),
    Mutation(
        name="created-twice",
        rule="E8: a creation that was not answered is looked for",
        module=_QUESTIONS,
        before="case CreateContender() if not isinstance(error, MayHaveHappenedError):",
        after="case CreateContender():",
    ),
    Mutation(
        name="node-of-earlier-session-adopted",
        rule="E8: an earlier session's node is not ours",
        module=_QUEUE,
        before="        if stat is None or stat.owner_session_id != entry.session_id:\n"
        "            self._entry = None\n        else:",
        after="        if stat is None:\n            self._entry = None\n        else:",
    ),
    Mutation(
        name="late-node-kept",
        rule="E8: what is created for an entry that is over is deleted",
        module=_QUEUE,
        before="self._entry is None or self._entry.number != number:",
        after="False:",
    ),
    Mutation(
        name="stale-watch-believed",
        rule="E8: what is heard of an earlier entry says nothing of this one",
        module=_QUEUE,
        before="if self._entry is not None and self._entry.number == number:",
        after="if self._entry is not None:",
    ),
    Mutation(
        name="stale-version-after-reconnect",
        rule="E8: after a lost connection nothing is taken for known",
        module=_ENTRY,
        before="        self.is_version_known = False\n        self.is_watched = False",
        after="        self.is_watched = False",
    ),
    Mutation(
        name="closed-node-left",
        rule="E6: a contender that is closed leaves no node",
        module=_QUEUE,
        before="        if entry is None and self._is_closing:",
        after="        if self._is_closing:\n            self._entry = None",
    ),
    Mutation(
        name="left-before-revoked",
        rule="E4: the entry stays until the revoke callback has returned",
        module=_QUEUE,
        before="        if not is_held:\n            entry.may_leave = True",
        after="        entry.may_leave = True",
    ),
    Mutation(
        name="callback-blocks-for-ever",
        rule="E5: a revoke callback keeps the others waiting for a lease at most",
        module=_QUEUE,
        before="self._now_ns + min(self._lease_ns, self._timeout_ns)",
        after="None",
    ),
    Mutation(
        name="callback-blocks-for-timeout",
        rule="E5: a revoke callback keeps the others waiting for a lease at most",
        module=_QUEUE,
        before="min(self._lease_ns, self._timeout_ns)",
        after="self._timeout_ns",
    ),
    Mutation(
        name="mark-overlooked",
        rule="N6: an operator's mark ends a leadership",
        module=_QUEUE,
        before="                if entry.read(event.node):\n"
        "                    self._end(entry, effects)",
        after="                entry.read(event.node)",
    ),
    Mutation(
        name="publication-left",
        rule="R2: what an entry has published goes with it",
        module=_LEAVING,
        before="    if entry.may_have_published:\n        operations.append",
        after="    if False:\n        operations.append",
    ),
    Mutation(
        name="successor-unpublished",
        rule="R2: nobody deletes what another has published",
        module=_LEAVING,
        before="component is None or not entry.known().has_published(node)",
        after="component is None",
    ),
    Mutation(
        name="successor-raced",
        rule="R2: nobody deletes what another has published",
        module=_LEAVING,
        before="CheckNode(path=paths.node, version=component.version),",
        after="",
    ),
    Mutation(
        name="orphan-publication-left",
        rule="R2: what an entry has published goes though its node is gone",
        module=_QUEUE,
        before="NODE_GONE_ALREADY if entry.may_have_published:",
        after="NODE_GONE_ALREADY if False:",
    ),
    Mutation(
        name="absence-believed",
        rule="R3: a node that is not there yet says nothing",
        module=_RETRIEVAL,
        before="component.children_zxid <= self._newest_zxid:",
        after="component.children_zxid < 0:",
    ),
    Mutation(
        name="end-not-believed",
        rule="R2: a leader's node that was deleted is an end",
        module=_RETRIEVAL,
        before="self._newest_zxid = event.leader.stat.created_zxid",
        after="self._newest_zxid = 1 << 62",
    ),
    Mutation(
        name="older-publication-taken",
        rule="R3: only a greater publication is taken",
        module=_RETRIEVAL,
        before="publication.rank > self._newest.rank",
        after="publication.rank != self._newest.rank",
    ),
    Mutation(
        name="stale-answer-after-reconnect",
        rule="R4: an answer of an earlier connection says nothing of this one",
        module=_RETRIEVAL,
        before="return self._has_contact and number >= self._number_min",
        after="return self._has_contact",
    ),
    Mutation(
        name="answer-without-contact",
        rule="R4: an answer does not restore contact that is suspended",
        module=_RETRIEVAL,
        before="return self._has_contact and number >= self._number_min",
        after="return number >= self._number_min",
    ),
    Mutation(
        name="not-read-after-reconnect",
        rule="R4: what is published is read again when contact is restored",
        module=_RETRIEVAL,
        before="self._number_min = self._read_count + 1\n"
        "                self._read(effects)",
        after="self._number_min = self._read_count + 1",
    ),
    Mutation(
        name="current-through-suspension",
        rule="R4: contact counts as restored when there is an answer",
        module=_RETRIEVAL,
        before="self._has_contact = self._is_current = False\n\n",
        after="self._has_contact = False\n\n",
    ),
    Mutation(
        name="version-of-put-unchecked",
        rule="L2: a version that is given is checked",
        module=_STORE,
        before="SetNode(path=path, value=value, version=node_version)",
        after="SetNode(path=path, value=value)",
    ),
    Mutation(
        name="version-of-delete-unchecked",
        rule="L2: a version that is given is checked",
        module=_STORE,
        before="DeleteNode(path=path, version=node_version)",
        after="DeleteNode(path=path)",
    ),
    Mutation(
        name="absence-unchecked",
        rule="L2: version 0 says that nothing may be there",
        module=_STORE,
        before="        return check_absent(path)\n\n    # -- failures",
        after="        return ()\n\n    # -- failures",
    ),
    Mutation(
        name="absence-trusted",
        rule="L1: that a path need not be deleted is a guess, and is checked",
        module=_STORE,
        before="if self._known.get(path, True) if version is None else version > 0:",
        after="if version is None and not self._known.get(path, True):\n"
        "            return ()\n"
        "        if version is None or version > 0:",
    ),
    Mutation(
        name="mismatch-tried-again",
        rule="L2: another version than the one that was given is told",
        module=_STORE,
        before="operation.version is None or (is_missing and operation.version == 0)",
        after="True",
    ),
    Mutation(
        name="wrong-guess-told",
        rule="L1: without a version it is written over whatever is there",
        module=_STORE,
        before="if not isinstance(error, NodeVersionError | NodeExistsError | "
        "NodeMissingError):",
        after="if True:",
    ),
    Mutation(
        name="watchers-not-told",
        rule="L1: each commit sets the node that watches look at",
        module=_STORE,
        before="mark=self._mark,",
        after="mark=CheckNode(path=self._paths.store),",
    ),
    Mutation(
        name="recreation-overlooked",
        rule="L1: a node that was deleted and created again is another",
        module=_FEED,
        before="return (stat.created_zxid, stat.version)",
        after="return (0, stat.version)",
    ),
    Mutation(
        name="seen-before-looked",
        rule="L1: a poll that fails on its way is begun anew",
        module=_FEED,
        before="        return ListStore()",
        after="        self._seen = self._seeing\n        return ListStore()",
    ),
    Mutation(
        name="deletions-overlooked",
        rule="L1: what is gone has changed",
        module=_FEED,
        before="for path in nodes.keys() | self._nodes.keys()",
        after="for path in nodes.keys()",
    ),
    Mutation(
        name="granted-meanwhile-deleted",
        rule="N6: one that waits is deleted at the version that was read",
        module=_OPERATIONS,
        before="DeleteNode(path=contender.path, version=contender.stat.version)",
        after="DeleteNode(path=contender.path)",
    ),
    Mutation(
        name="holder-deleted",
        rule="E4: a holder is marked, so that it can stop leading first",
        module=_OPERATIONS,
        before="        if first.contender.record.is_granted:",
        after="        if False:",
    ),
    Mutation(
        name="publication-of-revoked-stays",
        rule="R2: what a revoked leader has published goes at once",
        module=_OPERATIONS,
        before="(mark, DeleteNode(path=paths.leader)) if is_published else (mark,)",
        after="(mark,)",
    ),
    Mutation(
        name="vanished-contender-awaited",
        rule="N6: leadership is handed to one that is still in the queue",
        module=_OPERATIONS,
        before="[CheckNode(path=contender.path)]",
        after="[]",
    ),
    Mutation(
        name="one-between-left",
        rule="N6: all before the one that is to lead queue last",
        module=_OPERATIONS,
        before="in queue.contenders[: self._place]:",
        after="in queue.contenders[: self._place - 1]:",
    ),
    Mutation(
        name="round-given-up",
        rule="N6: what changed meanwhile is looked at again",
        module=_OPERATIONS,
        before="if not self._round.is_done:",
        after="if False:",
    ),
    Mutation(
        name="half-done-denied",
        rule="L4: what is half done may have happened",
        module=_OPERATIONS,
        before="if not self._ended or not isinstance(",
        after="if True or not isinstance(",
    ),
)

_QUEUE_TESTS: Final = ("test_queue_core.py", "test_queue_core_stateful.py")
_STORE_TESTS: Final = (
    "test_store_core.py",
    "test_store_core_stateful.py",
)
_TESTS: Final = {
    _HOLDING: (
        "test_holding_core.py",
        "test_holding_core_stateful.py",
    ),
    _STORE: _STORE_TESTS,
    _FEED: _STORE_TESTS,
    _OPERATIONS: ("test_operations_core_stateful.py",),
    _QUEUE: _QUEUE_TESTS,
    _ENTRY: _QUEUE_TESTS,
    _LEAVING: _QUEUE_TESTS,
    _QUESTIONS: _QUEUE_TESTS,
    _RETRIEVAL: (
        "test_retrieval_core.py",
        "test_retrieval_core_stateful.py",
    ),
}


def tests_of(mutation: Mutation) -> list[str]:
    """Return the files of the tests that are to find *mutation*."""
    return [f"tests/haservices/zookeeper/{name}" for name in _TESTS[mutation.module]]


def main(arguments: list[str]) -> int:
    """Run the tests of what is broken; return 0 if one of them fails."""
    (mutation,) = (each for each in CORE_MUTATIONS if each.name == arguments[-1])
    install_from_arguments(arguments, CORE_MUTATIONS)
    os.environ["LODESTAR_HYPOTHESIS_PROFILE"] = "mutation"
    # Otherwise pytest loads our modules itself, as they came: one is a plugin of it.
    options = ["--assert=plain", "-p", "no:cacheprovider", "-q", "-x"]
    code = pytest.main([*options, *tests_of(mutation)])
    return 0 if code == pytest.ExitCode.TESTS_FAILED else 1


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
