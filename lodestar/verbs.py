"""
The verbs of ``lodestar``: in which module each is, and what help says of it.

A verb's module is loaded when the verb is used, so ``lodestar leader`` does not load
what ``lodestar node`` needs, and ``lodestar --help`` loads none.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import sys
import textwrap
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, final


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


__all__ = [
    "EXIT_CODES",
    "HELP_FORMATTER",
    "SERVING_VERBS",
    "VERBS",
    "ArgumentParser",
    "Verbs",
    "enter",
    "near_name",
    "split_command",
    "verb_problem",
]

_BAD_USAGE: Final = 2  # `ExitCode.BAD_USAGE`, which loads every error type
_HELP_WIDTH: Final = 79
_LIKENESS_MIN: Final = 0.7
_OPTIONS_WITHOUT_VERB: Final = frozenset({"-h", "--help", "-V", "--version"})
_NOT_FROM_ENVIRONMENT: Final = frozenset({"help", "config", "print_config"})
_KUBERNETES: Final = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)$")
"""How names end that Kubernetes sets for a service, as for one called lodestar-node."""
_NEGATIVE: Final = re.compile(r"-(\d+|\d*\.\d+)$")
_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}

SERVING_VERBS: Final = frozenset({"server", "proxy", "node", "gateway", "sql"})
"""Verbs that run a server; containers configure them by the environment."""

# Wide enough that most options stand on one line with their help.
HELP_FORMATTER: Final = functools.partial(
    argparse.RawDescriptionHelpFormatter, max_help_position=30
)

EXIT_CODES: Final = """\
exit codes:
  0 done   1 failed   2 bad usage   3 not found (no leader, no such job, state, key …)
  4 not allowed   5 not reachable in time
