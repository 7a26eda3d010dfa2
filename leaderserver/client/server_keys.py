"""
`ServerKeys`: which public key of the server a client expects next.

A server may change its keys while it runs.  Its clients are told the new key before,
beside the old one: the file that names the server's key may hold several.  A server
whose key is another one closes the connection in the handshake; then its client tries
the next key, and has read the file again, so that an operator changes it under clients
that go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from nameservice import ConfigurationError, get_logger


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["ServerKeys"]


@final
class ServerKeys:
    """
    The keys that a server may have, in turn.  Not thread-safe.

    Args:
        load: Returns them, at least one, in the order in which to try them; raises
            `ConfigurationError` if it cannot.

    Attributes:
        current: The one to expect, in Z85.

    Raises:
        ConfigurationError: What *load* raises.
    """

    def __init__(self, load: Callable[[], Sequence[str]]) -> None:
        self._load = load
        self._keys = tuple(load())
        self._failed: set[str] = set()
        self._is_unreadable = False
        self._log = get_logger(component="leaderserver-client")
        self.current = self._keys[0]

    def proved(self) -> None:
        """Record that the server has proved to hold *current*."""
        self._failed.clear()

    def failed(self) -> bool:
        """
        Record that a handshake with *current* came to nothing, and choose the next.

        Returns:
            Whether to try it at once: it is another one, not tried since the last
            success or since all were tried.  Otherwise the usual pause is due.
        """
        self._read()
        self._failed.add(self.current)
        before = self.current
        untried = [key for key in self._keys if key not in self._failed]
        if untried:
            self.current = untried[0]
        else:
            self.current = self._keys[0]
            self._failed.clear()
        return bool(untried) and self.current != before

    def _read(self) -> None:
        try:
            keys = tuple(self._load())
        except ConfigurationError as error:
            if not self._is_unreadable:
                self._is_unreadable = True
                self._log.warning("server_keys.unreadable", error=str(error))
            return
        self._is_unreadable = False
        if keys != self._keys:
            self._keys = keys
            self._log.info("server_keys.read", key_count=len(keys))
