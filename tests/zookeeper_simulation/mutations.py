"""Faults in the shipped rule of ZooKeeper's renewals, on purpose: all must be found."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["ZOOKEEPER_MUTATIONS"]

ZOOKEEPER_MUTATIONS: Final = (
    Mutation(
        name="any-write-renews",
        rule="E4: a write through a follower renews nothing at the leader",
        module="haservices.zookeeper.renewals",
        before="self._renewed_ns + self._timeout_ns * _RENEWED_PERCENT // 100,",
        after="sent_ns + self._timeout_ns,",
        seed=4,
    ),
    Mutation(
        name="ping-not-awaited",
        rule="E4: a ping lies between an exchange and its witness",
        module="haservices.zookeeper.renewals",
        before="_PING_PERCENT: Final = 28",
        after="_PING_PERCENT: Final = 2",
        seed=32,
    ),
    Mutation(
        name="sync-counts",
        rule="E4: a sync is no ground for belief",
        module="haservices.zookeeper.holding_core",
        before="                self._is_witnessed = True\n            case WriteNode",
        after=(
            "                self._is_witnessed = True\n"
            "                until_ns = question.asked_ns + 600_000_000\n"
            "                effects.append(Tell(event=Affirmed(\n"
            "                    session=self._session, until_ns=until_ns)))\n"
            "            case WriteNode"
        ),
    ),
    Mutation(
        name="belief-outlives-renewal",
        rule="E4: the holder believes for nine tenths of the timeout",
        module="haservices.zookeeper.renewals",
        before="_RENEWED_PERCENT: Final = 90",
        after="_RENEWED_PERCENT: Final = 130",
        seed=4,
    ),
    Mutation(
        name="nothing-proven",
        rule="E5: a quiet name service has a holder who believes",
        module="haservices.zookeeper.renewals",
        before="self._renew(self._witnessed.popleft().sent_ns)",
        after="self._witnessed.popleft()",
    ),
)
