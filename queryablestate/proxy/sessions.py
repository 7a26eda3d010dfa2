"""
The sessions of a proxy: who speaks, once they have shown a credential; pure.

A session is a secret that `Welcome` carries and every request repeats.  It is bound to
the CURVE key that it was opened with, if there is one, and to nothing else: a client
that reconnects goes on with it.

Their number is limited.  When they are all taken, a caller that has more than its
share makes room for its own new one, else the one that has been silent for longest: one
caller that opens sessions without end drives out itself, and not the others.  One that
was driven out is told so, and says `Hello` again.  So is one whose caller is on the
access list no more, or has another credential there.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from attrs import evolve, field, frozen


if TYPE_CHECKING:
    from collections.abc import Callable

    from queryablestate.proxy.access import Caller


__all__ = ["SESSION_SIZE_BYTES", "ProxySession", "SessionTable"]

SESSION_SIZE_BYTES: Final = 16


@final
@frozen(kw_only=True)
class ProxySession:
    """
    Who speaks.

    Attributes:
        caller: As authenticated when the session was opened.
        public_key: The CURVE key of the connection, or None without CURVE.
        greeting: The connection and the number of the `Hello` that opens it, which may
            come again; None if it cannot.
        number: How many were opened before it.
    """

    caller: Caller
    public_key: str | None
    greeting: tuple[int, int] | None = field(default=None, eq=False)
    number: int = field(default=0, eq=False)


@final
class SessionTable:
    """Open sessions by secret; see the module docstring for who makes room."""

    def __init__(self, count_max: int) -> None:
        assert count_max >= 1
        self._count_max = count_max
        self._opened_count = 0
        # Both in the order of their last use.
        self._sessions: OrderedDict[bytes, ProxySession] = OrderedDict()
        self._of_caller: dict[str, OrderedDict[bytes, None]] = {}
        self._of_greeting: dict[tuple[int, int], bytes] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, secret: bytes, session: ProxySession) -> bytes:
        """
        Open a session under *secret*, which was drawn at random.

        Returns:
            The secret of the session: another one if it is open already, since its
            greeting was repeated.  A second one could drive out the first.
        """
        greeting = session.greeting
        if greeting is not None:
            known = self._of_greeting.get(greeting)
            if known is not None and self._sessions[known] == session:
                return known
            self._of_greeting[greeting] = secret
        name = session.caller.name
        if len(self._sessions) >= self._count_max:
            own = self._of_caller.get(name, OrderedDict())
            caller_count = len(self._of_caller) + (name not in self._of_caller)
            if len(own) > self._count_max // caller_count:
                self._close(next(iter(own)))
            else:
                self._close(next(iter(self._sessions)))
        self._sessions[secret] = evolve(session, number=self._opened_count)
        self._opened_count += 1
        self._of_caller.setdefault(name, OrderedDict())[secret] = None
        return secret

    def find(self, secret: bytes, *, public_key: str | None) -> ProxySession | None:
        """
        Return the session of *secret*, or None if it has to be opened anew.

        Args:
            secret: As the request carries it.
            public_key: The CURVE key that the request came under: a secret that was
                stolen is worth nothing without the key.
        """
        session = self._sessions.get(secret)
        if session is None or session.public_key != public_key:
            return None
        self._sessions.move_to_end(secret)
        self._of_caller[session.caller.name].move_to_end(secret)
        return session

    def get(self, secret: bytes) -> ProxySession | None:
        """Return the session of *secret*, which was found before."""
        return self._sessions.get(secret)

    def keep(self, is_known: Callable[[Caller], bool]) -> None:
        """
        End the sessions of all but those who are known: they have to say `Hello` again.

        Who is no caller any more is told so then, and who has a new token shows it.
        """
        gone = [
            secret
            for secret, session in self._sessions.items()
            if not is_known(session.caller)
        ]
        for secret in gone:
            self._close(secret)

    def limit(self, count_max: int) -> None:
        """Hold at most *count_max* sessions from now on."""
        assert count_max >= 1
        self._count_max = count_max
        while len(self._sessions) > count_max:
            self._close(next(iter(self._sessions)))

    def _close(self, secret: bytes) -> None:
        session = self._sessions.pop(secret)
        if session.greeting is not None and (
            self._of_greeting.get(session.greeting) == secret
        ):
            del self._of_greeting[session.greeting]
        own = self._of_caller[session.caller.name]
        del own[secret]
        if not own:
            del self._of_caller[session.caller.name]
