"""
`ZooKeeperConnection`: kazoo behind types of ours.

Theory of operation
-------------------
kazoo keeps the TCP connection and the session, and asks and answers asynchronously.
Everything that it has to say (answers, watches, changes of state) goes to one
`EventLoop`, in the order in which it happened, and runs there: kazoo's own two callback
threads are not started.

Requests that are submitted while kazoo is reconnecting wait, and are sent then, also to
a new session.  The submitter checks which session it is (`ZooKeeperSession`).
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, final

from attrs import frozen
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from haservices.zookeeper.credentials import load_credentials, load_tls_context
from haservices.zookeeper.kazoo_parts import (
    KazooConnection,
    KazooHandler,
    KazooLog,
    RemoveWatches,
)
from haservices.zookeeper.nodes import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeOperation,
    NodeStat,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper.requests import CheckedKazooClient, encoded_acl
from haservices.zookeeper.translation import BYSTANDERS, translate
from nameservice import RemoteProtocolError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices.config import HAConfig
    from haservices.event_loop import EventLoop
    from nameservice import Clock


__all__ = [
    "Connected",
    "ConnectionEvent",
    "Disconnected",
    "Ended",
    "Expired",
    "ZooKeeperConnection",
]

T = TypeVar("T")

_RETRY_DELAY_SECONDS: Final = 0.05
_RETRY_DELAY_SECONDS_MAX: Final = 0.5
_ABORT_INTERVAL_SECONDS: Final = 0.1
_ABORT_COUNT_MAX: Final = 100


@frozen(kw_only=True)
class Connected:
    """
    There is a connection, and a session.

    Attributes:
        session_id: Which; perhaps the same as before.
        session_timeout_ms: As negotiated.
        sent_ns: When the handshake that the server answered was sent.
    """

    session_id: int
    session_timeout_ms: int
    sent_ns: int


@frozen(kw_only=True)
class Disconnected:
    """The connection is gone; another one is being tried."""


@frozen(kw_only=True)
class Expired:
    """The name service has ended the session; a new one is being tried."""


@frozen(kw_only=True)
class Ended:
    """
    Nothing is tried any more.

    Attributes:
        is_refused: Whether our credentials were refused.
    """

    is_refused: bool


ConnectionEvent: TypeAlias = Connected | Disconnected | Expired | Ended


@final
class ZooKeeperConnection:
    """
    One session with a ZooKeeper ensemble.

    Everything but `stop` is for the event loop alone.  Futures are completed on the
    loop, with exceptions of ours.

    Args:
        config: Whom to connect to, and how.
        loop: Where everything is told.
        clock: The time of sends.
        on_event: Told of the connection.
        on_node_changed: Told of the path of a node that is watched.

    Raises:
        ConfigurationError: If a file that *config* names cannot be used.
    """

    def __init__(
        self,
        config: HAConfig,
        *,
        loop: EventLoop,
        clock: Clock,
        on_event: Callable[[ConnectionEvent], None],
        on_node_changed: Callable[[str], None],
    ) -> None:
        self._target = config.url
        self._loop = loop
        self._on_event = on_event
        self._on_node_changed = on_node_changed
        self._watched: set[str] = set()
        self._is_refused = False
        self._log = KazooLog()
        # No child of any logger: kazoo writes credentials at debug level.
        logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001
        logger.addHandler(self._log)
        credentials = load_credentials(config)
        self._acl = None if credentials is None else CREATOR_ALL_ACL + READ_ACL_UNSAFE
        addresses = config.server_addresses
        # Every server can be tried within half of the connect timeout.
        attempt_timeout_seconds = config.connect_timeout_seconds / 2 / len(addresses)
        retry = KazooRetry(
            max_tries=-1,
            delay=_RETRY_DELAY_SECONDS,
            max_delay=_RETRY_DELAY_SECONDS_MAX,
        )
        self._client = CheckedKazooClient(
            hosts=",".join(map(str, addresses)),
            timeout=config.session_timeout_seconds,
            handler=KazooHandler(
                loop,
                attempt_timeout_seconds=attempt_timeout_seconds,
                tls=load_tls_context(config),
            ),
            auth_data=[] if credentials is None else [credentials],
            connection_retry=retry,
            logger=logger,
        )
        # Stopped amid its start, or closed amid its end, kazoo would run on.
        self._lock = threading.RLock()  # guards `_is_ending`, and the start
        self._is_ending = False
        self._connection = KazooConnection(
            self._client,
            self._client._conn_retry.copy(),  # noqa: SLF001 - it knows when to stop
            logger=logger,
            clock=clock,
            attempt_timeout_seconds=attempt_timeout_seconds,
            server_count=len(addresses),
            on_ended=lambda: loop.call(self._ended),
        )
        self._client._connection = self._connection  # noqa: SLF001 - as above
        self._client.add_listener(self._state_changed)

    @property
    def acl_size_bytes(self) -> int:
        """Return what the access list of a node that we create takes, encoded."""
        return len(encoded_acl(self._acl or OPEN_ACL_UNSAFE))

    @property
    def last_zxid(self) -> int:
        """Return the newest transaction that any answer has named."""
        return int(self._client.last_zxid)

    @property
    def last_messages(self) -> str:
        """Return what kazoo has warned of lately, for a person."""
        return "; ".join(self._log.messages)

    def start(self) -> None:
        """Begin to connect; return at once.  Nothing if it was to end before."""
        with self._lock:
            if not self._is_ending:
                self._client.start_async()

    def stop(self, grace_seconds: float) -> None:
        """
        End the session, and release everything.  Blocks; not on the loop.

        Nothing if another has ended it, or does so now.

        Args:
            grace_seconds: How long the servers may take to answer the farewell.
        """
        if not self._begin_end():
            return
        # kazoo waits as long as a server takes to answer; we do not.
        stopping = threading.Thread(
            target=self._end, name="zookeeper-stop", daemon=True
        )
        stopping.start()
        stopping.join(grace_seconds)
        for _ in range(_ABORT_COUNT_MAX):
            if not stopping.is_alive():
                return
            self._connection.abort()
            stopping.join(_ABORT_INTERVAL_SECONDS)
        get_logger(component="kazoo").error("kazoo.hung")

    def abort(self) -> None:
        """Give the present connection up, and make another."""
        self._connection.abort()

    def abandon(self) -> None:
        """Release everything after `Ended`; nothing if another does so."""
        if self._begin_end():
            self._end()

    def _end(self) -> None:
        try:
            self._client.stop()
        except AttributeError:
            # One whose start has failed for want of descriptors has no pipe to be
            # woken by, and nothing that runs.
            if self._connection._write_sock is not None:  # noqa: SLF001 - kazoo's
                raise
        self._client.close()

    def _begin_end(self) -> bool:
        """Return whether the caller is to end it: the first one is."""
        with self._lock:
            is_first = not self._is_ending
            self._is_ending = True
            return is_first

    # -- requests --------------------------------------------------------------------

    def get(self, path: str) -> Future[Node]:
        """Return the node at *path*; `NodeMissingError`."""
        return self._submit(
            self._client.get_async(path),
            lambda answer: Node(value=answer[0], stat=_to_stat(answer[1])),
        )

    def watch(self, path: str) -> Future[NodeStat | None]:
        """
        Tell *on_node_changed* once when *path* is created, set or deleted.

        Returns:
            What is known of the node now, or None if there is none.
        """
        self._watched.add(path)
        return self._submit(
            self._client.exists_async(path, watch=self._node_changed),
            lambda answer: None if answer is None else _to_stat(answer),
        )

    def unwatch(self, path: str) -> None:
        """Take the watch of *path* back, on the server too."""
        if path not in self._watched:
            return
        self._watched.discard(path)
        answer = self._client.handler.async_result()
        self._client._call(  # noqa: SLF001 - kazoo has no name for this request
            RemoveWatches(path), answer
        )
        answer.rawlink(lambda _: self._forget_watch(path))

    def exists(self, path: str) -> Future[NodeStat | None]:
        """Return what is known of the node at *path*, or None if there is none."""
        return self._submit(
            self._client.exists_async(path),
            lambda answer: None if answer is None else _to_stat(answer),
        )

    def children(self, path: str) -> Future[list[str]]:
        """Return the names of the children of *path*; `NodeMissingError`."""
        return self._submit(self._client.get_children_async(path), list)

    def create(self, path: str, value: bytes = b"") -> Future[None]:
        """Create a node that stays; `NodeExistsError`, `NodeMissingError`."""
        return self._submit(
            self._client.create_async(path, value, acl=self._acl), _drop
        )

    def create_contender(
        self, prefix: str, value: bytes
    ) -> Future[tuple[str, NodeStat]]:
        """Create an ephemeral node at *prefix* and a sequence; return its path too."""
        return self._submit(
            self._client.create_async(
                prefix,
                value,
                acl=self._acl,
                ephemeral=True,
                sequence=True,
                include_data=True,
            ),
            lambda answer: (answer[0], _to_stat(answer[1])),
        )

    def set(self, path: str, value: bytes, version: int) -> Future[NodeStat]:
        """Set the value of a node; `NodeMissingError`, `NodeVersionError`."""
        return self._submit(self._client.set_async(path, value, version), _to_stat)

    def delete(self, path: str, version: int = ANY_VERSION) -> Future[None]:
        """
        Delete a node.

        Raises: `NodeMissingError`, `NodeVersionError`, `NodeNotEmptyError`.
        """
        return self._submit(self._client.delete_async(path, version), _drop)

    def transact(self, operations: Sequence[NodeOperation]) -> Future[None]:
        """
        Do all of *operations*, or none.

        Raises:
            TransactionFailedError: One of them failed.
            ConfigurationError: They are too large; nothing was sent.
            LocalProtocolError: They cannot be encoded; nothing was sent.
        """
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case CheckNode(path=path, version=version):
                    transaction.check(path, version)
                case CreateNode(path=path, value=value, is_ephemeral=is_ephemeral):
                    transaction.create(path, value, self._acl, is_ephemeral)
                case SetNode(path=path, value=value, version=version):
                    transaction.set_data(path, value, version)
                case DeleteNode(path=path, version=version):
                    transaction.delete(path, version)
        return self._submit(transaction.commit_async(), self._check_transaction)

    def sync(self) -> Future[None]:
        """Return once our server has caught up with the leader of the ensemble."""
        return self._submit(self._client.sync_async("/"), _drop)

    # -- what kazoo calls --------------------------------------------------------------

    def _state_changed(self, state: str) -> None:
        # On kazoo's thread, from within its own change of state.
        client = self._client
        if state == KazooState.CONNECTED:
            session_id: int = client._session_id  # noqa: SLF001 - client_id waits
            self._tell(
                Connected(
                    session_id=session_id,
                    session_timeout_ms=self._connection.session_timeout_ms,
                    sent_ns=self._connection.handshake_sent_ns,
                )
            )
        elif client.client_state == KeeperState.AUTH_FAILED:
            self._is_refused = True
        elif client.client_state == KeeperState.EXPIRED_SESSION:
            self._tell(Expired())
        else:
            self._tell(Disconnected())

    def _tell(self, event: ConnectionEvent) -> None:
        self._loop.call(lambda: self._on_event(event))

    def _ended(self) -> None:
        self._on_event(Ended(is_refused=self._is_refused))

    def _node_changed(self, event: Any) -> None:
        # On the loop.  Without a path, it is the connection that changed.
        if event.path is not None:
            self._watched.discard(event.path)
            self._on_node_changed(event.path)

    def _forget_watch(self, path: str) -> None:
        if path not in self._watched:
            self._client._data_watchers.pop(path, None)  # noqa: SLF001 - no other way

    def _submit(self, request: Any, convert: Callable[[Any], T]) -> Future[T]:
        future: Future[T] = Future()

        def complete(answered: Any) -> None:
            if future.done():
                return  # kazoo completes some requests twice when it is closing
            try:
                result = convert(answered.get_nowait())
            except Exception as error:  # noqa: BLE001 - translated, for the asker
                future.set_exception(translate(error, target=self._target))
            else:
                future.set_result(result)

        request.rawlink(complete)
        return future

    def _check_transaction(self, results: list[Any]) -> None:
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, BYSTANDERS):
                raise TransactionFailedError(
                    index, translate(result, target=self._target)
                )
        if any(isinstance(result, Exception) for result in results):
            raise RemoteProtocolError("transaction", "a transaction failed throughout")


def _drop(_: Any) -> None:
    """Take an answer that says nothing but that there is one."""


def _to_stat(stat: Any) -> NodeStat:
    return NodeStat(
        version=stat.version,
        owner_session_id=stat.ephemeralOwner,
        created_zxid=stat.czxid,
        children_zxid=stat.pzxid,
    )
