"""Verbs that move key groups between nodes: rescale, drain."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Final, TypeVar, final

from lodestar.arguments import (
    add_json_option,
    job_id,
    positive_count,
    positive_seconds,
)
from lodestar.exit_codes import ExitCode, exit_code_of
from lodestar.output import printable, write, write_answer
from lodestar.progress import move_report
from lodestar.state_access import add_state_options, open_operations
from lodestar.state_moves import (
    drain_document,
    drain_sentence,
    figures_document,
    rescaling_document,
    rescaling_sentence,
    rescalings_text,
    shortage_sentences,
    standstill_sentence,
)
from lodestar.streams import discard
from nameservice import (
    NS_PER_SECOND,
    ConfigurationError,
    NameServiceError,
    SystemClock,
)
from queryablestate import DeadlineExceededError


if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from lodestar.progress import MoveReport
    from lodestar.verbs import Verbs
    from queryablestate.operations.move_progress import MoveFigures
    from queryablestate.operations.rescaling_information import (
        DrainInformation,
        RescalingInformation,
    )
    from queryablestate.operations.state_operations import StateOperations


__all__ = ["add_verbs"]

T = TypeVar("T")

_STANDSTILL_NS: Final = 3 * NS_PER_SECOND


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "rescale",
        _rescale,
        operands="[JOB]",
        description="Set how many of the registered nodes JOB uses (--nodes), and how "
        "many copies it keeps of each key group (--replicas). Wait until the move is "
        "done. Queries and readers go on meanwhile. Ctrl-C ends the "
        "waiting, not the move. --status tells how far JOB is, or every job.",
        examples="lodestar rescale flights --nodes 4\n"
        "lodestar rescale flights --nodes 3 --replicas 2 --no-wait\n"
        "lodestar rescale --status flights",
    )
    parser.add_argument("job", metavar="JOB", type=job_id, nargs="?", help="the job id")
    parser.add_argument(
        "--nodes", metavar="N", type=positive_count, help="how many nodes"
    )
    parser.add_argument(
        "--replicas",
        metavar="R",
        type=positive_count,
        help="how many copies of each key group, each on another node",
    )
    parser.add_argument(
        "--status", action="store_true", help="change nothing, tell how far it is"
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="with --status, go on telling until nothing is to be done",
    )
    _add_wait_options(parser)
    add_json_option(
        parser, "a JSON object per line while waiting; one array with --status"
    )
    add_state_options(parser)

    parser = verbs.add_verb(
        "drain",
        _drain,
        operands="NODE",
        description="Move all key groups of NODE to other nodes, give it no more, and "
        "wait until it is empty. Then it can be stopped without loss. A node that is "
        "away is given up: what only it has stays unavailable until it is back. Ctrl-C "
        "ends the waiting, not the move. --undo has NODE take part again; so does "
        "starting it anew.",
        examples="lodestar drain node-1 --timeout 600",
    )
    parser.add_argument("node", metavar="NODE", help="the node's name")
    parser.add_argument(
        "--undo", action="store_true", help="let it take part again instead"
    )
    _add_wait_options(parser)
    add_json_option(parser, "a JSON object per line while waiting")
    add_state_options(parser)


def _add_wait_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-wait", action="store_true", help="only start the move; do not wait for it"
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_seconds,
        help="how long to wait; the move goes on (default: as long as it takes)",
    )


# -- rescale ---------------------------------------------------------------------------


def _rescale(arguments: Namespace) -> ExitCode:
    _check_rescale(arguments)
    job: str | None = arguments.job
    with open_operations(arguments) as operations:
        since: RescalingInformation | None = None
        if not arguments.status:
            assert job is not None
            since = operations.rescale(
                job, node_count=arguments.nodes, replica_count=arguments.replicas
            )
            if arguments.no_wait:
                _write_rescaling(since, is_json=arguments.json)
                return ExitCode.DONE
        elif not arguments.watch:
            found = operations.rescalings(job)
            write_answer(
                [rescaling_document(each) for each in found],
                rescalings_text(found, has_bars=sys.stdout.isatty()),
                is_json=arguments.json,
            )
            return ExitCode.DONE
        return _wait_until_rescaled(operations, arguments, since)


def _check_rescale(arguments: Namespace) -> None:
    is_change = arguments.nodes is not None or arguments.replicas is not None
    if arguments.status:
        if is_change or arguments.no_wait:
            message = "--status changes nothing: leave the other options out"
            raise ConfigurationError(message)
        return
    if arguments.watch:
        message = "--watch is for --status; without it, rescale waits anyway"
        raise ConfigurationError(message)
    if arguments.job is None:
        message = "JOB is wanted, or --status for all jobs"
        raise ConfigurationError(message)
    if not is_change:
        message = "say how many --nodes or --replicas, or --status"
        raise ConfigurationError(message)


def _wait_until_rescaled(
    operations: StateOperations,
    arguments: Namespace,
    since: RescalingInformation | None,
) -> ExitCode:
    job: str | None = arguments.job
    report = move_report(sys.stdout, is_json=arguments.json)
    standstill = _Standstill(operations)

    def show(found: Sequence[RescalingInformation], figures: MoveFigures) -> None:
        documents = {each.job_id: rescaling_document(each) for each in found}
        if job is not None:
            documents[job] |= figures_document(figures)
        title = "all jobs" if job is None else job
        report.show(title, figures, documents, sentence=standstill.sentence(found))

    ended = _waited(
        arguments,
        report,
        lambda: operations.wait_until_rescaled(
            job, timeout_seconds=arguments.timeout, since=since, on_progress=show
        ),
        status="rescale --status" + ("" if job is None else f" {job}"),
    )
    if isinstance(ended, ExitCode):
        return ended
    for each in ended:
        if not arguments.json:
            write(rescaling_sentence(each))
        _tell_shortage(each)
    # Fewer nodes are made up for when others start; that copies are missing is a risk.
    is_short = since is not None and any(each.missing_count for each in ended)
    return ExitCode.FAILED if is_short else ExitCode.DONE


@final
class _Standstill:
    """
    Finds out what a move waits for.

    Args:
        operations: Tells which nodes there are.
    """

    def __init__(self, operations: StateOperations) -> None:
        self._operations = operations
        self._clock = SystemClock()
        self._found: Sequence[RescalingInformation] = ()
        self._since_ns = 0
        self._sentence: str | None = None

    def sentence(self, found: Sequence[RescalingInformation]) -> str | None:
        """Return what to say instead of how far it is, once nothing has changed."""
        now_ns = self._clock.now_ns()
        if _progress(found) != _progress(self._found):
            self._since_ns, self._sentence = now_ns, None
        elif now_ns - self._since_ns >= _STANDSTILL_NS:
            self._since_ns = now_ns
            try:
                nodes = self._operations.nodes()
            except NameServiceError:
                return self._sentence  # asked again; who waits is told if it persists
            self._sentence = standstill_sentence(found, nodes)
        self._found = found
        return self._sentence


def _progress(found: Sequence[RescalingInformation]) -> list[tuple[object, ...]]:
    return [
        (each.job_id, each.left_count, each.surplus_count, each.moves) for each in found
    ]


def _write_rescaling(rescaling: RescalingInformation, *, is_json: bool) -> None:
    write_answer(
        rescaling_document(rescaling),
        rescaling_sentence(rescaling),
        is_json=is_json,
    )
    _tell_shortage(rescaling)


def _tell_shortage(rescaling: RescalingInformation) -> None:
    for sentence in shortage_sentences(rescaling):
        print(f"lodestar rescale: {sentence}", file=sys.stderr)


# -- drain -----------------------------------------------------------------------------


def _drain(arguments: Namespace) -> ExitCode:
    node: str = arguments.node
    with open_operations(arguments) as operations:
        begun = operations.drain(node, undo=arguments.undo)
        if arguments.undo or arguments.no_wait:
            write_answer(
                drain_document(begun),
                drain_sentence(begun),
                is_json=arguments.json,
            )
            return ExitCode.DONE
        report = move_report(sys.stdout, is_json=arguments.json)

        def show(drain: DrainInformation, figures: MoveFigures) -> None:
            document = drain_document(drain) | figures_document(figures)
            is_waiting = drain.is_needed and not drain.left_count
            sentence = drain_sentence(drain) if is_waiting else None
            report.show(node, figures, {node: document}, sentence=sentence)

        ended = _waited(
            arguments,
            report,
            lambda: operations.wait_until_drained(
                node, timeout_seconds=arguments.timeout, on_progress=show
            ),
            status="nodes",
        )
    if isinstance(ended, ExitCode):
        return ended
    if not arguments.json:
        write(drain_sentence(ended))
    return ExitCode.DONE


# -- both ------------------------------------------------------------------------------


def _waited(
    arguments: Namespace, report: MoveReport, wait: Callable[[], T], *, status: str
) -> T | ExitCode:
    """
    Return what *wait* returns, or an exit code if it gave up before the end.

    Args:
        arguments: Of the verb.
        report: What shows how far it is.
        wait: Waits.
        status: The verb that tells how far it is then.
    """
    goes_on = f"the move goes on: 'lodestar {printable(status)}' tells how far it is"
    try:
        return wait()
    except KeyboardInterrupt:
        sentence = f"interrupted, {goes_on}"
        code = ExitCode.FAILED
    except DeadlineExceededError as error:
        sentence = f"not done within {error.waited_seconds:g} s"
        if error.detail:
            sentence += f", {printable(error.detail)}"
        sentence += f"; {goes_on}"
        code = exit_code_of(error)
    except BrokenPipeError:
        # It was cut off, and a script must not take that for the end of the move.
        discard(sys.stdout)
        sentence = f"nothing reads what this writes any more, {goes_on}"
        code = ExitCode.FAILED
    finally:
        report.end()
    print(f"lodestar {arguments.verb}: {sentence}", file=sys.stderr)
    return code
