"""
Errors of ours on their way through Spark, and back: `lodestar_error`.

Theory of operation.  Spark runs our code in processes of its own, and in callbacks of
its JVM.  What an exception is to either is text: the traceback.  So an error that
leaves our code there (`through_spark`) takes its type and its data along in a note,
which stands behind its sentence in every traceback (PEP 678).  `lodestar_error` looks
for the note in whatever Spark raises, and makes the error anew.  The note holds
JSON and the name of a class of our tree: text that somebody else has written can at
most make another error of ours.

A query that was started by our own writer (`StateStreamWriter`) does that by itself.
Its driver does so between the tasks and the query, too: the traceback of a task, and
that of the JVM, are then no part of what the query fails with.
"""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast, final

import msgspec
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import queryablestate.errors  # noqa: F401 (so that its errors are in the tree)
import rescaling.errors  # noqa: F401 (likewise)
from nameservice import NameServiceError
from sparkpipeline.batch_guard import guarded


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from sparkpipeline.batch_guard import BatchFunction


__all__ = ["StateStreamWriter", "lodestar_error", "through_spark"]

P = ParamSpec("P")
T = TypeVar("T")

_MARK: Final = "lodestar-error: "
_NOTE: Final = re.compile(re.escape(_MARK) + r"(\{.*\})")


@final
class _Told(msgspec.Struct, frozen=True):
    """An error as it travels: what its class is called, and what to make it from."""

    type: str
    args: list[Any]
    keywords: dict[str, Any] = {}


def lodestar_error(error: BaseException | None) -> NameServiceError | None:
    """
    Return the error of ours that *error* of Spark tells of, or None if there is none.

    It has the type and the attributes that it had where it was raised, be that in the
    driver, in a task, or in a process of a data source.  For
    ``pyspark.errors.StreamingQueryException`` and whatever else Spark raises because of
    it: of a query over ``format("lodestar")``, of a batch job, of
    ``spark.streams.awaitAnyTermination()``, or of ``query.exception()``, which may be
    None.  ``awaitTermination`` of a query that `publish_state`, `publish_states` or
    `run_operator` made raises the typed error by itself.
    """
    if error is None or isinstance(error, NameServiceError):
        return error
    notes = _NOTE.findall(str(error))
    if not notes:
        return None
    try:
        # The last one: a traceback tells of causes first.
        told = msgspec.json.decode(notes[-1], type=_Told)
        # JSON knows no tuples, and no error of ours is made from a list.
        args = [tuple(one) if isinstance(one, list) else one for one in told.args]
        return _error_types()[told.type](*args, **told.keywords)
    except (msgspec.DecodeError, KeyError, TypeError):  # of another version
        return None


def through_spark(function: Callable[P, T]) -> Callable[P, T]:
    """
    Return *function*, a generator's maybe, so that Spark can tell its errors of ours.

    Spark's own, if they tell of an error of ours in a task, become that error.
    """
    if inspect.isgeneratorfunction(function):
        generate = cast("Callable[P, Iterator[Any]]", function)

        @functools.wraps(function)
        def generated(*args: P.args, **kwargs: P.kwargs) -> Iterator[Any]:
            try:
                yield from generate(*args, **kwargs)
            except Exception as error:
                _raise_noted(error)
                raise

        return cast("Callable[P, T]", generated)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _raise_noted(error)
            raise

    return called


@final
class StateStreamWriter(DataStreamWriter):
    """
    A ``DataStreamWriter`` whose query fails with errors of ours as they are.

    Args:
        df: What is written.
        begin: Called for each start, which is a run of its own; returns what Spark is
            to call for the batches of that run.
    """

    def __init__(self, df: DataFrame, begin: Callable[[], BatchFunction]) -> None:
        super().__init__(df)
        self._begin = begin

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Start the query, as ``DataStreamWriter.start`` does."""
        self.foreachBatch(guarded(self._begin()))
        query = super().start(*args, **kwargs)
        return _StateQuery(query._jsq)  # noqa: SLF001 (as Spark's own writer makes one)


@final
class _StateQuery(StreamingQuery):
    def awaitTermination(  # noqa: N802 (Spark's interface)
        self, timeout: int | None = None
    ) -> bool | None:
        return _typed(super().awaitTermination, timeout)

    def processAllAvailable(self) -> None:  # noqa: N802 (Spark's interface)
        _typed(super().processAllAvailable)


def _typed(wait: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what *wait* does, or raise what the query has failed with."""
    try:
        return wait(*args, **kwargs)
    except StreamingQueryException as failure:
        error = lodestar_error(failure)
        if error is None:
            raise
        # Without Spark's dozens of lines; who wants them finds them as its context.
        raise error from None


def _raise_noted(error: Exception) -> None:
    """Raise what *error* tells of with a note that tells of it; return if nothing."""
    ours = lodestar_error(error)
    if ours is None:
        return
    # What pickle would call with what, and nothing but that.
    make, args = cast("tuple[Any, tuple[Any, ...]]", ours.__reduce__()[:2])
    told = _Told(
        type=type(ours).__name__,
        args=list(args),
        keywords=dict(getattr(make, "keywords", {})),
    )
    ours.add_note(_MARK + msgspec.json.encode(told, enc_hook=repr).decode())
    if ours is not error:
        raise ours from None


def _error_types() -> dict[str, type[NameServiceError]]:
    """Return every error of ours by its name."""
    found: dict[str, type[NameServiceError]] = {}
    left: list[type[NameServiceError]] = [NameServiceError]
    while left:
        error_type = left.pop()
        found[error_type.__name__] = error_type
        left += error_type.__subclasses__()
    return found
