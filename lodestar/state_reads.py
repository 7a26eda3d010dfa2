"""Verbs that read queryable state: get, states, scan, count."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lodestar.arguments import add_json_option, job_id, positive_count
from lodestar.exit_codes import ExitCode
from lodestar.output import json_line, json_text, printable, write, write_answer
from lodestar.state_access import (
    add_least_options,
    add_state_options,
    least_arguments,
    open_client,
)
from lodestar.state_output import found_text, rows_text, states_text
from nameservice import ConfigurationError
from queryablestate import StateUnavailableError, UnknownJobError, UnknownKeyError
from queryablestate.client.documents import (
    FoundKey,
    found_document,
    row_document,
    state_document,
)
from queryablestate.schema.key_text import (
    NULL_TEXT,
    parse_json_key,
    parse_key,
    parse_prefix,
)
from queryablestate.schema.schema import StateKind


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lodestar.verbs import Verbs
    from queryablestate import StateInformation
    from queryablestate.client.client import QueryableStateClient
    from queryablestate.schema.schema import Field, StateSchema


__all__ = ["add_verbs"]

_SCAN_LIMIT: Final = 100
"""Rows that `scan` shows people who do not say how many."""


def add_verbs(verbs: Verbs) -> None:
    """Enter the verbs of this module."""
    parser = verbs.add_verb(
        "get",
        _get,
        operands="JOB STATE KEY...",
        description="Tell what STATE of JOB holds under each KEY. Write a KEY as the "
        "type of its column wants it: text as it is, 42, 1.10, true, 2026-03-01, "
        "2026-03-01T04:05:06Z, 0x00ff (bytes). Separate several key columns by "
        "commas; --json-key takes any key as JSON. Put -- before a KEY that begins "
        "with a hyphen. Exit code 3 if there is nothing under a KEY.",
        examples="lodestar get flights aircraft N14228\n"
        "lodestar get flights routes JFK,2013-01-01 --json | jq .value.delay\n"
        "lodestar get flights log N14228 --start -10",
    )
    _add_state_operands(parser)
    parser.add_argument("keys", metavar="KEY", nargs="*", help="a key")
    parser.add_argument(
        "--json-key",
        action="store_true",
        help="KEY and --map-key are JSON: a value, or an array or an object for "
        "several columns",
    )
    parser.add_argument(
        "--null-key", action="store_true", help="also ask for the key null"
    )
    parser.add_argument(
        "--map-key",
        dest="map_keys",
        metavar="K",
        action="append",
        default=[],
        help="of a map state, only this entry; may be given several times",
    )
    parser.add_argument(
        "--start",
        metavar="N",
        type=int,
        help="of a list state, from this item; from the end if negative",
    )
    parser.add_argument(
        "--stop",
        metavar="N",
        type=int,
        help="of a list state, up to but without this item; from the end if negative",
    )
    add_least_options(parser)
    add_json_option(parser, "one JSON object; an array of them for several keys")
    add_state_options(parser)

    parser = verbs.add_verb(
        "states",
        _states,
        operands="[JOB]",
        description="List the states of JOB, or of every job, that we may see. Exit "
        "code 3 if there is no state of JOB.",
        examples="lodestar states flights",
    )
    parser.add_argument(
        "job", metavar="JOB", type=job_id, nargs="?", help="the job id (default: all)"
    )
    add_json_option(parser, "one JSON array")
    add_state_options(parser)

    parser = verbs.add_verb(
        "scan",
        _scan,
        operands="JOB STATE",
        description="List what STATE of JOB holds, in the order of the keys, over all "
        "nodes: a row for each key, each map entry, each list item. It reads page by "
        "page; two pages may be of different batches.",
        examples="lodestar scan flights aircraft --prefix N1 --limit 20\n"
        "lodestar scan flights delays --key N14228 --start JFK\n"
        "lodestar scan flights aircraft --json | gzip >aircraft.jsonl.gz",
    )
    _add_state_operands(parser)
    parser.add_argument(
        "--key",
        metavar="KEY",
        help="of a map state, only the entries under this key; --start and --stop are "
        "map keys then",
    )
    parser.add_argument(
        "--prefix",
        metavar="P",
        help="only keys that begin with this: text (or 0x...), or values for the first "
        "of several key columns",
    )
    parser.add_argument("--start", metavar="KEY", help="only from this key on")
    parser.add_argument("--stop", metavar="KEY", help="only up to this key, excluded")
    parser.add_argument(
        "--json-key", action="store_true", help="--key, --start and --stop are JSON"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=positive_count,
        help=f"at most this many rows (default: {_SCAN_LIMIT}; all with --json)",
    )
    add_least_options(parser)
    add_json_option(parser, "one JSON object per line")
    add_state_options(parser)

    parser = verbs.add_verb(
        "count",
        _count,
        operands="JOB STATE",
        description="Tell how many keys STATE of JOB holds; lists and maps count once "
        "for each key.",
        examples="lodestar count flights aircraft",
    )
    _add_state_operands(parser)
    add_least_options(parser)
    add_json_option(parser, "one JSON object")
    add_state_options(parser)


def _add_state_operands(parser: Any) -> None:
    parser.add_argument("job", metavar="JOB", type=job_id, help="the job id")
    parser.add_argument("state", metavar="STATE", help="the state's name")


# -- get -------------------------------------------------------------------------------


def _get(arguments: Namespace) -> ExitCode:
    if not arguments.keys and not arguments.null_key:
        message = "KEY is wanted: what to ask the state for"
        raise ConfigurationError(message)
    found: list[FoundKey] = []
    failed: list[UnknownKeyError | StateUnavailableError] = []
    with open_client(arguments) as client:
        schema = client.describe(arguments.job, arguments.state).registered_schema
        for asked in _asked_keys(schema, arguments):
            try:
                found.append(_ask(client, arguments, asked))
            except UnknownKeyError:
                failed.append(
                    UnknownKeyError(arguments.job, arguments.state, asked.text)
                )
            except StateUnavailableError as error:
                failed.append(error)  # others may be answered all the same (rule Q4)
    is_one = len(found) + len(failed) == 1
    if found or not is_one:
        if arguments.json:
            documents = [found_document(schema, each) for each in found]
            write(json_text(documents[0] if is_one else documents))
        elif found:
            write(found_text(schema, found, is_one=is_one))
    # The last one says how it ended: what is not known outweighs what is not there.
    failed.sort(key=lambda error: isinstance(error, StateUnavailableError))
    for each in failed[:-1]:
        print(f"lodestar get: {printable(str(each))}", file=sys.stderr)
    if failed:
        raise failed[-1]
    return ExitCode.DONE


class _AskedKey(NamedTuple):
    """A key as typed and as it is meant; *map_key* is empty, or holds one."""

    text: Any
    key: Any
    map_key: tuple[Any, ...]


def _asked_keys(schema: StateSchema, arguments: Namespace) -> list[_AskedKey]:
    """Return the keys that were typed, each with each map key."""
    parse = parse_json_key if arguments.json_key else parse_key
    keys = [(text, parse(schema.key, text)) for text in arguments.keys]
    if arguments.null_key:
        if len(schema.key) > 1:
            message = (
                f"--null-key is for one key column; a key of ({schema.key_text()}) is "
                'written with --json-key, e.g. [null, "…"]'
            )
            raise ConfigurationError(message)
        keys.append((NULL_TEXT, None))
    has_slice = arguments.start is not None or arguments.stop is not None
    for option, is_given, kind in (
        ("--map-key", bool(arguments.map_keys), StateKind.MAP),
        ("--start and --stop", has_slice, StateKind.LIST),
    ):
        if is_given and schema.kind is not kind:
            raise _wrong_kind(option, kind, schema, arguments)
    if not arguments.map_keys:
        return [_AskedKey(text, key, ()) for text, key in keys]
    map_keys = [(text, parse(schema.map_key, text)) for text in arguments.map_keys]
    return [
        _AskedKey((text, map_text), key, (map_key,))
        for text, key in keys
        for map_text, map_key in map_keys
    ]


def _wrong_kind(
    option: str, needed: StateKind, schema: StateSchema, arguments: Namespace
) -> ConfigurationError:
    return ConfigurationError(
        f"{option} {'are' if ' and ' in option else 'is'} for a {needed.value} state; "
        f"{arguments.job}/{arguments.state} is a {schema.kind.value} state"
    )


def _ask(
    client: QueryableStateClient, arguments: Namespace, asked: _AskedKey
) -> FoundKey:
    state = (arguments.job, arguments.state)
    least = least_arguments(arguments)
    if asked.map_key:
        (map_key,) = asked.map_key
        value = client.get_map_entry(*state, asked.key, map_key, **least)
        return FoundKey(asked.key, asked.map_key, value, None)
    if arguments.start is not None or arguments.stop is not None:
        value = client.get_list(
            *state,
            asked.key,
            start=arguments.start,
            stop=arguments.stop,
            **least,
        )
        return FoundKey(asked.key, (), value, None)
    entry = client.lookup(*state, asked.key, **least)
    return FoundKey(asked.key, (), entry.value, entry)


# -- states ----------------------------------------------------------------------------


def _states(arguments: Namespace) -> ExitCode:
    failed: list[StateUnavailableError] = []
    with open_client(arguments) as client:
        if arguments.job is not None:
            states = client.describe_all(arguments.job)
        else:
            states, failed = _states_of_all(client)
    write_answer(
        [state_document(each) for each in states],
        states_text(states),
        is_json=arguments.json,
    )
    for each in failed[:-1]:
        print(f"lodestar states: {printable(str(each))}", file=sys.stderr)
    if failed:
        raise failed[-1]
    return ExitCode.DONE


def _states_of_all(
    client: QueryableStateClient,
) -> tuple[list[StateInformation], list[StateUnavailableError]]:
    """Return the states of every job, and why those of some cannot be told."""
    states: list[StateInformation] = []
    failed: list[StateUnavailableError] = []
    for job in client.jobs():
        try:
            states += client.describe_all(job)
        except UnknownJobError:
            continue  # its last state was dropped meanwhile
        except StateUnavailableError as error:
            failed.append(error)
    return states, failed


# -- scan ------------------------------------------------------------------------------


def _scan(arguments: Namespace) -> ExitCode:
    limit: int | None = arguments.limit
    if limit is None and not arguments.json:
        limit = _SCAN_LIMIT + 1  # to know whether there are more
    if arguments.key is not None and arguments.prefix is not None:
        message = "--prefix is for keys, not for the entries of --key: use --start"
        raise ConfigurationError(message)
    with open_client(arguments) as client:
        schema = client.describe(arguments.job, arguments.state).registered_schema
        rows = _rows(client, arguments, schema, limit)
        if arguments.json:
            for row in rows:
                write(json_line(row_document(schema, *row)))
            return ExitCode.DONE
        shown = list(rows)
    is_more = arguments.limit is None and len(shown) > _SCAN_LIMIT
    write(rows_text(schema, shown[:_SCAN_LIMIT] if is_more else shown))
    if is_more:
        print(
            f"lodestar scan: these are the first {_SCAN_LIMIT} rows, there are more: "
            "say how many with --limit",
            file=sys.stderr,
        )
    return ExitCode.DONE


def _rows(
    client: QueryableStateClient,
    arguments: Namespace,
    schema: StateSchema,
    limit: int | None,
) -> Iterator[tuple[Any, tuple[Any, ...], Mapping[str, Any]]]:
    """Yield key, map key (or none) and value of what is asked for."""
    state = (arguments.job, arguments.state)
    parse = parse_json_key if arguments.json_key else parse_key
    least = least_arguments(arguments)
    if arguments.key is not None:
        if schema.kind is not StateKind.MAP:
            raise _wrong_kind("--key", StateKind.MAP, schema, arguments)
        key = parse(schema.key, arguments.key)
        for map_key, value in client.scan_map(
            *state,
            key,
            start=_parsed(parse, schema.map_key, arguments.start),
            stop=_parsed(parse, schema.map_key, arguments.stop),
            limit=limit,
            **least,
        ):
            yield key, (map_key,), value
        return
    for key, value in client.scan(
        *state,
        prefix=_parsed(parse_prefix, schema.key, arguments.prefix),
        start=_parsed(parse, schema.key, arguments.start),
        stop=_parsed(parse, schema.key, arguments.stop),
        limit=limit,
        **least,
    ):
        if schema.kind is StateKind.MAP:
            yield key[0], key[1:], value
        else:
            yield key, (), value


def _parsed(
    parse: Callable[[Sequence[Field], str], Any],
    fields: Sequence[Field],
    text: str | None,
) -> Any:
    return None if text is None else parse(fields, text)


# -- count -----------------------------------------------------------------------------


def _count(arguments: Namespace) -> ExitCode:
    with open_client(arguments) as client:
        count = client.count(
            arguments.job, arguments.state, **least_arguments(arguments)
        )
    write_answer(
        {"job": arguments.job, "state": arguments.state, "count": count},
        str(count),
        is_json=arguments.json,
    )
    return ExitCode.DONE