"""


@final
class Verb:
    """Where a verb is, and what it does in a few words."""

    __slots__ = ("module", "summary")

    def __init__(self, module: str, summary: str) -> None:
        self.module = f"lodestar.{module}"
        self.summary = summary


# In the order in which help lists them.
VERBS: Final = {
    "server": Verb("server", "run a LeaderServer"),
    "backup": Verb("backup", "back up the data directory of a LeaderServer"),
    "restore-backup": Verb("backup", "make a data directory of a backup"),
    "leaders": Verb("observe", "list every job with its leader"),
    "leader": Verb("observe", "tell who leads one job"),
    "watch": Verb("observe", "tell each change of one job's leader"),
    "watch-store": Verb(
        "watch_store", "tell each change of what one job's leaders have stored"
    ),
    "contenders": Verb("observe", "list who contends for one job, in order"),
    "sessions": Verb("operate", "list the sessions with the name service"),
    "status": Verb("operate", "print the figures of the name service"),
    "revoke": Verb("operate", "end the present leadership of one job"),
    "expire": Verb("operate", "end one session as if it had fallen silent"),
    "transfer": Verb("transfer", "hand the leadership of one job to a contender"),
    "elect": Verb("elect", "run a command only while we lead"),
    "standby": Verb("standby", "keep a driver running that leads or stands by"),
    "proxy": Verb("state_proxy", "run a proxy, the entry point to queryable state"),
    "node": Verb(
        "state_node", "run a state node, which keeps and serves queryable state"
    ),
    "gateway": Verb("gateway", "serve queryable state and leaders over HTTP"),
    "sql": Verb(
        "sql", "serve queryable state as tables to tools that speak to Postgres"
    ),
    "get": Verb("state_reads", "tell what a state holds under a key"),
    "states": Verb("state_reads", "list the states that can be asked"),
    "scan": Verb("state_reads", "list what a state holds, in the order of the keys"),
    "count": Verb("state_reads", "tell how many keys a state holds"),
    "export": Verb("state_export", "write a whole state to a file, for other tools"),
    "operator-state": Verb(
        "operator_state", "tell what the subtasks of an operator hold"
    ),
    "nodes": Verb("state_operate", "list the nodes that keep queryable state"),
    "drop-state": Verb("state_operate", "forget one state and everything in it"),
    "forget-job": Verb("state_operate", "forget one job and everything in it"),
    "forget-node": Verb("state_operate", "forget a node that is away for good"),
    "adopt": Verb(
        "state_adopt", "take over rows that nodes kept when the name service lost them"
    ),
    "rescale": Verb(
        "state_rescale",
        "give a job more or fewer nodes, or copies; tell how far that is",
    ),
    "drain": Verb("state_rescale", "move everything off a node, so that it may end"),
    "snapshot": Verb(
        "state_snapshot", "write all state of a job, as of one moment, to a directory"
    ),
    "restore": Verb(
        "state_snapshot", "make a job from a snapshot, on the nodes that are there"
    ),
    "keygen": Verb("keygen", "make a CURVE key pair, or a token"),
}


@final
class ArgumentParser(argparse.ArgumentParser):
    """Tells bad usage in one line, and where to read more."""

    is_verb = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a verb tells of what it does not know itself, so of its own help."""
        if self.is_verb and args is not None:
            self._check_spelling(args)
            args = self._options_first(args)
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown and self.is_verb:
            self.error(self._unknown_text(unknown[0]))
        return parsed, unknown

    def _options_first(self, arguments: Sequence[str]) -> list[str]:
        """
        Return *arguments* with what are no options behind those.

        argparse takes it for settled that there is no KEY once it finds an option
        behind ``get JOB STATE`` (https://github.com/python/cpython/issues/59317).
        """
        options: list[str] = []
        operands: list[str] = []
        rest = iter(arguments)
        for argument in rest:
            if argument == "--":
                operands += [argument, *rest]
            elif not argument.startswith("-") or self._is_operand(argument):
                operands.append(argument)
            else:
                options.append(argument)
                action = self._option_string_actions.get(argument)
                if action is not None and action.nargs != 0:
                    options += islice(rest, 1)
        return options + operands

    def _is_operand(self, argument: str) -> bool:
        # As argparse has it: a hyphen alone, a negative number, or a text with spaces.
        return argument.partition("=")[0] not in self._option_string_actions and (
            argument == "-" or _NEGATIVE.match(argument) is not None or " " in argument
        )

    def _check_spelling(self, arguments: Sequence[str]) -> None:
        """Tell of a misspelt option before one is found missing: it may be the same."""
        for argument in arguments:
            if argument == "--":
                return
            option = argument.partition("=")[0]
            known = self._option_string_actions
            is_unknown = option.startswith("--") and option not in known
            if is_unknown and near_name(option, known) is not None:
                self.error(self._unknown_text(argument))

    def _unknown_text(self, argument: str) -> str:
        if not argument.startswith("-"):
            return f"{argument!r} is one argument too many"
        option = argument.partition("=")[0]
        near = near_name(option, self._option_string_actions)
        if near is not None:
            return f"unknown option {option}: did you mean {near}?"
        if any(not action.option_strings for action in self._actions):
            return (
                f"unknown option {option}; if it is a value that begins with a hyphen, "
                "put -- before it"
            )
        return f"unknown option {option}"

    def error(self, message: str) -> NoReturn:
        """Exit with "bad usage"."""
        self.exit(_BAD_USAGE, f"{self.prog}: {message} (see '{self.prog} --help')\n")


class Verbs(Protocol):
    """Where a module enters its verbs."""

    def add_verb(
        self,
        name: str,
        run: Callable[[argparse.Namespace], int],
        *,
        operands: str = "",
        description: str,
        examples: str,
    ) -> argparse.ArgumentParser:
        """Return the parser of a new verb that *run* carries out."""


