from __future__ import annotations

import pytest

from lodestar.exit_codes import ExitCode, exit_code_of
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    MayHaveHappenedError,
    NoLeaderError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
    VersionMismatchError,
    WrongServiceError,
)
from queryablestate import (
    AccessDeniedError,
    DeadlineExceededError,
    KeyTooLargeError,
    RateLimitedError,
    StateUnavailableError,
    UnknownJobError,
    UnknownKeyError,
    UnknownStateError,
    WrongKeyTypeError,
)


class TestExitCodes:
    def test_the_numbers_are_the_contract(self) -> None:
        """Scripts rely on the numbers of rule N5."""
        assert {code.name: code.value for code in ExitCode} == {
            "DONE": 0,
            "FAILED": 1,
            "BAD_USAGE": 2,
            "NOT_FOUND": 3,
            "NOT_ALLOWED": 4,
            "NOT_REACHABLE": 5,
        }

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (ConfigurationError("no url"), 2),
            (WrongServiceError("leaderserver://h:1", "HTTP", "a LeaderServer"), 2),
            (NoLeaderError("flights", 1.0), 3),
            (UnknownSessionError("s-1"), 3),
            (UnknownContenderError("flights", "x"), 3),
            (AuthenticationError("leaderserver://h:1", "not admin"), 4),
            (UnreachableError("leaderserver://h:1", 5.0), 5),
            (UnknownJobError("job"), 3),
            (UnknownStateError("job", "state"), 3),
            (UnknownKeyError("job", "state", 1), 3),
            (WrongKeyTypeError("k int", "x", "k takes an int"), 2),
            (KeyTooLargeError(500, 480), 2),
            (AccessDeniedError("read job/state"), 4),
            (DeadlineExceededError(5.0), 5),
            (StateUnavailableError("job", "state", (1,), 0.5), 5),
            (RateLimitedError(0.5, "caller"), 1),
            (DidNotHappenError("undecided"), 1),
            (MayHaveHappenedError("no answer"), 1),
            (VersionMismatchError("a", 1, 2), 1),
            (OSError("disk full"), 1),
        ],
    )
    def test_every_error_has_its_code(self, error: Exception, code: int) -> None:
        """What ended a verb shows in the exit code (N5)."""
        assert exit_code_of(error) == code
