"""
Every exception of the name service, in one tree.

::

    NameServiceError
    ├── ConfigurationError (also ValueError)
    ├── ProtocolError                   never raised itself
    │   ├── LocalProtocolError          our caller asked for something illegal
    │   └── RemoteProtocolError         the peer sent something illegal
    │       └── WrongServiceError       a URL names another kind of server
    ├── UnreachableError                no answer in time; carries what was tried
    ├── AuthenticationError             somebody answered, and refused us
    ├── ForkedClientError               an inherited service was used after fork()
    ├── DidNotHappenError               nothing changed; retrying is safe
    │   ├── VersionMismatchError        a store path is not at the version expected
    │   ├── UnknownSessionError         an operator named a session that is not there
    │   └── UnknownContenderError       an operator named a contender that is not there
    ├── MayHaveHappenedError            sent, but the answer never came
    ├── SessionExpiredError             the name service ended our session
    ├── LeadershipLostError             carries component_id and epoch
    ├── StaleEpochError                 a fenced write; carries epoch and epoch_max
    ├── EpochAheadError                 what was seen is ahead of what a server grants
    ├── SeveralServersError             two LeaderServers answer at one address
    ├── StorageError                    a data directory cannot be read or written
    ├── NoLeaderError                   carries component_id and how long we waited
    ├── OperatorStateError              a branch of its own: `rescaling.errors`
    └── QueryableStateError             a branch of its own: `queryablestate.errors`

Exceptions carry data and build their sentence in ``__str__``.  The exceptions of
kazoo, ZeroMQ and SQLite are translated where those libraries are called, and never
escape.  "Unreachable" and "refused" are different errors, and so are "did not
happen" and "may have happened": what a caller may do next depends on which.
"""

from __future__ import annotations


__all__ = [
    "AuthenticationError",
    "ConfigurationError",
    "DidNotHappenError",
    "EpochAheadError",
    "ForkedClientError",
    "LeadershipLostError",
    "LocalProtocolError",
    "MayHaveHappenedError",
    "NameServiceError",
    "NoLeaderError",
    "ProtocolError",
    "RemoteProtocolError",
    "SessionExpiredError",
    "SeveralServersError",
    "StaleEpochError",
    "StorageError",
    "UnknownContenderError",
    "UnknownSessionError",
    "UnreachableError",
    "VersionMismatchError",
    "WrongServiceError",
]


class NameServiceError(Exception):
    """The root of everything that this project raises on purpose."""


class ConfigurationError(NameServiceError, ValueError):
    """A setting is missing, malformed or contradicts another; says what to change."""


class ProtocolError(NameServiceError):
    """The root of the two protocol errors; never raised itself."""


class LocalProtocolError(ProtocolError):
    """Our own caller asked for something illegal, such as a second ``start``."""


