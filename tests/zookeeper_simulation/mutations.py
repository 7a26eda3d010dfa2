"""Faults in what is shipped for ZooKeeper, on purpose: all must be found."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["STORE_MUTATIONS", "ZOOKEEPER_MUTATIONS"]

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

STORE_MUTATIONS: Final = (
    Mutation(
        name="bundle-under-way-deleted",
        rule="L1: a bundle stays until its commit is done",
        module="haservices.zookeeper.bundles",
        before="[name for name in names if name not in under_way]",
        after="list(names)",
        seed=184,
    ),
    Mutation(
        name="bundle-in-doubt-deleted",
        rule="L1: what was sent and not answered may have been committed",
        module="haservices.zookeeper.bundles",
        before="    except (DidNotHappenError, StaleEpochError):",
        after="    except NameServiceError:",
        seed=92,
    ),
    Mutation(
        name="unused-bundle-left",
        rule="L3: a bundle that may be there, and that nothing refers to, goes",
        module="haservices.zookeeper.bundles",
        before="under_way.discard(name)  # should it be there",
        after="pass  # should it be there",
        seed=23,
    ),
    Mutation(
        name="cleanup-deletes-bundles-blindly",
        rule="L3: a cleanup leaves what was written meanwhile alone",
        module="haservices.zookeeper.bundles",
        before="transact([*unchanged, DeleteNode(",
        after="transact([DeleteNode(",
        seed=56,
    ),
    Mutation(
        name="bundles-not-made-again",
        rule="L1: a leader goes on after a cleanup",
        module="haservices.zookeeper.bundles",
        before="session.loop.call(lambda: session.parents.forget(paths.bundles))",
        after="pass",
    ),
    Mutation(
        name="absence-unchecked",
        rule="L1: a delete of what is not there holds until the commit",
        module="haservices.zookeeper.store_core",
        before="        return check_absent(path)\n\n    # -- failures",
        after="        return ()\n\n    # -- failures",
    ),
    Mutation(
        name="version-unchecked",
        rule="L1: a commit holds to its versions",
        module="haservices.zookeeper.store_core",
        before="node_version = -1 if version is None else version - 1",
        after="node_version = -1",
    ),
    Mutation(
        name="no-turns",
        rule="L4: threads of one leader do not refuse one another",
        module="haservices.zookeeper.store_turns",
        before="            claimed.isdisjoint(earlier)",
        after="            earlier is not None",
        seed=323,
    ),
)
