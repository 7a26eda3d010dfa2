"""`SessionSettings`: what SET and SHOW are about; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, final

from attrs import frozen

from queryablestate.sql.catalog_tables import SERVER_VERSION
from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.statements import Statement


__all__ = ["REPORTED", "SessionSettings"]

_DEFAULTS: Final[Mapping[str, str]] = {
    "server_version": SERVER_VERSION,
    "server_version_num": "150000",
    "server_encoding": "UTF8",
    "client_encoding": "UTF8",
    "application_name": "",
    "is_superuser": "off",
    "session_authorization": "",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "integer_datetimes": "on",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "on",
    "transaction_read_only": "on",
    "in_hot_standby": "off",
    "transaction_isolation": "read committed",
    "default_transaction_isolation": "read committed",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "search_path": "",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "extra_float_digits": "1",
    "client_min_messages": "notice",
    "bytea_output": "hex",
    "row_security": "off",
    "ssl": "off",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lc_messages": "C",
    "lc_monetary": "C",
    "block_size": "8192",
    "max_connections": "100",
    "jit": "off",
    "geqo": "on",
}
_FIXED: Final = frozenset(
    [
        "server_version",
        "server_version_num",
        "server_encoding",
        "is_superuser",
        "in_hot_standby",
        "session_authorization",
        "integer_datetimes",
        "max_identifier_length",
        "ssl",
    ]
)
REPORTED: Final[Mapping[str, str]] = {
    "server_version": "server_version",
    "server_encoding": "server_encoding",
    "client_encoding": "client_encoding",
    "application_name": "application_name",
    "is_superuser": "is_superuser",
    "session_authorization": "session_authorization",
    "datestyle": "DateStyle",
    "intervalstyle": "IntervalStyle",
    "timezone": "TimeZone",
    "integer_datetimes": "integer_datetimes",
    "standard_conforming_strings": "standard_conforming_strings",
    "default_transaction_read_only": "default_transaction_read_only",
    "in_hot_standby": "in_hot_standby",
}
"""Settings that a tool is told of without asking, and how they are spelt then."""

_ONLY: Final = {
    "client_encoding": frozenset({"utf8", "utf-8", "unicode"}),
    "standard_conforming_strings": frozenset({"on", "true"}),
    "default_transaction_read_only": frozenset({"on", "true", "off", "false"}),
    "intervalstyle": frozenset({"postgres"}),
    "bytea_output": frozenset({"hex"}),
}
_LENGTH_MAX: Final = 1_000
_SPELT: Final = {
    "transaction_isolation_level": "transaction_isolation",
    "time_zone": "timezone",
    "session_authorization": "session_authorization",
    "names": "client_encoding",
}
_SECONDS_OF: Final = {
    "us": 1e-6,
    "ms": 0.001,
    "s": 1.0,
    "min": 60.0,
    "h": 3_600.0,
    "d": 86_400.0,
}
_DURATION: Final = re.compile(
    rf"(\d{{1,20}}(?:\.\d{{0,20}})?)\s*({'|'.join(_SECONDS_OF)})?", re.ASCII
)
_IGNORED: Final = frozenset({"transaction", "constraints", "session", "role"})
_SAVEPOINT_COUNT_MAX: Final = 100


@final
@frozen
class _Savepoint:
    """The settings as they were when it was made."""

    name: str
    values: dict[str, str]
    after_commit: dict[str, str]


@final
class SessionSettings:
    """
    The settings of one session.

    A transaction that is rolled back, also to a savepoint, brings back what it has set,
    and each brings back what it has set for itself alone (SET LOCAL): else a pool would
    hand the one's search_path to the other.

    Args:
        user: The name that was given.
        database: Likewise.
        given: Parameters of the first message; those that are no settings are ignored.
        timeout_seconds_max: How long a statement may take at most.
    """

    def __init__(
        self,
        user: str,
        database: str,
        given: Mapping[str, str],
        *,
        timeout_seconds_max: float,
    ) -> None:
        self.user = user
        self.database = database
        self._timeout_seconds_max = timeout_seconds_max
        self._start = dict(_DEFAULTS)
        self._start["session_authorization"] = user
        self._start["search_path"] = database
        self.values = dict(self._start)
        self._after_commit: dict[str, str] = {}
        self._savepoints: list[_Savepoint] = []
        for name, value in (
            *given.items(),
            *_options(given.get("options", "")).items(),
        ):
            lowered = name.lower()
            if lowered in _DEFAULTS and lowered not in _FIXED:
                self.put(lowered, value.strip("'"))
        self._start = dict(self.values)
        self._after_commit = dict(self.values)
        self._after_rollback: dict[str, str] | None = None  # None outside of one

    @property
    def search_path(self) -> tuple[str, ...]:
        """Return the jobs that tables without one are looked up in."""
        names = (
            name.strip().strip('"') for name in self.values["search_path"].split(",")
        )
        return tuple(name for name in names if name and name != "$user")

    @property
    def timeout_seconds(self) -> float:
        """Return how long a statement may take."""
        seconds = _duration_seconds(self.values["statement_timeout"])
        return min(seconds, self._timeout_seconds_max) or self._timeout_seconds_max

    def reported(self) -> dict[str, str]:
        """Return what a tool is told at the beginning."""
        return {spelt: self.values[name] for name, spelt in REPORTED.items()}

    def begin(self) -> None:
        """Begin a transaction, if there is none."""
        if self._after_rollback is None:
            self._after_rollback = dict(self._after_commit)

    def end(self, *, commits: bool) -> None:
        """End a transaction, or a message outside of one."""
        if self._after_rollback is not None and not commits:
            self._after_commit = self._after_rollback
        self._after_rollback = None
        self._savepoints.clear()
        self.values = dict(self._after_commit)

    def keep(self, savepoint: str) -> None:
        """Keep the settings as they are, for `bring_back`."""
        # JDBC makes one before each statement, and releases none: the first ones go.
        del self._savepoints[: 1 - _SAVEPOINT_COUNT_MAX]
        self._savepoints.append(
            _Savepoint(savepoint, dict(self.values), dict(self._after_commit))
        )

    def bring_back(self, savepoint: str) -> None:
        """Bring back the settings as they were at a savepoint, which stays."""
        for place in reversed(range(len(self._savepoints))):
            made = self._savepoints[place]
            if made.name == savepoint:
                del self._savepoints[place + 1 :]
                self.values = dict(made.values)
                self._after_commit = dict(made.after_commit)
                return

    def release(self, savepoint: str) -> None:
        """Forget a savepoint, and those after it."""
        for place in reversed(range(len(self._savepoints))):
            if self._savepoints[place].name == savepoint:
                del self._savepoints[place:]
                return

    def put(self, name: str, value: str, *, is_local: bool = False) -> None:
        """
        Set one, for a transaction alone if *is_local*; some stay what they are.

        Raises:
            SQLError: If there is none of that name, or it cannot have that value.
        """
        lowered = name.lower()
        if lowered in _FIXED:
            raise SQLError("55P02", f'parameter "{name}" cannot be changed')
        if lowered not in _DEFAULTS:
            if "." in lowered:
                return  # an extension's own, as Postgres takes it
            raise SQLError("42704", f'unrecognized configuration parameter "{name}"')
        if len(value) > _LENGTH_MAX:
            raise SQLError("22023", f'the value of "{name}" is too long')
        allowed = _ONLY.get(lowered)
        if allowed is not None and value.lower() not in allowed:
            raise SQLError(
                "22023",
                f'invalid value for parameter "{name}": "{value}"',
                f"it can be {', '.join(sorted(allowed))}",
            )
        if lowered == "statement_timeout":
            _duration_seconds(value)  # else a mistake would mean no timeout at all
        if lowered in {"timezone", "client_encoding", "datestyle"} or (
            "read_only" in lowered
        ):
            # Times are told in UTC, with that zone beside them: tools convert them.
            return
        self.values[lowered] = value
        if not is_local:
            self._after_commit[lowered] = value

    def set(self, statement: Statement) -> None:
        """
        Do what a SET says.

        Raises:
            SQLError: As `put`.
        """
        words = list(statement.words[1:])
        is_local = False
        if words and words[0].lower() in {"session", "local"} and len(words) > 1:
            is_local = words[0].lower() == "local"
            words = words[1:]
        if not words:
            raise SQLError("42601", "SET wants a name and a value")
        name = words[0].lower()
        if name in _IGNORED or name == "characteristics":
            return
        if name == "time" and len(words) > 1:
            name, words = "timezone", ["timezone", *words[2:]]
        name = _SPELT.get(name, name)
        values = words[1:]
        if len(values) > 1 and values[0] == ".":  # extension.name
            return
        if values and values[0].lower() in {"to", "="}:
            values = values[1:]
        if not values:
            raise SQLError("42601", f"SET {name} wants a value")
        value = "".join(values).replace(",", ", ")
        if len(values) == 1 and values[0].lower() == "default":
            value = self._start.get(name, "")
            if name in _FIXED or name not in _DEFAULTS:
                return
        self.put(name, value, is_local=is_local)

    def reset(self, statement: Statement) -> None:
        """Do what a RESET says."""
        name = statement.words[1].lower() if len(statement.words) > 1 else "all"
        if name == "all":
            self.reset_all()
        elif name in self._start:
            self.values[name] = self._after_commit[name] = self._start[name]

    def reset_all(self) -> None:
        """Bring back what was given at the beginning."""
        self.values = dict(self._start)
        self._after_commit = dict(self._start)

    def show(self, statement: Statement) -> list[tuple[str, str]]:
        """
        Return names and values that a SHOW asks for.

        Raises:
            SQLError: If there is none of that name.
        """
        name = "_".join(word.lower() for word in statement.words[1:])
        name = _SPELT.get(name, name)
        if name == "all":
            return sorted(self.values.items())
        if name not in self.values:
            raise SQLError(
                "42704",
                f'unrecognized configuration parameter "{name}"',
                "\\dn lists the jobs, \\dt JOB.* its states",
            )
        return [(name, self.values[name])]


def _duration_seconds(text: str) -> float:
    """
    Return how long a timeout is; without a unit it is in milliseconds.

    Raises:
        SQLError: If it is none.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise SQLError(
            "22023",
            f'invalid value for parameter "statement_timeout": "{text[:40]}"',
            "it can be a number of us, ms, s, min, h or d, such as 500ms; 0 is the "
            "most that the server allows",
        )
    number, unit = found.groups()
    return float(number) * _SECONDS_OF[unit or "ms"]


def _options(text: str) -> dict[str, str]:
    """Return the settings in ``-c name=value`` options."""
    words = text.replace("\\ ", "\0").split()
    found = {}
    for place, word in enumerate(words):
        pair = word.removeprefix("-c") if word != "-c" else ""
        if word == "-c" and place + 1 < len(words):
            pair = words[place + 1]
        elif word.startswith("--"):
            pair = word[2:].replace("-", "_")
        elif not word.startswith("-c"):
            continue
        name, mark, value = pair.partition("=")
        if mark:
            found[name] = value.replace("\0", " ")
    return found