class RemoteProtocolError(ProtocolError):
    """
    The peer sent something illegal.

    Attributes:
        reason: A constant, hyphenated word for counters and answers
            (``"wrong-version"``, ``"oversized"``, ``"malformed"``, …).
        detail: What was wrong, for a person.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.detail} ({self.reason})"


class WrongServiceError(RemoteProtocolError):
    """
    Another kind of server is where a URL says that a name service is.

    Attributes:
        target: The URL.
        found: What is there, and where.
        expected: What the URL says.
    """

    def __init__(self, target: str, found: str, expected: str) -> None:
        super().__init__("wrong-service", found)
        self.args = (target, found, expected)
        self.target = target
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.target}: {self.found}, not {self.expected}: correct the URL"


class UnreachableError(NameServiceError):
    """
    There was no answer in time.

    Attributes:
        target: What was tried: a URL or an endpoint.
        waited_seconds: How long.
        detail: What was seen meanwhile, or an empty string.
    """

    def __init__(self, target: str, waited_seconds: float, detail: str = "") -> None:
        super().__init__(target, waited_seconds, detail)
        self.target = target
        self.waited_seconds = waited_seconds
        self.detail = detail

    def __str__(self) -> str:
        waited = round(self.waited_seconds, 1) or self.waited_seconds
        sentence = f"{self.target} did not answer within {waited:g} s"
        return f"{sentence}: {self.detail}" if self.detail else sentence


class AuthenticationError(NameServiceError):
    """
    Somebody answered, and refused us: a key, a role or a credential is missing.

    Attributes:
        target: Who refused: a URL or an endpoint.
        detail: Why, as far as the other side tells.
    """

    def __init__(self, target: str, detail: str) -> None:
        super().__init__(target, detail)
        self.target = target
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.target} refused access: {self.detail}"


class ForkedClientError(NameServiceError):
    """A service that was opened before ``fork()`` was used by the child."""

    def __str__(self) -> str:
        return (
            "this service was opened by the parent process; sockets and sessions "
            "do not survive fork(): open services anew in the child"
        )


class DidNotHappenError(NameServiceError):
    """The request changed nothing, and will not: retrying it is safe."""


class VersionMismatchError(DidNotHappenError):
    """
    A store path is not at the version that the caller expected.

    Attributes:
        path: The path of the leader store.
        version_expected: What the caller asked for; 0 means "must not exist".
        version: What is there, 0 if nothing is, or None if the backend cannot tell.
    """

    def __init__(self, path: str, version_expected: int, version: int | None) -> None:
        super().__init__(path, version_expected, version)
        self.path = path
        self.version_expected = version_expected
        self.version = version

    def __str__(self) -> str:
        is_at = "another version" if self.version is None else f"version {self.version}"
        return (
            f"{self.path!r} is at {is_at}, not at version {self.version_expected}: "
            "read it again and decide anew"
        )


class UnknownSessionError(DidNotHappenError):
    """
    An operator named a session that the name service does not have.

    Attributes:
        session_id: The session that was named.
    """

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return f"there is no session {self.session_id!r}"


class UnknownContenderError(DidNotHappenError):
    """
    An operator named a contender that the component does not have.

    Attributes:
        component_id: What it was to lead.
        contender_id: The contender that was named.
    """

    def __init__(self, component_id: str, contender_id: str) -> None:
        super().__init__(component_id, contender_id)
        self.component_id = component_id
        self.contender_id = contender_id

    def __str__(self) -> str:
        return f"{self.component_id!r} has no contender {self.contender_id!r}"


class EpochAheadError(NameServiceError):
    """
    What a client has seen is ahead of what the name service grants: it waits in vain.

    The clock of a LeaderServer without a data directory was set back, or was wrong when
    an earlier one was started.  Start the server with a data directory, or again once
    its clock has come closer than a day; a contender or retriever that is new has seen
    nothing and goes on at once.

    Attributes:
        component_id: Of what.
        epoch: The highest epoch that was seen.
        epoch_max: The epoch that is there now, or None if there is none.
    """

    def __init__(self, component_id: str, epoch: int, epoch_max: int | None) -> None:
        super().__init__(component_id, epoch, epoch_max)
        self.component_id = component_id
        self.epoch = epoch
        self.epoch_max = epoch_max

    def __str__(self) -> str:
        there = "" if self.epoch_max is None else f", epoch {self.epoch_max} is there"
        return (
            f"epoch {self.epoch} of {self.component_id!r} was seen{there}: the clock "
            "of the server was set back; give it a data directory, or its former time"
        )


class SeveralServersError(NameServiceError):
    """
    Two LeaderServers answer at one address: they are two elections.

    Attributes:
        target: The address.
        detail: How that was found out.
    """

    def __init__(self, target: str, detail: str) -> None:
        super().__init__(target, detail)
        self.target = target
        self.detail = detail

    def __str__(self) -> str:
        return (
            f"more than one LeaderServer answers at {self.target}: {self.detail}; "
            "leaders of the one are unknown to the other: stop all but one"
        )


class MayHaveHappenedError(NameServiceError):
    """
    The request was sent and the answer never came: it may have taken effect.

    Read what it would have changed before you repeat it.
    """


class SessionExpiredError(NameServiceError):
    """The name service ended the session; a new one is opened by itself."""


class LeadershipLostError(NameServiceError):
    """
    The caller does not lead, or no longer.

    Attributes:
        component_id: What was being led.
        epoch: The epoch of the leadership that is over, or None if it never began.
    """

    def __init__(self, component_id: str, epoch: int | None) -> None:
        super().__init__(component_id, epoch)
        self.component_id = component_id
        self.epoch = epoch

    def __str__(self) -> str:
        what = "" if self.epoch is None else f" of epoch {self.epoch}"
        return f"the leadership{what} of {self.component_id!r} is over"


class StaleEpochError(NameServiceError):
    """
    A write was fenced: its leader session does not lead now.

    Attributes:
        component_id: Whose store was to be written.
        epoch: The epoch that the caller showed.
        epoch_max: The highest epoch known, or None if the backend cannot tell.
    """

    def __init__(self, component_id: str, epoch: int, epoch_max: int | None) -> None:
        super().__init__(component_id, epoch, epoch_max)
        self.component_id = component_id
        self.epoch = epoch
        self.epoch_max = epoch_max

    def __str__(self) -> str:
        newest = "" if self.epoch_max is None else f"; the newest is {self.epoch_max}"
        return (
            f"epoch {self.epoch} does not lead {self.component_id!r} now{newest}: "
            "nothing was written"
        )


class StorageError(NameServiceError):
    """
    A data directory cannot be read or written: full, gone or damaged.

    Attributes:
        reason: A word for metrics: ``store_full`` within the limit of a node's store,
            ``disk_full``, or ``storage``.
    """

    reason: str = "storage"


class NoLeaderError(NameServiceError):
    """
    There was no leader, or none was known.

    Attributes:
        component_id: Whose leader was looked for.
        waited_seconds: How long we waited.
    """

    def __init__(self, component_id: str, waited_seconds: float) -> None:
        super().__init__(component_id, waited_seconds)
        self.component_id = component_id
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        sentence = f"{self.component_id!r} has no leader"
        if not self.waited_seconds:
            return sentence
        return f"{sentence} (waited {self.waited_seconds:.3g} s)"
