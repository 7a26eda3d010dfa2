"""``lodestar VERB …``: parse, run the verb, and tell in one line how it went wrong."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final, final

from lodestar.streams import with_streams
from lodestar.verbs import (
    EXIT_CODES,
    HELP_FORMATTER,
    VERBS,
    ArgumentParser,
    enter,
    split_command,
    verb_problem,
)


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


__all__ = ["main", "make_parser"]

_EPILOG: Final = f"""\
{EXIT_CODES}
Verbs that talk to a name service take --url URL, or LODESTAR_URL from the environment,
or url from a configuration file (--config FILE, LODESTAR_CONFIG, ./lodestar.toml).
server, proxy, node, gateway and sql take options of their own from the environment,
too: LODESTAR_NODE_DATA_DIR stands for --data-dir of node.

example:
  lodestar server --bind tcp://127.0.0.1:5170 &
  export LODESTAR_URL=leaderserver://127.0.0.1:5170
  lodestar elect flights 127.0.0.1:8000 -- python3 -m http.server 8000 &
  lodestar leader flights --wait 5
"""


@final
class _ShowVersion(argparse.Action):
    """Prints the version, which takes time to find out, only when asked."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from nameservice.version import (  # noqa: PLC0415 (--help loads nothing)
            package_version,
        )

        print(f"lodestar {package_version()}")
        parser.exit()


def make_parser(names: Iterable[str] = tuple(VERBS)) -> argparse.ArgumentParser:
    """
    Return a parser of the command line.

    Args:
        names: The verbs that it parses; without any it can only tell which there are.
    """
    parser = ArgumentParser(
        prog="lodestar",
        description="Ask running Spark jobs for their state, find out who leads a job, "
        "and\noperate what makes that possible: a name service that knows the leaders,"
        "\nnodes that keep state, and a proxy, the one place to ask for it.",
        epilog=_EPILOG,
        formatter_class=HELP_FORMATTER,
        allow_abbrev=False,
    )
    parser.add_argument(
        "-V", "--version", action=_ShowVersion, nargs=0, help="show the version"
    )
    subparsers = parser.add_subparsers(
        title="verbs", metavar="VERB", dest="verb", required=True
    )
    enter(subparsers, names)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run one verb.

    Args:
        arguments: Without the program's name; None takes ``sys.argv``.

    Returns:
        An `ExitCode`, or from ``elect`` and ``standby`` that of its command.
    """
    given = sys.argv[1:] if arguments is None else arguments
    return with_streams(lambda: _interruptible(given))


def _interruptible(arguments: Sequence[str]) -> int:
    try:
        return _main(arguments)
    except KeyboardInterrupt:  # while something was still being loaded
        print("lodestar: interrupted", file=sys.stderr)
        return 1


def _main(arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        # Whatever the locale, an answer must not fail over a letter in it.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    command: list[str] = []
    if arguments[:1] in (["elect"], ["standby"]):
        arguments, command = split_command(arguments)
    names = [name for name in arguments[:1] if name in VERBS]
    try:
        parser = make_parser(names)
        problem = verb_problem(arguments)
        if problem is not None:
            parser.error(problem)
        parsed = parser.parse_args(arguments, argparse.Namespace(command=command))
    except SystemExit as exit_:
        # argparse has said what there was to say: help, the version, or bad usage.
        return exit_.code if isinstance(exit_.code, int) else 1
    from lodestar.running import run  # noqa: PLC0415 (help needs none of it)

    return run(parsed)


if __name__ == "__main__":
    sys.exit(main())
