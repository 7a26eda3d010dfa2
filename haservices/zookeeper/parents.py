"""`Parents`: the nodes above ours, created once."""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, final

from haservices.zookeeper.nodes import NodeExistsError
from haservices.zookeeper.paths import ancestors_of
from nameservice import AuthenticationError


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from haservices.zookeeper.connection import ZooKeeperConnection


__all__ = ["Parents"]

_KNOWN_COUNT_MAX: Final = 10_000


@final
class Parents:
    """
    Which parent nodes are known to be there.  For the event loop alone.

    Args:
        connection: Returns the present connection.
    """

    def __init__(self, connection: Callable[[], ZooKeeperConnection]) -> None:
        self._connection = connection
        self._known: OrderedDict[str, None] = OrderedDict()

    def create(self, path: str) -> Future[None]:
        """
        Create the node at *path*, and all above it, where they may be missing.

        They are asked for all at once.  What was created, or was there, before is not
        asked for again until `forget`.
        """
        done: Future[None] = Future()
        if path in self._known:
            done.set_result(None)
            return done
        created = [self._connection().create(node) for node in ancestors_of(path)]
        created[-1].add_done_callback(lambda _: self._created(path, created, done))
        return done

    def _created(
        self, path: str, created: Sequence[Future[None]], done: Future[None]
    ) -> None:
        # Answers come in order: with the last one, all of them are there.  Where the
        # session is closed amid this, the last one has failed before it was asked, and
        # those before it have no answer yet.
        errors = [future.exception() for future in created if future.done()]
        error = errors[-1]
        if error is None or isinstance(error, NodeExistsError):
            self._known[path] = None
            while len(self._known) > _KNOWN_COUNT_MAX:
                self._known.popitem(last=False)
            done.set_result(None)
        else:
            # Where one above was refused, that is why this one failed.
            refused = (one for one in errors if isinstance(one, AuthenticationError))
            done.set_exception(next(refused, error))

    def forget(self, path: str) -> None:
        """Take the node at *path* for missing."""
        self._known.pop(path, None)
