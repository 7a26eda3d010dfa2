"""kazoo's exceptions in our words: one table, at the border (rule L4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import kazoo.exceptions
from kazoo.handlers.threading import KazooTimeoutError

from haservices.zookeeper.nodes import (
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
)
from nameservice import (
    AuthenticationError,
    DidNotHappenError,
    MayHaveHappenedError,
    RemoteProtocolError,
    SessionExpiredError,
)


if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["BYSTANDERS", "translate"]

BYSTANDERS: Final = (
    kazoo.exceptions.RolledBackError,
    kazoo.exceptions.RuntimeInconsistency,
)
"""What the operations of a failed transaction are told that did not fail themselves."""

_TRANSLATIONS: Final[
    tuple[tuple[type[Exception], Callable[[str, Exception], Exception]], ...]
] = (
    (kazoo.exceptions.NoNodeError, lambda _, __: NodeMissingError("no such node")),
    (kazoo.exceptions.NodeExistsError, lambda _, __: NodeExistsError("node exists")),
    (kazoo.exceptions.BadVersionError, lambda _, __: NodeVersionError("other version")),
    (kazoo.exceptions.NotEmptyError, lambda _, __: NodeNotEmptyError("has children")),
    (
        kazoo.exceptions.ConnectionClosedError,
        lambda target, _: DidNotHappenError(f"the session with {target} is closed"),
    ),
    (
        kazoo.exceptions.SessionExpiredError,
        lambda target, _: SessionExpiredError(f"{target} has ended the session"),
    ),
    (
        kazoo.exceptions.AuthFailedError,
        lambda target, _: AuthenticationError(target, "the credentials are not valid"),
    ),
    (
        kazoo.exceptions.NoAuthError,
        lambda target, _: AuthenticationError(
            target, "the node's access list does not admit us"
        ),
    ),
    (
        kazoo.exceptions.InvalidACLError,
        lambda target, _: AuthenticationError(
            target, "the credentials are of no scheme that it knows"
        ),
    ),
    (
        kazoo.exceptions.ConnectionLoss,
        lambda target, _: MayHaveHappenedError(
            f"the connection to {target} was lost before the answer came"
        ),
    ),
    (
        kazoo.exceptions.OperationTimeoutError,
        lambda target, _: MayHaveHappenedError(
            f"{target} gave up waiting for a quorum"
        ),
    ),
    (
        kazoo.exceptions.SessionMovedError,
        lambda target, _: MayHaveHappenedError(
            f"the session with {target} moved to another server meanwhile"
        ),
    ),
    (
        KazooTimeoutError,
        lambda target, _: MayHaveHappenedError(f"{target} did not answer in time"),
    ),
    (
        kazoo.exceptions.KazooException,
        lambda target, error: RemoteProtocolError(
            "unexpected-answer", f"{target} answered {type(error).__name__} {error}"
        ),
    ),
)
"""Each kind of kazoo's exceptions, the special before the general, in our words."""


def translate(error: Exception, *, target: str) -> Exception:
    """
    Return what *error* is in our words, if it is one of kazoo's.

    Args:
        error: Kept as the cause; anything else than kazoo's is returned itself.
        target: Whom we were talking to.
    """
    for kind, make in _TRANSLATIONS:
        if isinstance(error, kind):
            translated = make(target, error)
            translated.__cause__ = error
            return translated
    return error
