"""
`StateOperations`: what operators ask of the proxy leader, and tell it to do.

Where the proxy has callers, all of it takes the right ``admin``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

from attrs import frozen
from msgspec import Struct

from nameservice import RemoteProtocolError
from queryablestate.messages import DropState, ListNodes, NodesListed, StateDropDone
from queryablestate.proxy_connection import ProxyConnection


if TYPE_CHECKING:
    from types import TracebackType

    from haservices import HAConfig, HAServices
    from queryablestate.credentials import Credentials
    from queryablestate.messages import ToClient
    from queryablestate.proxy_connection import Build


__all__ = ["NodeInformation", "StateOperations"]

_MS_PER_SECOND: Final = 1_000

T = TypeVar("T", bound=Struct)


@final
@frozen(kw_only=True)
class NodeInformation:
    """
    One node as the proxy leader sees it.

    Attributes:
        node_id: Its name.
        address: Where writers reach it, or None while it is away.
        last_heard_seconds: How long ago it was heard from, or None while it is away.
        key_group_counts: For each job how many key groups it is asked for.
        behind_counts: For each job how many decided entries it has yet to apply; empty
            while it is away, since nobody knows then.
    """

    node_id: str
    address: str | None
    last_heard_seconds: float | None
    key_group_counts: Mapping[str, int]
    behind_counts: Mapping[str, int]


@final
class StateOperations:
    """
    Asks whoever is the proxy leader.  Thread-safe; a context manager.

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
        self._proxy = ProxyConnection(config, credentials)
        self._deadline_seconds = deadline_seconds

    def nodes(self) -> Sequence[NodeInformation]:
        """
        Return every node that the control plane knows, sorted by name.

        Raises:
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        listed = self._call(
            NodesListed,
            lambda request_id, session: ListNodes(
                request_id=request_id, session=session
            ),
        )
        return [
            NodeInformation(
                node_id=node.node_id,
                address=node.address,
                last_heard_seconds=(
                    None
                    if node.last_heard_ms is None
                    else node.last_heard_ms / _MS_PER_SECOND
                ),
                key_group_counts=node.key_group_counts,
                behind_counts={} if node.address is None else node.behind_counts,
            )
            for node in listed.nodes
        ]

    def drop_state(self, job_id: str, state_name: str) -> None:
        """
        Forget a state and everything in it, on every node (rule W5).

        It is gone for every reader then; nodes that are away drop it when they are
        back.  A query that writes it goes on only if it is started anew, and begins
        with an empty state.

        Raises:
            UnknownJobError: If there is no state of the job.
            UnknownStateError: If the job has no such state.
            AccessDeniedError: If the proxy has callers, and this is no ``admin``.
            NameServiceError: If the proxy could not be asked; see `ProxyConnection`.
        """
        self._call(
            StateDropDone,
            lambda request_id, session: DropState(
                request_id=request_id,
                session=session,
                job_id=job_id,
                state_name=state_name,
            ),
        )

    def close(self) -> None:
        """Close every socket.  Idempotent."""
        self._proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, expected: type[T], build: Build) -> T:
        answer: ToClient = self._proxy.call(
            build, timeout_seconds=self._deadline_seconds
        )
        if not isinstance(answer, expected):
            raise RemoteProtocolError(
                "unexpected",
                f"the proxy answered with {type(answer).__name__}, "
                f"not {expected.__name__}",
            )
        return answer
