"""Faults, on purpose, in what snapshots are made of: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.mutations import Mutation


__all__ = ["SNAPSHOT_MUTATIONS"]

SNAPSHOT_MUTATIONS: Final = (
    Mutation(
        name="snapshot-of-some-nodes",
        rule="S5: a snapshot is whole when all nodes have written",
        module="queryablestate.control.snapshot_control",
        before="return self.manifest is not None and not self.awaited",
        after="return self.manifest is not None and len(self.awaited) < 2",
        seed=18,
    ),
    Mutation(
        name="rows-not-synced",
        rule="S5: a snapshot is durable when it is reported",
        module="queryablestate.connect.snapshot_files",
        before="        file = current.finish()\n"
        "        self._make_durable(self._at(file.name))\n",
        after="        file = current.finish()\n",
        seed=6,
    ),
    Mutation(
        name="manifest-not-synced",
        rule="S5: a snapshot is durable when it is reported",
        module="queryablestate.connect.snapshot_files",
        before="            self._make_durable(self._at(MANIFEST_NAME))\n",
        after="            pass\n",
        seed=6,
    ),
    Mutation(
        name="directory-not-synced",
        rule="S5: a snapshot is durable when it is reported",
        module="nameservice.durable_files",
        before="        if directory == below.parent:\n            return\n",
        after="        return\n",
        seed=6,
    ),
    Mutation(
        name="place-not-claimed",
        rule="S5: of two into one place one is refused",
        module="queryablestate.connect.snapshot_claims",
        before="os.O_CREAT | os.O_EXCL | os.O_WRONLY",
        after="os.O_CREAT | os.O_WRONLY",
        seed=6,
    ),
    Mutation(
        name="restored-before-all-have-loaded",
        rule="S6: a job is there when all nodes have loaded their part",
        module="queryablestate.control.restore_control",
        before="        if restore.awaited:\n            return []\n",
        after="        if len(restore.awaited) > 1:\n            return []\n",
        seed=89,
    ),
    Mutation(
        name="loaded-rows-visible",
        rule="S6: a restore becomes visible at once or not at all",
        module="queryablestate.store.restores",
        before="                    job_id=owner,\n",
        after="                    job_id=mark.job_id,\n",
        seed=6,
    ),
    Mutation(
        name="loaded-rows-dropped-too-early",
        rule="S6: what is loaded is kept until it is shown, or comes to nothing",
        module="queryablestate.node.snapshots",
        before="mark.job_id not in spared and mark.restore_id not in wanted_ids",
        after="mark.job_id not in spared and mark.restore_id in wanted_ids",
        seed=33,
    ),
    Mutation(
        name="page-of-a-snapshot-left-out",
        rule="S6: a restore brings all rows",
        module="queryablestate.node.snapshots",
        before="                row_count += len(keys)\n",
        after="                row_count += len(keys)\n                break\n",
        seed=6,
    ),
    Mutation(
        name="loaded-rows-taken-for-a-copy",
        rule="S6, S1: what was loaded, and is not shown, is no state of the job",
        module="queryablestate.control.chains",
        before='if isinstance(following, SnapshotRestored) else ""',
        after="if isinstance(following, SnapshotRestored) else None",
        seed=10568,
    ),
)
