"""
What operators ask of ZooKeeper and do to it (rule N6).

Whatever concerns contenders is read from their nodes: ZooKeeper does not tell which
sessions there are, nor when it heard from them, so sessions are known by the nodes that
they own.  Figures of the servers themselves come from four-letter words.

What is done to contenders is decided by the cores of operations_core.py; this
is their thin shell.
"""

from __future__ import annotations

import contextlib
import re
import socket
from typing import TYPE_CHECKING, Final, assert_never, final

from election.contender import ContenderInformation
from haservices.client_name import client_name
from haservices.interface import ComponentInformation, SessionInformation
from haservices.zookeeper.credentials import load_tls_context
from haservices.zookeeper.nodes import (
    Node,
    NodeMissingError,
    NodeOperation,
    NodeVersionError,
    TransactionFailedError,
)
from haservices.zookeeper.operations_core import (
    Attempt,
    Attempted,
    Began,
    Contender,
    ExpireCore,
    Fail,
    Finish,
    Interrupted,
    PublicationRead,
    Queue,
    QueuesRead,
    ReadPublication,
    ReadQueues,
    RevokeCore,
    TransferCore,
)
from haservices.zookeeper.paths import decode_name, in_order
from haservices.zookeeper.reading import or_none, read_children
from haservices.zookeeper.records import decode_contender, decode_leader
from nameservice import (
    ForkGuard,
    NameServiceError,
    RemoteProtocolError,
    UnreachableError,
    check_component_id,
    check_contender_id,
    get_logger,
)
from nameservice.clock import MS_PER_SECOND
from nameservice.fields import check_identifier
from retrieval.information import LeaderInformation


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from election.contender import LeaderSession
    from haservices.config import ServerAddress
    from haservices.zookeeper.operations_core import OperationCore, OperationEvent
    from haservices.zookeeper.paths import ComponentPaths, ZooKeeperPaths
    from haservices.zookeeper.session import ZooKeeperSession


__all__ = ["ZooKeeperOperations"]

_ANSWER_SIZE_BYTES_MAX: Final = 1 << 20


