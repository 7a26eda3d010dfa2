"""
`Greeting`: how a client asks for a session, and how often (a part of `ClientCore`).

A `Hello` is sent again, unchanged, until it is answered: the server opens one session
for each nonce.  It knows a nonce by the connection that it came over, so what was not
answered when the link closes is asked for with another one.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, final

from leaderserver.client.core.events import SendMessage
from leaderserver.client.core.outbox import RETRY_DIVISOR
from leaderserver.message_parts import NONCE_SIZE_BYTES
from leaderserver.messages import Hello


if TYPE_CHECKING:
    from leaderserver.client.core.config import ClientConfig
    from leaderserver.client.core.outbox import ClientOutbox


__all__ = ["Greeting"]


@final
class Greeting:
    """
    The `Hello` of a client that has no session.

    Attributes:
        due_ns: When it is sent next.
    """

    def __init__(self, config: ClientConfig, outbox: ClientOutbox) -> None:
        self._config = config
        self._outbox = outbox
        self._nonce_count = 0
        self.begin()

    def begin(self) -> None:
        """Begin another greeting, under a nonce of its own."""
        self._nonce_count += 1
        digest = hashlib.blake2b(
            self._nonce_count.to_bytes(8, "big"),
            key=self._config.seed,
            digest_size=NONCE_SIZE_BYTES,
        )
        self._nonce = digest.digest()
        self._sent_ns: int | None = None
        self.hurry()

    def hurry(self) -> None:
        """Send it now."""
        self.due_ns = self._outbox.now_ns
        self._retry_ns = self._outbox.lease_ns

    def contending_begins(self) -> None:
        """Send it soon: somebody contends from now on."""
        greet_ns = self._outbox.now_ns + self._outbox.lease_ns // RETRY_DIVISOR
        self.due_ns = min(self.due_ns, greet_ns)

    def sent_ns(self, nonce: bytes) -> int | None:
        """Return when the greeting with *nonce* was sent first, if it is this one."""
        return self._sent_ns if nonce == self._nonce else None

    def refused(self, nonce: bytes) -> bool:
        """
        Begin another one later, if it was this one that was refused.

        Args:
            nonce: What the refusal says; empty if the server could not read it.

        Returns:
            Whether it was.
        """
        if nonce not in (self._nonce, b""):
            return False
        self.begin()
        self.due_ns += self._outbox.session_timeout_ns // 3
        return True

    def send(self, *, is_contending: bool) -> None:
        """Send it, and say when it is sent again if no answer comes."""
        now_ns = self._outbox.now_ns
        if self._sent_ns is None:
            self._sent_ns = now_ns
        config = self._config
        hello = Hello(
            nonce=self._nonce,
            session_timeout_ns=config.session_timeout_ns,
            lease_ns=config.lease_ns,
            client=config.client,
        )
        self._outbox.emit(SendMessage(message=hello))
        if is_contending:
            self.due_ns = now_ns + self._outbox.lease_ns // RETRY_DIVISOR
        else:
            # What claims nothing can wait: thousands may greet a server at once.
            self.due_ns = now_ns + self._retry_ns
            self._retry_ns = 2 * self._outbox.lease_ns
