"""
What operators ask of ZooKeeper and do to it (rule N6).

Whatever concerns contenders is read from their nodes: ZooKeeper tells nobody which
sessions there are, nor when it heard from them, so sessions are known by the nodes that
they own.  Figures of the servers themselves come from four-letter words.

A leadership is ended by marking its holder's node (zookeeper_contender.py) and deleting
what it has published.  Waiting contenders lead nothing: their nodes are just deleted.
"""

from __future__ import annotations

import contextlib
import re
import socket
from typing import TYPE_CHECKING, Final, final

import msgspec
from attrs import frozen

from election.contender import ContenderInformation, LeaderSession
from haservices.interface import ComponentInformation, SessionInformation
from haservices.zookeeper_credentials import load_tls_context
from haservices.zookeeper_nodes import (
    DeleteNode,
    Node,
    NodeMissingError,
    NodeOperation,
    NodeVersionError,
    SetNode,
    TransactionFailedError,
)
from haservices.zookeeper_paths import decode_name, in_order
from haservices.zookeeper_records import (
    ContenderRecord,
    decode_contender,
    decode_leader,
    encode_record,
)
from haservices.zookeeper_session import format_session_id, or_none
from nameservice import (
    DidNotHappenError,
    ForkGuard,
    NoLeaderError,
    RemoteProtocolError,
    UnknownSessionError,
    UnreachableError,
    check_component_id,
)
from retrieval.information import LeaderInformation


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from haservices.config import ServerAddress
    from haservices.zookeeper_nodes import NodeStat
    from haservices.zookeeper_paths import ComponentPaths, ZooKeeperPaths
    from haservices.zookeeper_session import ZooKeeperSession


__all__ = ["ZooKeeperOperations"]

_ATTEMPT_COUNT_MAX: Final = 10
_ANSWER_SIZE_BYTES_MAX: Final = 1 << 20
_MS_PER_SECOND: Final = 1000


@frozen(kw_only=True)
class _Contender:
    """A contender's node, as it was read."""

    path: str
    contender_id: str
    stat: NodeStat
    record: ContenderRecord

    @property
    def is_leader(self) -> bool:
        return self.record.is_granted and not self.record.is_ended

    @property
    def session_id(self) -> str:
        return format_session_id(self.stat.owner_session_id)


@final
class ZooKeeperOperations:
    """`HAOperations` over a `ZooKeeperSession`.  Thread-safe."""

    def __init__(
        self, session: ZooKeeperSession, paths: ZooKeeperPaths, fork_guard: ForkGuard
    ) -> None:
        self._session = session
        self._paths = paths
        self._fork_guard = fork_guard

    def leaders(self) -> Sequence[ComponentInformation]:
        """Return every component that has a contender or a leader, sorted by id."""
        found = []
        for paths in self._components():
            contenders = self._queue(paths)
            leader = self._leader(paths)
            if contenders or leader is not None:
                first = contenders[0] if contenders else None
                found.append(
                    ComponentInformation(
                        component_id=paths.component_id,
                        leader=leader,
                        contender_count=len(contenders),
                        epoch=first.stat.created_zxid
                        if first is not None and first.record.is_granted
                        else None,
                    )
                )
        return found

    def contenders(self, component_id: str) -> Sequence[ContenderInformation]:
        """Return the contenders of *component_id* in order, the leader first."""
        check_component_id(component_id)
        return self.contenders_of(self._paths.component(component_id))

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
        contended: dict[str, list[tuple[str, _Contender]]] = {}
        for paths in self._components():
            for contender in self._queue(paths):
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
                / _MS_PER_SECOND,
            )
            for session_id, contenders in sorted(contended.items())
        ]

    def status(self) -> Mapping[str, str | int | float]:
        """
        Return the figures of the first server that tells any.

        They are those of ``mntr``, or of ``srvr`` where the server allows no more.
        """
        self._fork_guard.check()
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
        check_component_id(component_id)
        paths = self._paths.component(component_id)
        for _ in range(_ATTEMPT_COUNT_MAX):
            queue = self._queue(paths)
            if not queue or not queue[0].is_leader:
                raise NoLeaderError(component_id, 0.0)
            if self._end(paths, queue[0]):
                return LeaderSession(
                    leader_session_id=queue[0].record.leader_session_id,
                    epoch=queue[0].stat.created_zxid,
                )
        message = f"the leader of {component_id!r} changed each time it was revoked"
        raise DidNotHappenError(message)

    def expire(self, session_id: str) -> None:
        """End everything that a session contends for; each queues last again."""
        is_found = False
        for paths in self._components():
            for contender in self._queue(paths):
                if contender.session_id == session_id:
                    is_found = True
                    self._end(paths, contender)
        if not is_found:
            raise UnknownSessionError(session_id)

    # -- reading ---------------------------------------------------------------------

    def _components(self) -> Sequence[ComponentPaths]:
        """Return the paths of every component that has a node, sorted by id."""
        ids = [decode_name(name) for name in self._children(self._paths.components)]
        return [self._paths.component(component_id) for component_id in sorted(ids)]

    def _children(self, path: str) -> Sequence[str]:
        self._fork_guard.check()

        def ask() -> Future[list[str]]:
            self._session.connection.sync()
            return self._session.connection.children(path)

        try:
            return self._session.read(ask)
        except NodeMissingError:
            return ()

    def _queue(self, paths: ComponentPaths) -> Sequence[_Contender]:
        """Return the contenders of a component in order; others' nodes are left out."""
        names = in_order(self._children(paths.contenders))
        requests = [self._asking_for(paths.contender(name)) for name in names]
        contenders = []
        for name, node in zip(names, self._session.read_all(requests), strict=True):
            if node is None:
                continue  # gone since it was listed
            path = paths.contender(name)
            try:
                record = decode_contender(node.value, path=path)
            except RemoteProtocolError:
                continue
            contenders.append(
                _Contender(
                    path=path,
                    contender_id=name.partition("-")[0],
                    stat=node.stat,
                    record=record,
                )
            )
        return contenders

    def _asking_for(self, path: str) -> Callable[[], Future[Node | None]]:
        """Return a request for the node at *path*, or None if it is not there."""
        return lambda: or_none(self._session.connection.get(path))

    def _leader(self, paths: ComponentPaths) -> LeaderInformation | None:
        node = self._session.read(self._asking_for(paths.leader))
        if node is None:
            return None
        return decode_leader(node.value, path=paths.leader).to_publication().leader

    # -- ending ----------------------------------------------------------------------

    def _end(self, paths: ComponentPaths, contender: _Contender) -> bool:
        """End *contender*'s entry; return False if it changed meanwhile."""
        operations: list[NodeOperation]
        if contender.record.is_granted:
            record = msgspec.structs.replace(contender.record, is_ended=True)
            operations = [SetNode(path=contender.path, value=encode_record(record))]
            if self._leader(paths) is not None:
                operations.append(DeleteNode(path=paths.leader))
        else:
            # It may be granted this very moment; then the version is another.
            operations = [
                DeleteNode(path=contender.path, version=contender.stat.version)
            ]
        try:
            self._session.write(lambda: self._session.connection.transact(operations))
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