@final
class ZooKeeperOperations:
    """`HAOperations` over a `ZooKeeperSession`.  Thread-safe."""

    def __init__(
        self, session: ZooKeeperSession, paths: ZooKeeperPaths, fork_guard: ForkGuard
    ) -> None:
        self._session = session
        self._paths = paths
        self._fork_guard = fork_guard
        self._log = get_logger(component="zookeeper", client=client_name())

    def leaders(self) -> Sequence[ComponentInformation]:
        """Return every component that has a contender or a leader, sorted by id."""
        components = self._components()
        queues = self._queues(components)
        nodes = self._session.calls.read_all(
            [self._asking_for(paths.leader) for paths in components]
        )
        found = []
        for paths, queue, node in zip(components, queues, nodes, strict=True):
            if queue or node is not None:
                leader = _leader_of(node, paths)
                # The leader is read later, and may have been granted since.
                epochs = [] if leader is None else [leader.epoch]
                if queue and queue[0].record.is_granted:
                    epochs.append(queue[0].stat.created_zxid)
                found.append(
                    ComponentInformation(
                        component_id=paths.component_id,
                        leader=leader,
                        contender_count=len(queue),
                        epoch=max(epochs, default=None),
                    )
                )
        return found

    def contenders(self, component_id: str) -> Sequence[ContenderInformation]:
        """Return the contenders of *component_id* in order, the leader first."""
        return self.contenders_of(
            self._paths.component(check_component_id(component_id))
        )

    def contenders_of(self, paths: ComponentPaths) -> Sequence[ContenderInformation]:
        """Return the contenders of the component of *paths*, likewise."""
        return [
            ContenderInformation(
                contender_id=contender.contender_id,
                session_id=contender.session_id,
                address=contender.record.address,
                is_leader=contender.is_leader,
                session_age_seconds=None,
                last_heard_seconds=None,
            )
            for contender in self._queue(paths)
        ]

    def sessions(self) -> Sequence[SessionInformation]:
        """Return every session of the cluster that contends, sorted by id."""
        contended: dict[str, list[tuple[str, Contender]]] = {}
        components = self._components()
        for paths, queue in zip(components, self._queues(components), strict=True):
            for contender in queue:
                contended.setdefault(contender.session_id, []).append(
                    (paths.component_id, contender)
                )
        return [
            SessionInformation(
                session_id=session_id,
                client=contenders[0][1].record.client,
                component_ids=sorted({component_id for component_id, _ in contenders}),
                leads_component_ids=sorted(
                    component_id
                    for component_id, contender in contenders
                    if contender.is_leader
                ),
                age_seconds=None,
                last_heard_seconds=None,
                timeout_seconds=contenders[0][1].record.session_timeout_ms
                / MS_PER_SECOND,
            )
            for session_id, contenders in sorted(contended.items())
        ]

    def status(self) -> Mapping[str, str | int | float]:
        """
        Return the figures of the first server that tells any.

        They are those of ``mntr``, or of ``srvr`` where the server allows no more.
        """
        self._fork_guard.check()
        self._session.calls.check_open()
        seen = []
        for address in self._session.config.server_addresses:
            for word, parse in (("mntr", _parse_mntr), ("srvr", _parse_srvr)):
                try:
                    answer = self._ask_server(address, word)
                except OSError as error:
                    seen.append(f"{address}: {error}")
                    break
                figures = parse(answer)
                if figures:
                    return {"server": str(address)} | figures
                seen.append(f"{address}: {answer.strip() or 'no answer'}")
        raise UnreachableError(
            self._session.config.url,
            self._session.config.connect_timeout_seconds,
            "; ".join(seen),
        )

    def revoke(self, component_id: str) -> LeaderSession:
        """End the present leadership of *component_id*; its holder queues last."""
        component_id = check_component_id(component_id)
        paths = self._paths.component(component_id)
        core = RevokeCore(component_id=component_id)
        ended = self._perform("revoke", core, lambda: [paths])
        assert ended is not None
        return ended

    def transfer(self, component_id: str, contender_id: str) -> LeaderSession | None:
        """Make *contender_id* lead *component_id* next; all before it queue last."""
        component_id = check_component_id(component_id)
        contender_id = check_contender_id(contender_id, component_id=component_id)
        paths = self._paths.component(component_id)
        core = TransferCore(component_id=component_id, contender_id=contender_id)
        return self._perform("transfer", core, lambda: [paths])

    def expire(self, session_id: str) -> None:
        """End everything that a session contends for; each queues last again."""
        session_id = check_identifier(session_id, what="a session id")
        self._perform("expire", ExpireCore(session_id=session_id), self._components)

    def performed(self, operation: str, **fields: object) -> None:
        """Write down what we did: ZooKeeper keeps no record of who did what."""
        self._log.info("operation.performed", operation=operation, **fields)

    def _perform(
        self,
        operation: str,
        core: OperationCore,
        components: Callable[[], Sequence[ComponentPaths]],
    ) -> LeaderSession | None:
        """Do what *core* decides; return the leadership that it has ended, if any."""
        event: OperationEvent = Began()
        while True:
            effect = core.step(event)
            match effect:
                case Finish(ended=ended, fields=fields):
                    if fields is not None:
                        self.performed(operation, **fields)
                    return ended
                case Fail(error=error):
                    raise error
                case ReadQueues() | ReadPublication() | Attempt():
                    try:
                        event = self._do(effect, components)
                    except NameServiceError as error:
                        event = Interrupted(error=error)
                case _:
                    assert_never(effect)

    def _do(
        self,
        effect: ReadQueues | ReadPublication | Attempt,
        components: Callable[[], Sequence[ComponentPaths]],
    ) -> OperationEvent:
        match effect:
            case ReadQueues():
                all_paths = components()
                queues = zip(all_paths, self._queues(all_paths), strict=True)
                return QueuesRead(
                    queues=tuple(
                        Queue(paths=paths, contenders=tuple(contenders))
                        for paths, contenders in queues
                    )
                )
            case ReadPublication(paths=paths):
                node = self._session.calls.read(self._asking_for(paths.leader))
                return PublicationRead(is_published=node is not None)
            case Attempt(operations=operations):
                return Attempted(is_done=self._attempt(operations))
            case _:
                assert_never(effect)

    # -- reading ---------------------------------------------------------------------

    def _components(self) -> Sequence[ComponentPaths]:
        """Return the paths of every component that has a node, sorted by id."""
        self._fork_guard.check()
        names = read_children(self._session, self._paths.components)
        ids = [decode_name(name) for name in names]
        return [self._paths.component(component_id) for component_id in sorted(ids)]

    def _queue(self, paths: ComponentPaths) -> Sequence[Contender]:
        """Return the contenders of a component in order."""
        return self._queues([paths])[0]

    def _queues(
        self, components: Sequence[ComponentPaths]
    ) -> Sequence[Sequence[Contender]]:
        """Return each component's contenders in order; others' nodes are left out."""
        self._fork_guard.check()
        self._session.calls.read(self._session.sync)
        listed = self._session.calls.read_all(
            [self._listing(paths.contenders) for paths in components]
        )
        nodes = [
            paths.contender(name)
            for paths, names in zip(components, listed, strict=True)
            for name in in_order(names or ())
        ]
        values = self._session.calls.read_all(
            [self._asking_for(path) for path in nodes]
        )
        found: dict[str, list[Contender]] = {
            paths.contenders: [] for paths in components
        }
        for path, node in zip(nodes, values, strict=True):
            if node is not None:  # or it is gone since it was listed
                parent, _, name = path.rpartition("/")
                with contextlib.suppress(RemoteProtocolError):
                    found[parent].append(
                        Contender(
                            path=path,
                            contender_id=name.partition("-")[0],
                            stat=node.stat,
                            record=decode_contender(node.value, path=path),
                        )
                    )
        return list(found.values())

    def _listing(self, path: str) -> Callable[[], Future[list[str] | None]]:
        """Return a request for the children of *path*, or None if it is not there."""
        return lambda: or_none(self._session.connection.children(path))

    def _asking_for(self, path: str) -> Callable[[], Future[Node | None]]:
        """Return a request for the node at *path*, or None if it is not there."""
        return lambda: or_none(self._session.connection.get(path))

    def _attempt(self, operations: Sequence[NodeOperation]) -> bool:
        """Do *operations*, all or none; return False if a node is not as it was."""
        try:
            self._session.calls.write(
                lambda: self._session.connection.transact(operations)
            )
        except TransactionFailedError as failure:
            if isinstance(failure.error, NodeMissingError | NodeVersionError):
                return False
            raise failure.error from failure
        return True

    # -- four-letter words -------------------------------------------------------------

    def _ask_server(self, address: ServerAddress, word: str) -> str:
        config = self._session.config
        context = load_tls_context(config)
        with contextlib.ExitStack() as resources:
            connection = resources.enter_context(
                socket.create_connection(
                    (address.host, address.port), config.connect_timeout_seconds
                )
            )
            if context is not None:
                connection = resources.enter_context(
                    context.wrap_socket(connection, server_hostname=address.host)
                )
            connection.sendall(word.encode("ascii"))
            answer = b""
            while len(answer) < _ANSWER_SIZE_BYTES_MAX:
                chunk = connection.recv(65_536)
                if not chunk:
                    break
                answer += chunk
        return answer.decode("utf-8", errors="replace")


def _leader_of(node: Node | None, paths: ComponentPaths) -> LeaderInformation | None:
    """Return the leader that *node* names, or None if it names none of ours."""
    if node is None:
        return None
    try:
        return decode_leader(node.value, path=paths.leader).to_publication().leader
    except RemoteProtocolError:
        return None


def _parse_mntr(answer: str) -> dict[str, str | int | float]:
    """Return the figures of ``mntr``: a name, a tab and a value on each line."""
    pairs = (line.split("\t", 1) for line in answer.splitlines() if "\t" in line)
    return {name: _to_figure(value) for name, value in pairs}


def _parse_srvr(answer: str) -> dict[str, str | int | float]:
    """Return the figures of ``srvr``: a name, a colon and a value on each line."""
    pairs = (line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    figures = {
        re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_"): _to_figure(value)
        for name, value in pairs
    }
    return figures if "mode" in figures else {}


def _to_figure(text: str) -> str | int | float:
    text = text.strip()
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