@final
class _EnteredVerbs:
    """Enters verbs into a parser, all in one form."""

    def __init__(self, subparsers: argparse._SubParsersAction[ArgumentParser]) -> None:
        self._subparsers = subparsers
        self.parsers: dict[str, ArgumentParser] = {}

    def add_verb(
        self,
        name: str,
        run: Callable[[argparse.Namespace], int],
        *,
        operands: str = "",
        description: str,
        examples: str,
    ) -> argparse.ArgumentParser:
        """Return the parser of a new verb that *run* carries out."""
        lines = "\n".join(f"  {line}" for line in examples.splitlines())
        parser = self._subparsers.add_parser(
            name,
            usage=f"%(prog)s [OPTION]... {operands}".rstrip(),
            help=VERBS[name].summary,
            description=textwrap.fill(description, _HELP_WIDTH),
            epilog=f"example:\n{lines}\n\n{EXIT_CODES}",
            formatter_class=HELP_FORMATTER,
            allow_abbrev=False,
        )
        parser.is_verb = True
        parser.set_defaults(run=run)
        self.parsers[name] = parser
        return parser


def enter(
    subparsers: argparse._SubParsersAction[ArgumentParser], names: Iterable[str]
) -> None:
    """
    Enter verbs with their options.

    Args:
        subparsers: Where to.
        names: Some of `VERBS`; without any, all are entered by name and summary alone.
    """
    modules = dict.fromkeys(VERBS[name].module for name in names)
    if not modules:
        for name, verb in VERBS.items():
            subparsers.add_parser(name, help=verb.summary)
    entered = _EnteredVerbs(subparsers)
    for module in modules:
        import_module(module).add_verbs(entered)
    for name in SERVING_VERBS & entered.parsers.keys():
        _take_environment(entered.parsers[name], name)


def _take_environment(parser: ArgumentParser, verb: str) -> None:
    """Take ``LODESTAR_VERB_OPTION`` for an option that is not given."""
    prefix = f"LODESTAR_{verb}_".upper()
    known: list[str] = []
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way)
        if action.dest in _NOT_FROM_ENVIRONMENT or action.dest.startswith("setting_"):
            continue
        for option in action.option_strings:
            name = prefix + option.lstrip("-").upper().replace("-", "_")
            known.append(name)
            text = os.environ.get(name)
            if text is None:
                continue
            if action.nargs == 0:
                if text not in _FLAGS:
                    parser.error(f"{name} must be true or false, not {text!r}")
                if _FLAGS[text]:
                    action.default = action.const
            else:
                action.default = text
                action.required = False
    _check_environment(parser, prefix, known)


def _check_environment(parser: ArgumentParser, prefix: str, known: list[str]) -> None:
    """
    Refuse a name with *prefix* that must be a misspelt one, and tell of others.

    A server that passed over ``LODESTAR_SERVER_DATADIR`` in silence would keep its
    stores in memory.
    """
    for name in sorted(os.environ.keys() - set(known)):
        if not name.startswith(prefix) or _KUBERNETES.search(name):
            continue
        option = name.removeprefix(prefix)  # of the whole name, the prefix is alike
        near = near_name(option, [one.removeprefix(prefix) for one in known])
        if near is not None:
            parser.error(f"{name} is no setting: did you mean {prefix}{near}?")
        print(f"lodestar: {name} is no setting, and is ignored", file=sys.stderr)


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return which of *known* may be meant by *name*, or None."""
    import difflib  # noqa: PLC0415 (only who has misspelt something needs it)

    near = difflib.get_close_matches(name, list(known), 1, _LIKENESS_MIN)
    return near[0] if near else None


def verb_problem(arguments: Sequence[str]) -> str | None:
    """Return what is wrong with what stands where a verb is wanted, or None."""
    first = arguments[0] if arguments else "--help"
    if first in VERBS or first in _OPTIONS_WITHOUT_VERB:
        return None
    if first.startswith("-"):
        verb = next((each for each in arguments if each in VERBS), "VERB")
        return f"options follow the verb: write 'lodestar {verb} {first} ...'"
    near = near_name(first, VERBS)
    what_to_do = "" if near is None else f": did you mean {near!r}?"
    return f"there is no verb {first!r}{what_to_do}"


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Return what is ours of *arguments*, and the command after the first ``--``.

    Done before argparse sees any of it: argparse takes a ``--`` out of the command too.
    """
    if "--" not in arguments:
        return list(arguments), []
    place = arguments.index("--")
    return list(arguments[:place]), list(arguments[place + 1 :])
