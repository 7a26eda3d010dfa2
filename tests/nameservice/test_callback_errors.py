"""What a callback raises is told, and ends no thread of ours."""

from __future__ import annotations

import sys

import pytest

from nameservice import LocalProtocolError
from nameservice.callback_errors import call_back


def test_what_raises_nothing_tells_nothing() -> None:
    """It is called, once."""
    told: list[Exception] = []
    called: list[None] = []
    call_back(lambda: called.append(None), told.append, what="a callback")
    assert called == [None]
    assert told == []


def test_its_error_is_told_as_it_is() -> None:
    """The very object."""
    told: list[Exception] = []
    error = KeyError("k")

    def fail() -> None:
        raise error

    call_back(fail, told.append, what="a callback")
    assert told == [error]


@pytest.mark.parametrize("exit_request", [SystemExit(3), KeyboardInterrupt()])
def test_what_asks_to_exit_is_told_as_an_error_with_its_cause(
    exit_request: BaseException,
) -> None:
    """A thread that ended would leave all others without callbacks."""
    told: list[Exception] = []

    def leave() -> None:
        if isinstance(exit_request, SystemExit):
            sys.exit(exit_request.code)
        raise exit_request

    call_back(leave, told.append, what="the listener")
    (error,) = told
    assert isinstance(error, LocalProtocolError)
    assert str(error).startswith("the listener raised ")
    assert type(error.__cause__) is type(exit_request)
