"""``lodestar VERB …``: parse, run the verb, and tell in one line how it went wrong."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Final, final

from lodestar import (
    elect,
    keygen,
    observe,
    operate,
    operator_state,
    server,
    state_node,
    state_operate,
    state_proxy,
    state_reads,
    state_rescale,
    state_snapshot,
)
from lodestar.arguments import ArgumentParser
from lodestar.exit_codes import ExitCode, exit_code_of
from lodestar.output import printable
from nameservice import NameServiceError, NoLeaderError, configure_logging


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = ["main", "make_parser"]

# In the order in which help lists their verbs.
_MODULES: Final = (
    server,
    observe,
    operate,
    elect,
    state_proxy,
    state_node,
    state_reads,
    operator_state,
    state_operate,
    state_rescale,
    state_snapshot,
    keygen,
)

_HELP_WIDTH: Final = 79

# Wide enough that most options stand on one line with their help.
_HELP_FORMATTER: Final = functools.partial(
    argparse.RawDescriptionHelpFormatter, max_help_position=30
)

_EXIT_CODES: Final = """\
exit codes:
  0 done   1 failed   2 bad usage   3 not found (no leader, no such job, state, key …)
  4 not allowed   5 not reachable in time
"""

_EPILOG: Final = f"""\
{_EXIT_CODES}
Verbs that talk to a name service take --url URL, or LODESTAR_URL from the environment,
or url from a configuration file (--config FILE, LODESTAR_CONFIG, ./lodestar.toml).

example:
  lodestar server --bind tcp://127.0.0.1:5170 &
  export LODESTAR_URL=leaderserver://127.0.0.1:5170
  lodestar elect flights 127.0.0.1:8000 -- python3 -m http.server 8000 &
  lodestar leader flights --wait 5
"""


@final
class _Verbs:
    """Enters verbs into a parser, all in one form."""

    def __init__(self, subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
        self._subparsers = subparsers

    def add_verb(
        self,
        name: str,
        run: Callable[[argparse.Namespace], ExitCode | int],
        *,
        operands: str = "",
        summary: str,
        description: str,
        examples: str,
    ) -> argparse.ArgumentParser:
        """Return the parser of a new verb that *run* carries out."""
        lines = "\n".join(f"  {line}" for line in examples.splitlines())
        parser = self._subparsers.add_parser(
            name,
            usage=f"%(prog)s [OPTION]... {operands}".rstrip(),
            help=summary,
            description=textwrap.fill(description, _HELP_WIDTH),
            epilog=f"example:\n{lines}\n\n{_EXIT_CODES}",
            formatter_class=_HELP_FORMATTER,
            allow_abbrev=False,
        )
        parser.set_defaults(run=run)
        return parser


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = ArgumentParser(
        prog="lodestar",
        description="Ask, operate and use the name service that knows who leads.",
        epilog=_EPILOG,
        formatter_class=_HELP_FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"lodestar {_version()}"
    )
    verbs = _Verbs(
        parser.add_subparsers(title="verbs", metavar="VERB", dest="verb", required=True)
    )
    for module in _MODULES:
        module.add_verbs(verbs)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run one verb.

    Args:
        arguments: Without the program's name; None takes ``sys.argv``.

    Returns:
        An `ExitCode`, or from ``elect`` the exit code of its command.
    """
    for stream in (sys.stdout, sys.stderr):
        # Whatever the locale, an answer must not fail over a letter in it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if arguments is None:
        arguments = sys.argv[1:]
    command: list[str] = []
    if arguments[:1] == ["elect"]:
        arguments, command = elect.split_command(arguments)
    try:
        parsed = make_parser().parse_args(
            arguments, argparse.Namespace(command=command)
        )
    except SystemExit as exit_:
        # argparse has said what there was to say: help, the version, or bad usage.
        return exit_.code if isinstance(exit_.code, int) else ExitCode.FAILED
    configure_logging(parsed.log_level)
    try:
        code: int = parsed.run(parsed)
    except BrokenPipeError:
        # Nobody reads on (`lodestar leaders | head -1`).  What Python still holds for
        # standard output goes nowhere, rather than failing once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except KeyboardInterrupt:
        _complain(parsed.verb, "interrupted")
        return ExitCode.FAILED
    except (NameServiceError, OSError) as error:
        _complain(parsed.verb, _sentence(error))
        return exit_code_of(error)
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, NoLeaderError) and not error.waited_seconds:
        return f"nobody leads {error.component_id!r}"
    return str(error)


def _complain(verb: str, sentence: str) -> None:
    print(f"lodestar {verb}: {printable(sentence)}", file=sys.stderr)


def _version() -> str:
    try:
        return importlib.metadata.version("lodestar")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
