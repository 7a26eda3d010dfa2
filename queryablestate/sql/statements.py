"""
A text as statements, and which of them are no queries; pure.

Only tokens are told apart here, as much as it takes to find where statements end and
how they begin.  What a query means is said by the engine's own parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Final, final

from attrs import frozen

from queryablestate.sql.protocol.refusals import SQLError


__all__ = ["Kind", "Statement", "split"]

_TOKEN: Final = re.compile(
    r"""
      (?P<space> \s+ | --[^\r\n]* )
    | (?P<comment> /\* )
    | (?P<text> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' )
    | (?P<name> "(?:[^"]|"")*" )
    | (?P<dollar> \$(?P<tag>[A-Za-z_]\w*)?\$ )
    | (?P<word> [^\W\d][\w$]* | \d[\w.]* | \$\d+ )
    | (?P<end> ; )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT: Final = re.compile(r"/\*|\*/")
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_DEPTH_MAX: Final = 300
_COST_MAX: Final = 100_000
"""Of opening brackets that follow each other: a tenth of a second of the parser's."""


class Kind(Enum):
    """What a statement is about."""

    QUERY = "query"
    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SAVEPOINT = "SAVEPOINT"
    RELEASE = "RELEASE"
    ROLLBACK_TO = "ROLLBACK TO"
    SHOW = "SHOW"
    SET = "SET"
    RESET = "RESET"
    DISCARD = "DISCARD ALL"
    DEALLOCATE = "DEALLOCATE"
    CLOSE = "CLOSE CURSOR ALL"
    UNLISTEN = "UNLISTEN"
    EMPTY = "empty"


_KINDS: Final = {
    **dict.fromkeys(("SELECT", "WITH", "VALUES", "TABLE", "("), Kind.QUERY),
    **dict.fromkeys(("BEGIN", "START"), Kind.BEGIN),
    **dict.fromkeys(("COMMIT", "END"), Kind.COMMIT),
    **dict.fromkeys(("ROLLBACK", "ABORT"), Kind.ROLLBACK),
    "SAVEPOINT": Kind.SAVEPOINT,
    "RELEASE": Kind.RELEASE,
    "SHOW": Kind.SHOW,
    "SET": Kind.SET,
    "RESET": Kind.RESET,
    "DISCARD": Kind.DISCARD,
    "DEALLOCATE": Kind.DEALLOCATE,
    "CLOSE": Kind.CLOSE,
    "UNLISTEN": Kind.UNLISTEN,
}
_WRITES: Final = frozenset(
    [
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
        "CREATE",
        "DROP",
        "ALTER",
        "TRUNCATE",
        "GRANT",
        "REVOKE",
        "COMMENT",
        "REFRESH",
        "REINDEX",
        "VACUUM",
        "ANALYZE",
        "CLUSTER",
        "IMPORT",
        "REASSIGN",
        "SECURITY",
    ]
)
_HINTS: Final = {
    "COPY": "write a state to a file with 'lodestar export'",
    "DECLARE": "ask without a server-side cursor: rows are sent as they are read",
    "FETCH": "ask without a server-side cursor: rows are sent as they are read",
    "EXPLAIN": "see the page 'ask with SQL' for what is read of a state",
}


@final
@frozen
class Statement:
    """
    One statement.

    Attributes:
        text: As it stands in the text, without the semicolon.
        kind: What it is about.
        words: Its tokens, for what is no query; names without their quotes.
    """

    text: str
    kind: Kind
    words: Sequence[str]


def split(text: str) -> list[Statement]:
    """
    Return the statements of *text*; none if there is nothing but space and comments.

    Raises:
        SQLError: If a string or a comment has no end, or brackets are nested too
            deeply, or one of them is neither a query nor about a session.
    """
    found = []
    start = place = depth = in_a_row = cost = 0
    words: list[str] = []
    while place < len(text):
        match = _TOKEN.match(text, place)
        assert match is not None
        place = match.end()
        token = match[0]
        if match.lastgroup not in {"space", "comment"}:
            # The engine's parser takes time by the square of how many are in a row.
            in_a_row = in_a_row + 1 if match[0] == "(" else 0
            cost += max(0, 2 * in_a_row - 1)
        match match.lastgroup:
            case "comment":
                place = _comment_end(text, match.end())
            case "dollar" | "tag":
                place = text.find(token, match.end()) + len(token)
                if place < match.end():
                    raise _unterminated(text, match.start())
                words.append(token)
            case "text" | "name" | "word":
                words.append(token)
            case "end":
                if words:
                    found.append(_statement(text[start : match.start()], words))
                start, depth, words = place, 0, []
            case "other":
                if token in {"'", '"'}:
                    raise _unterminated(text, match.start())
                depth = max(0, depth + (token in _OPENING) - (token in _CLOSING))
                if depth > _DEPTH_MAX or cost > _COST_MAX:
                    raise SQLError(
                        "54001",
                        f"the statement is nested too deeply: at most {_DEPTH_MAX} "
                        "brackets can be open, and few times as many that follow each "
                        "other",
                        position=match.start() + 1,
                    )
                words.append(token)
    if words:
        found.append(_statement(text[start:], words))
    return found


def _comment_end(text: str, place: int) -> int:
    depth = 1
    for mark in _COMMENT.finditer(text, place):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    raise _unterminated(text, place - 2)


def _unterminated(text: str, place: int) -> SQLError:
    return SQLError(
        "42601",
        f"what begins at {text[place : place + 10]!r} has no end",
        position=place + 1,
    )


def _statement(text: str, words: list[str]) -> Statement:
    first = words[0].upper()
    kind = _KINDS.get(first)
    if kind is Kind.QUERY:
        return Statement(text, kind, ())
    if kind is None:
        if first in _WRITES:
            raise SQLError(
                "25006",
                f"{first} is refused: states are read only",
                "the streaming query that owns a state writes it",
            )
        raise SQLError(
            "0A000",
            f"{words[0][:40]!r} is no statement that is supported",
            _HINTS.get(first, "SELECT, WITH, VALUES, SHOW and SET are"),
        )
    if kind is Kind.ROLLBACK and "TO" in (word.upper() for word in words[1:3]):
        kind = Kind.ROLLBACK_TO
    return Statement(text, kind, tuple(map(_bare, words)))


def _bare(word: str) -> str:
    if word[0] == '"':
        return word[1:-1].replace('""', '"')
    if word[0] == "'":
        return word[1:-1].replace("''", "'")
    return word
