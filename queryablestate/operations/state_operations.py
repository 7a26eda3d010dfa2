"""
`StateOperations`: what operators ask of the proxy leader, and tell it to do.

Where the proxy has callers, all of it takes the right ``admin``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self, final

from nameservice import ConfigurationError, NameServiceError
from nameservice.fields import check_name
from nameservice.parameters import check_seconds, check_timeout_seconds
from queryablestate.client.calls import ProxyConnection
from queryablestate.errors import UnknownJobError
from queryablestate.operations.adoption import (
    AdoptionInformation,
    KeptInformation,
    kept_information,
)
from queryablestate.operations.adoption_calls import (
    ADOPTION_TIMEOUT_SECONDS,
    adopt_job,
    take_control,
)
from queryablestate.operations.node_information import NodeInformation, node_information
from queryablestate.operations.proxy_calls import ProxyCalls
from queryablestate.operations.rescaling_calls import (
    begin_draining,
    begin_rescaling,
    listed_rescalings,
    wait_until_drained,
    wait_until_rescaled,
)
from queryablestate.operations.snapshots import (
    location_of,
    restore_snapshot,
    take_snapshot,
)
from queryablestate.wire.clients import DropState, StateDropDone
from queryablestate.wire.operation_messages import (
    AwayNodeForgotten,
    ForgetAwayNode,
    ForgetJob,
    JobForgotten,
)


if TYPE_CHECKING:
    import os

    from haservices import HAConfig, HAServices
    from queryablestate.client.calls import Build
    from queryablestate.connect.credentials import Credentials
    from queryablestate.operations.move_progress import MoveFigures
    from queryablestate.operations.rescaling_information import (
        DrainInformation,
        RescalingInformation,
    )
    from queryablestate.operations.snapshots import (
        RestoreInformation,
        SnapshotInformation,
    )
    from queryablestate.wire.snapshot_messages import JobRestored, SnapshotTaken


__all__ = ["NodeInformation", "StateOperations"]

_SNAPSHOT_TIMEOUT_SECONDS: Final = 3_600.0


@final
class StateOperations:
    """
    Asks the proxy that leads.  Thread-safe; a context manager.

    Args:
        config: The name service, or how to open it (a URL will do).
        credentials: A token or `Credentials`.
        deadline_seconds: How long each call may take.
    """

    def __init__(
        self,
        config: HAConfig | HAServices | str,
        credentials: str | Credentials | None = None,
        *,
        deadline_seconds: float = 5.0,
    ) -> None:
        deadline_seconds = check_seconds(deadline_seconds, what="deadline_seconds")
        self._calls = ProxyCalls(
            ProxyConnection(config, credentials), deadline_seconds=deadline_seconds
        )

    def nodes(self) -> Sequence[NodeInformation]:
        """
        Return every node that the control plane knows, sorted by name.

        Raises:
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return [node_information(node) for node in self._calls.listed_nodes().nodes]

    @property
    def is_volatile(self) -> bool:
        """Return whether the name service forgets at a restart; after a call."""
        return self._calls.proxy.is_volatile

    # -- rescaling ---------------------------------------------------------------------

    def rescale(
        self,
        job_id: str,
        *,
        node_count: int | None = None,
        replica_count: int | None = None,
    ) -> RescalingInformation:
        """
        Give a job a number of the registered nodes, and key groups a number of copies.

        Returns as soon as the plan is written down: it is carried out whatever happens
        to us, or to the proxy.  Readers and writers go on meanwhile (rule S3).

        Args:
            job_id: The job.
            node_count: How many nodes; 1 to as many as are registered and are not being
                drained.  None leaves it as it is.
            replica_count: How many copies (rule S4); 1 to *node_count*, and at most 16.
                None leaves it as it is.

        Returns:
            What is to be done.

        Raises:
            ConfigurationError: If there are fewer nodes; says how many there are.
            UnknownJobError: If there is no state of the job.
            StateUnavailableError: If the proxy has just begun to lead, and does not
                know the nodes by the end of the deadline.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return begin_rescaling(
            self._calls, job_id, node_count=node_count, replica_count=replica_count
        )

    def rescalings(self, job_id: str | None = None) -> Sequence[RescalingInformation]:
        """
        Return how far one job is, or how far all of them are, sorted by name.

        Raises:
            UnknownJobError: If there is no state of the job.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return listed_rescalings(self._calls, job_id)[0]

    def drain(self, node_id: str, *, undo: bool = False) -> DrainInformation:
        """
        Have a node emptied: its key groups go to others, and it gets no more.

        Returns as soon as that is written down.  It holds for the process that runs
        now: one that is started later under that name takes part again.

        Args:
            node_id: Which.  One that is away is given up: what only it has stays
                unavailable until it is back.
            undo: Have it take part again instead.

        Raises:
            ConfigurationError: If there is no such node.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return begin_draining(self._calls, node_id, undo=undo)

    def wait_until_rescaled(
        self,
        job_id: str | None = None,
        *,
        timeout_seconds: float | None = None,
        since: RescalingInformation | None = None,
        on_progress: (
            Callable[[Sequence[RescalingInformation], MoveFigures], None] | None
        ) = None,
    ) -> Sequence[RescalingInformation]:
        """
        Wait until nothing is to be copied or given up any more.

        A proxy that is replaced meanwhile is no end of it.  To give up waiting changes
        nothing: the move goes on.

        Args:
            job_id: Which job; None waits for all.
            timeout_seconds: How long; None waits as long as it takes.
            since: What `rescale` returned: with it the figures begin there, and that is
                what is waited for.
            on_progress: Is told whenever the proxy was asked, some times a second;
                what it raises ends the waiting.

        Returns:
            How it ended.

        Raises:
            DeadlineExceededError: If there was something to do after
                *timeout_seconds*; says how much.
            DidNotHappenError: If somebody has asked for something else since.
            UnknownJobError: If there is no state of the job.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked for a minute.
        """
        return wait_until_rescaled(
            self._calls,
            job_id,
            timeout_seconds=timeout_seconds,
            since=since,
            on_progress=on_progress,
        )

    def wait_until_drained(
        self,
        node_id: str,
        *,
        timeout_seconds: float | None = None,
        on_progress: Callable[[DrainInformation, MoveFigures], None] | None = None,
    ) -> DrainInformation:
        """
        Wait until a node has no copy of a key group any more.

        As `wait_until_rescaled`, but for:

        Raises:
            DidNotHappenError: If the node is not being drained (any more: it was
                started anew, or somebody has undone it); or if there is no other node
                that could take what it has.
        """
        return wait_until_drained(
            self._calls,
            node_id,
            timeout_seconds=timeout_seconds,
            on_progress=on_progress,
        )

    # -- states ------------------------------------------------------------------------

    def drop_state(self, job_id: str, state_name: str) -> None:
        """
        Forget a state and everything in it, on every node (rule W5).

        It is gone for every reader then; nodes that are away drop it when they are
        back.  A query that writes it goes on only if it is started anew, and begins
        with an empty state.

        Raises:
            UnknownJobError: If there is no state of the job.
            UnknownStateError: If the job has no such state.
            MayHaveHappenedError: If that is so by now, and it was asked for before.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        check_name(job_id, what="job_id")
        check_name(state_name, what="state_name")
        self._calls.change(
            StateDropDone,
            lambda request_id, session: DropState(
                request_id=request_id,
                session=session,
                job_id=job_id,
                state_name=state_name,
            ),
        )

    def forget_job(self, job_id: str) -> Sequence[str]:
        """
        Forget a job and everything in it, on every node, also what nodes keep aside.

        It is gone for every reader and writer then; nodes that are away forget it when
        they are back.  A query that writes it begins a new job.

        Returns:
            The nodes that may have rows of it, sorted.

        Raises:
            UnknownJobError: If there is no such job.
            MayHaveHappenedError: If that is so by now, and it was asked for before.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        check_name(job_id, what="job_id")
        return self._calls.change(
            JobForgotten,
            lambda request_id, session: ForgetJob(
                request_id=request_id, session=session, job_id=job_id
            ),
        ).node_ids

    def forget_node(self, node_id: str) -> None:
        """
        Forget the name of a node that is away for good.

        It is not listed any more.  A node that is started under that name later is a
        new one.

        Raises:
            ConfigurationError: If there is no such node, or it is registered, has key
                groups of a job, or keeps rows; says what to do first.
            DidNotHappenError: If it may still come, or may have rows of a batch that
                is under way, for longer than the deadline.
            MayHaveHappenedError: If there is no such node by now, and it was asked for
                before.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        check_name(node_id, what="node_id")

        def is_gone(error: NameServiceError) -> bool:
            return isinstance(error, ConfigurationError) and all(
                node.node_id != node_id for node in self._calls.listed_nodes().nodes
            )

        self._calls.change(
            AwayNodeForgotten,
            lambda request_id, session: ForgetAwayNode(
                request_id=request_id, session=session, node_id=node_id
            ),
            is_gone=is_gone,
        )

    # -- what nodes have kept ----------------------------------------------------------

    def kept(self) -> Sequence[KeptInformation]:
        """
        Return the jobs of which nodes have rows that the control plane does not know.

        They are unavailable: the name service has lost its store, or holds an older
        copy of it.  By control plane and job.

        Raises:
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return kept_information(self._calls.listed_nodes())

    def preview_adoption(self, job_id: str) -> AdoptionInformation:
        """
        Return what `adopt` would take over of a job that nodes are ahead with.

        Raises:
            UnknownJobError: If no node is ahead with such a job.
            StorageError: If it cannot be taken over; says why.
            DidNotHappenError: If nodes are late for longer than the deadline.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        return adopt_job(
            self._calls,
            job_id,
            is_preview=True,
            timeout_seconds=self._calls.deadline_seconds,
        )

    def adopt(
        self,
        control_id: str | None = None,
        *,
        force: bool = False,
        timeout_seconds: float = ADOPTION_TIMEOUT_SECONDS,
    ) -> Sequence[AdoptionInformation]:
        """
        Take over what nodes have kept, so that readers and writers go on from there.

        Every job that nodes are ahead with is brought up to what they have.  Repeat it
        after an error: what was taken over stays.

        Args:
            control_id: First be the control plane of that name, of which nodes keep
                rows (`kept`); there must be no state yet.  None if the name service
                holds an older copy of this one's store.
            force: Do it though nodes of a job are away, and may have more.
            timeout_seconds: How long to wait for nodes that are late.

        Returns:
            What was taken over, by job.

        Raises:
            ConfigurationError: If no node keeps rows of *control_id*, or there is
                state.
            StorageError: If a job cannot be taken over; says why.
            DidNotHappenError: If nodes of a job are away; says which.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
                Each has a note of the jobs that were taken over before it.
        """
        timeout_seconds = check_timeout_seconds(timeout_seconds) or 0.0
        if control_id is not None:
            take_control(self._calls, control_id, timeout_seconds)
        adopted: list[AdoptionInformation] = []
        try:
            for one in self.kept():
                if not one.is_ahead:
                    continue
                try:
                    done = adopt_job(
                        self._calls,
                        one.job_id,
                        is_forced=force,
                        timeout_seconds=timeout_seconds,
                    )
                except UnknownJobError:
                    continue  # another operator has taken it over since we asked
                adopted.append(done)
        except (NameServiceError, KeyboardInterrupt) as error:
            if adopted:
                # It cannot be taken back: who hears of the error alone would not know.
                names = ", ".join(one.job_id for one in adopted)
                error.add_note(f"taken over before that: {names}")
            raise
        return adopted

    # -- life --------------------------------------------------------------------------

    def snapshot(
        self,
        job_id: str,
        uri: str | os.PathLike[str],
        *,
        timeout_seconds: float = _SNAPSHOT_TIMEOUT_SECONDS,
    ) -> SnapshotInformation:
        """
        Write all key groups of a job, as they are at one moment, to a directory.

        Batches go on being committed, and readers notice nothing.  What is there when
        this returns is whole; until then it is no snapshot.

        Args:
            job_id: The job.
            uri: A directory that holds no snapshot, and that the nodes share with the
                caller: a path, or a URI that pyarrow knows, e.g. ``s3://bucket/path``.
            timeout_seconds: How long it may take, a week at most.

        Raises:
            UnknownJobError: If there is no state of the job.
            StateUnavailableError: If a node of the job is away, or goes away.
            DeadlineExceededError: If it takes longer.
            StorageError: If the directory cannot be written to, or not by a node.
            ConfigurationError: If it holds a snapshot, or pyarrow is not installed.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        # A proxy that is not there would be awaited for as long.
        self._calls.listed_nodes()

        def call(expected: type[SnapshotTaken], build: Build) -> SnapshotTaken:
            return self._calls.call(expected, build, timeout_seconds=timeout_seconds)

        return take_snapshot(
            call, job_id, location_of(uri), timeout_seconds=timeout_seconds
        )

    def restore(
        self,
        job_id: str,
        uri: str | os.PathLike[str],
        *,
        timeout_seconds: float = _SNAPSHOT_TIMEOUT_SECONDS,
    ) -> RestoreInformation:
        """
        Make a job from a snapshot, on the nodes that are there now.

        The job is there with all of its rows, or not at all.  A query that goes on
        from a checkpoint of that time, or a later one, goes on exactly once: batches
        that are in the snapshot are not applied again (rule W4).

        Args:
            job_id: How it is to be called; it must have no state.
            uri: As in `snapshot`.
            timeout_seconds: As in `snapshot`.

        Raises:
            ConfigurationError: If the job has states, or pyarrow is not installed.
            StorageError: If there is no snapshot, it is damaged, or a node could not
                load its part.
            StateUnavailableError: If a node goes away meanwhile, or none is there.
            DeadlineExceededError: If it takes longer.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        self._calls.listed_nodes()  # as in `snapshot`

        def call(expected: type[JobRestored], build: Build) -> JobRestored:
            return self._calls.change(expected, build, timeout_seconds=timeout_seconds)

        return restore_snapshot(
            call, job_id, location_of(uri), timeout_seconds=timeout_seconds
        )

    def close(self) -> None:
        """Close every socket; who waits is told at once.  Idempotent."""
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
