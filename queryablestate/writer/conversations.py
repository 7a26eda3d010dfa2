"""
What a writer and the proxy that leads say to each other, turn by turn; pure.

A *conversation* is a generator.  It yields what is to be done, an `AskProxy` or a
`Pause`, and is sent what came of it and what time it is then, a `Heard`.  It returns
what was wanted, or raises why that cannot be had.  Its driver has the socket and the
clock: a thread in `queryablestate.writer.writer`, a time line in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar, final

import msgspec
from attrs import frozen

from nameservice import NameServiceError, RemoteProtocolError
from queryablestate.wire.clients import ClientRequest, ToClient


__all__ = ["AskProxy", "Conversation", "Heard", "Pause"]

T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=msgspec.Struct)


@final
@frozen
class AskProxy:
    """
    Ask the proxy that leads, again and again if need be, until it has answered.

    Attributes:
        build: Makes the request from its number, the secret of the session, and the
            time; called again whenever the request is sent again.
        deadline_ns: When to give up: the error is heard then.
    """

    build: Callable[[int, bytes, int], ClientRequest]
    deadline_ns: int


@final
@frozen
class Pause:
    """Do nothing until *until_ns*."""

    until_ns: int


@final
@frozen
class Heard:
    """
    What came of the last turn.

    Attributes:
        now_ns: When.
        answer: The answer, or why there is none; None after a pause.
    """

    now_ns: int
    answer: ToClient | NameServiceError | None = None

    def as_a(self, expected: type[MessageT]) -> MessageT:
        """
        Return the answer, which must be what was expected.

        Raises:
            NameServiceError: If it is an error.
            RemoteProtocolError: If it is something else.
        """
        if isinstance(self.answer, NameServiceError):
            raise self.answer
        if not isinstance(self.answer, expected):
            raise RemoteProtocolError(
                "unexpected",
                f"the proxy answered with {type(self.answer).__name__}, not "
                f"{expected.__name__}",
            )
        return self.answer


Conversation: TypeAlias = Generator[AskProxy | Pause, Heard, T]
"""Yields turns, is sent what came of them, and returns a *T*."""
