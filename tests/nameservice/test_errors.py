from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from nameservice import errors
from nameservice.errors import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    EpochAheadError,
    ForkedClientError,
    LeadershipLostError,
    LocalProtocolError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    ProtocolError,
    RemoteProtocolError,
    SessionExpiredError,
    SeveralServersError,
    StaleEpochError,
    StorageError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
    VersionMismatchError,
    WrongServiceError,
)


if TYPE_CHECKING:
    from collections.abc import Iterator


EXAMPLES = [
    (ConfigurationError("lower it"), "lower it"),
    (LocalProtocolError("once only"), "once only"),
    (RemoteProtocolError("oversized", "9 bytes"), "9 bytes (oversized)"),
    (
        WrongServiceError("leaderserver://h:80", "h:80 is an HTTP server", "a server"),
        "leaderserver://h:80: h:80 is an HTTP server, not a server: correct the URL",
    ),
    (
        UnreachableError("tcp://h:1", 1.5),
        "tcp://h:1 did not answer within 1.5 s",
    ),
    (
        UnreachableError("tcp://h:1", 1.5, "connection refused"),
        "tcp://h:1 did not answer within 1.5 s: connection refused",
    ),
    (AuthenticationError("tcp://h:1", "no key"), "tcp://h:1 refused access: no key"),
    (
        ForkedClientError(),
        (
            "this service was opened by the parent process; sockets and sessions "
            "do not survive fork(): open services anew in the child"
        ),
    ),
    (DidNotHappenError("undecided"), "undecided"),
    (
        VersionMismatchError("a", 0, 3),
        "'a' is at version 3, not at version 0: read it again and decide anew",
    ),
    (
        VersionMismatchError("a", 2, None),
        "'a' is at another version, not at version 2: read it again and decide anew",
    ),
    (UnknownSessionError("s1"), "there is no session 's1'"),
    (UnknownContenderError("flights", "x"), "'flights' has no contender 'x'"),
    (
        EpochAheadError("flights", 9, 7),
        (
            "epoch 9 of 'flights' was seen, epoch 7 is there: the clock of the server "
            "was set back; give it a data directory, or its former time"
        ),
    ),
    (
        SeveralServersError("leaderserver://h:1", "x y"),
        (
            "more than one LeaderServer answers at leaderserver://h:1: x y; leaders of "
            "the one are unknown to the other: stop all but one"
        ),
    ),
    (MayHaveHappenedError("no answer"), "no answer"),
    (SessionExpiredError("gone"), "gone"),
    (LeadershipLostError("job", 7), "the leadership of epoch 7 of 'job' is over"),
    (LeadershipLostError("job", None), "the leadership of 'job' is over"),
    (
        StaleEpochError("job", 7, 9),
        "epoch 7 does not lead 'job' now; the newest is 9: nothing was written",
    ),
    (
        StaleEpochError("job", 7, None),
        "epoch 7 does not lead 'job' now: nothing was written",
    ),
    (StorageError("disk full"), "disk full"),
    (NoLeaderError("job", 2.0), "'job' has no leader (waited 2 s)"),
]


def classes() -> dict[str, type[Exception]]:
    """Return every exception that nameservice/errors.py makes, by its name."""
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, Exception)
        and value.__module__ == errors.__name__
    }


def drawn_edges() -> Iterator[tuple[str, str]]:
    """Yield (parent, child) for each class in the module docstring's drawing."""
    assert errors.__doc__ is not None
    path: list[str] = []
    for line in errors.__doc__.splitlines():
        text = line.removeprefix("    ")
        name = text.lstrip("│├└─ ").split(" ")[0]
        if not name.endswith("Error") or name not in classes():
            continue
        depth = (len(text) - len(text.lstrip("│├└─ "))) // 4
        path[depth:] = [name]
        if depth:
            yield path[depth - 1], name


class TestTree:
    @pytest.mark.proves("L4")
    def test_drawing_is_the_tree(self) -> None:
        """L4: the tree drawn in nameservice/errors.py is the tree of the classes."""
        actual = {
            (cls.__mro__[1].__name__, name)
            for name, cls in classes().items()
            if cls is not NameServiceError
        }
        assert set(drawn_edges()) == actual

    @pytest.mark.proves("L4")
    def test_every_error_is_under_the_one_root(self) -> None:
        """L4: a caller that catches NameServiceError misses none; all end in Error."""
        assert all(issubclass(cls, NameServiceError) for cls in classes().values())
        assert all(name.endswith("Error") for name in classes())
        assert sorted(classes()) == sorted(errors.__all__)

    @pytest.mark.proves("L4")
    def test_configuration_error_is_a_value_error(self) -> None:
        """L4: a bad setting is also what Python calls a bad value."""
        assert issubclass(ConfigurationError, ValueError)

    @pytest.mark.proves("L4")
    def test_pairs_that_must_be_told_apart_are_not_related(self) -> None:
        """L4: "did not" / "may have happened", "unreachable" / "refused" differ."""
        for one, other in (
            (DidNotHappenError, MayHaveHappenedError),
            (UnreachableError, AuthenticationError),
            (LocalProtocolError, RemoteProtocolError),
        ):
            assert not issubclass(one, other)
            assert not issubclass(other, one)

    def test_example_of_every_error(self) -> None:
        """The examples below leave out none but the two that are never raised."""
        assert {type(error) for error, _ in EXAMPLES} | {
            NameServiceError,
            ProtocolError,
        } == set(classes().values())


@pytest.mark.proves("L4")
class TestSentences:
    @pytest.mark.parametrize(("error", "sentence"), EXAMPLES)
    def test_sentence_is_built_from_the_data(
        self, error: NameServiceError, sentence: str
    ) -> None:
        """L4: what a person reads names what happened, and to whom."""
        assert str(error) == sentence

    @pytest.mark.parametrize(("error", "sentence"), EXAMPLES)
    def test_error_survives_pickling(
        self, error: NameServiceError, sentence: str
    ) -> None:
        """L4: an error raised in a Spark task comes back with its data and sentence."""
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)
        assert str(copy) == sentence
