"""
`Conversation`: the server's side of one connection, without I/O; pure.

Theory of operation.  The shell `feed`s what it has received, and asks for the `step`
that is next: what the tool wants done.  It does that, `say`s the answer (or `fail`s),
and asks again; None means that more must be received first.  What is to be sent lies in
`take_output`.  Steps come one at a time, in the order of the messages, however many of
them a tool sends at once.

An error in the extended protocol has everything ignored up to the next Sync; an error
in a transaction has every statement refused up to its end.  Both are decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, final

from attrs import field, frozen

from queryablestate.sql.protocol import messages
from queryablestate.sql.protocol.messages import Bind, FieldReader
from queryablestate.sql.protocol.refusals import SQLError


__all__ = [
    "BindAsked",
    "CancelAsked",
    "Conversation",
    "DescribePortalAsked",
    "DescribeStatementAsked",
    "Ended",
    "ExecuteAsked",
    "LoginAsked",
    "ParseAsked",
    "PasswordGiven",
    "QueryAsked",
    "Step",
    "TLSAsked",
]

_STARTUP_SIZE_BYTES_MAX: Final = 10_000
_HEADER_SIZE_BYTES: Final = 5
_STATEMENT_COUNT_MAX: Final = 500
_STATEMENT_SIZE_MAX: Final = 1024 * 1024
_PORTAL_COUNT_MAX: Final = 20
_WITHOUT_SYNC: Final = frozenset({b"Q", b"F"})
"""Messages that no Sync follows: a tool waits until the next one may come."""


@final
@frozen
class TLSAsked:
    """The tool wants TLS; the shell answers S or N by itself, and starts it."""


@final
@frozen
class CancelAsked:
    """Another connection's statement is to end; this one ends without an answer."""

    process_id: int
    secret: int


@final
@frozen
class LoginAsked:
    """A session is to begin; answer with `want_password` or `let_in`."""

    parameters: Mapping[str, str]


@final
@frozen
class PasswordGiven:
    """Answer with `let_in`, or `end`."""

    password: str = field(repr=False)


@final
@frozen
class QueryAsked:
    """A text of statements; answer each, then `query_done`."""

    text: str


@final
@frozen
class ParseAsked:
    """A statement is to be prepared; answer with `prepared`."""

    name: str
    text: str
    type_oids: Sequence[int]


@final
@frozen
class BindAsked:
    """Values for what was prepared; answer with `bound`."""

    bind: Bind
    statement: Any


@final
@frozen
class DescribeStatementAsked:
    """Parameters and columns of what was prepared are wanted."""

    statement: Any


@final
@frozen
class DescribePortalAsked:
    """The columns of what was bound are wanted."""

    portal: Any


@final
@frozen
class ExecuteAsked:
    """Rows of what was bound are wanted: *row_limit* at most, or all if it is 0."""

    portal: Any
    row_limit: int


@final
@frozen
class Ended:
    """The tool has said good-bye, or the connection is of no use any more."""


Step: TypeAlias = (
    TLSAsked
    | CancelAsked
    | LoginAsked
    | PasswordGiven
    | QueryAsked
    | ParseAsked
    | BindAsked
    | DescribeStatementAsked
    | DescribePortalAsked
    | ExecuteAsked
    | Ended
)


@final
class Conversation:
    """
    One connection.

    Args:
        message_size_bytes_max: How long a message may be.

    Attributes:
        transaction: ``I`` outside of one, ``T`` inside, ``E`` inside a failed one.
        closed_portals: Portals that are gone; the shell frees what they hold.
    """

    def __init__(self, *, message_size_bytes_max: int = 1024 * 1024) -> None:
        self._size_bytes_max = message_size_bytes_max
        self._buffer = bytearray()
        self._output: list[bytes] = []
        self._output_size = 0
        self._is_started = False
        self._is_logged_in = False
        self._skips_to_sync = False
        self._is_over = False
        self._name = ""
        self._statements: dict[str, tuple[Any, int]] = {}
        self._size = 0
        self._portals: dict[str, Any] = {}
        self.transaction = b"I"
        self.closed_portals: list[Any] = []

    # -- what the shell hands in, and takes --------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take what was received."""
        self._buffer += data

    @property
    def portals(self) -> Collection[Any]:
        """Return those that the tool has bound, and not closed."""
        return self._portals.values()

    @property
    def has_unread(self) -> bool:
        """Return whether something was received that no step was made of."""
        return bool(self._buffer)

    @property
    def unsent_size(self) -> int:
        """Return how many bytes `take_output` would return."""
        return self._output_size

    def take_output(self) -> bytes:
        """Return what is to be sent."""
        output, self._output = b"".join(self._output), []
        self._output_size = 0
        return output

    def step(self) -> Step | None:
        """
        Return what the tool wants next; None if more must be received first.

        Mistakes that the tool is told of are answered here.
        """
        while not self._is_over:
            try:
                found = self._first() if not self._is_started else self._next()
            except SQLError as error:
                if not self._is_logged_in or error.sqlstate == "08P01":
                    self.end(error)
                    return Ended()
                self.fail(error)
                continue
            if found is not _NOTHING:
                assert found is None or not isinstance(found, _Nothing)
                return found
        return Ended()

    # -- answers -----------------------------------------------------------------------

    def say(self, *answers: bytes) -> None:
        """Send *answers*."""
        self._output += answers
        self._output_size += sum(map(len, answers))

    def want_password(self) -> None:
        """Ask for one; it is the next step."""
        self.say(messages.PASSWORD_WANTED)

    def let_in(self, process_id: int, secret: int, settings: Mapping[str, str]) -> None:
        """Begin the session."""
        self._is_logged_in = True
        self.say(messages.AUTHENTICATED)
        self.say(*(messages.parameter_status(*pair) for pair in settings.items()))
        self.say(messages.backend_key(process_id, secret), messages.ready(b"I"))

    def end(self, error: SQLError | None = None) -> None:
        """End the connection, with *error* if there is one."""
        if error is not None:
            self.say(messages.error_response(error, "FATAL"))
        self._is_over = True
        self._close_portals()

    def fail(self, error: SQLError) -> None:
        """Answer a step with *error*; after one of a query comes `query_done`."""
        self.say(messages.error_response(error))
        self._skips_to_sync = True
        self._close_portals()
        if self.transaction == b"T":
            self.transaction = b"E"

    def query_done(self) -> None:
        """End the answer to a text of statements."""
        self._skips_to_sync = False
        self._end_statement()

    def prepared(self, statement: Any) -> None:
        """Keep what a `ParseAsked` was about."""
        self._statements[self._name] = (statement, self._size)
        self.say(messages.PARSE_COMPLETE)

    def bound(self, name: str, portal: Any) -> None:
        """Keep what a `BindAsked` was about."""
        self._portals[name] = portal
        self.say(messages.BIND_COMPLETE)

    def begin(self) -> None:
        """Begin a transaction."""
        if self.transaction == b"I":
            self.transaction = b"T"
        else:
            self.say(messages.notice("there is already a transaction in progress"))

    def finish(self, *, commits: bool) -> str:
        """End a transaction, and return the tag of what has happened."""
        has_failed = self.transaction == b"E"
        if self.transaction == b"I":
            self.say(messages.notice("there is no transaction in progress"))
        self.transaction = b"I"
        self._close_portals()
        return "COMMIT" if commits and not has_failed else "ROLLBACK"

    def roll_back_to(self) -> None:
        """Go on with a transaction that has failed: nothing was written in it."""
        if self.transaction == b"I":
            raise SQLError("25P01", "there is no transaction in progress")
        self.transaction = b"T"

    def forget_statements(self, name: str | None = None) -> None:
        """Forget a prepared statement, or all."""
        if name is None:
            self._statements.clear()
        elif self._statements.pop(name, None) is None:
            raise SQLError("26000", f'prepared statement "{name}" does not exist')

    def check_transaction(self) -> None:
        """Refuse a statement in a transaction that has failed."""
        if self.transaction == b"E":
            raise SQLError(
                "25P02",
                "current transaction is aborted, commands ignored until end of "
                "transaction block",
                "ROLLBACK ends it",
            )

    # -- the first message -------------------------------------------------------------

    def _first(self) -> Step | _Nothing | None:
        if len(self._buffer) < 8:
            return None
        size = int.from_bytes(self._buffer[:4], "big")
        if not 8 <= size <= _STARTUP_SIZE_BYTES_MAX:
            raise SQLError(
                "08P01", "this is no Postgres client: its first message is malformed"
            )
        if len(self._buffer) < size:
            return None
        reader = FieldReader(bytes(self._buffer[4:size]))
        code = reader.int32()
        del self._buffer[:size]
        if code == messages.TLS_REQUEST:
            return TLSAsked()
        if code == messages.GSS_REQUEST:
            self.say(b"N")
            return _NOTHING
        if code == messages.CANCEL_REQUEST:
            process_id, secret = (reader.int32() & 0xFFFFFFFF for _ in range(2))
            self._is_over = True
            return CancelAsked(process_id, secret)
        major, minor = code >> 16, code & 0xFFFF
        if major != messages.VERSION_MAJOR:
            raise SQLError(
                "08P01", f"protocol {major}.{minor} is not supported, 3.0 is"
            )
        parameters = parse_parameters(reader)
        extensions = sorted(name for name in parameters if name.startswith("_pq_."))
        if minor or extensions:
            self.say(messages.negotiate_version(extensions))
        self._is_started = True
        return LoginAsked(parameters)

    # -- all others --------------------------------------------------------------------

    def _next(self) -> Step | _Nothing | None:
        if len(self._buffer) < _HEADER_SIZE_BYTES:
            return None
        size = int.from_bytes(self._buffer[1:5], "big")
        size_max = self._size_bytes_max if self._is_logged_in else 5_000
        if not 4 <= size <= size_max:
            raise SQLError(
                "08P01",
                f"a message of {size} bytes is malformed: at most {size_max} can be",
            )
        if len(self._buffer) <= size:
            return None
        kind = bytes(self._buffer[:1])
        data = bytes(self._buffer[_HEADER_SIZE_BYTES : size + 1])
        del self._buffer[: size + 1]
        if not self._is_logged_in:
            if kind != b"p":
                raise SQLError("08P01", "a password is expected first")
            reader = FieldReader(data)
            password = reader.text()
            reader.end()
            return PasswordGiven(password)
        if self._skips_to_sync and kind not in {b"S", b"X"}:
            return _NOTHING
        try:
            return self._dispatch(kind, data)
        except SQLError as error:
            if kind not in _WITHOUT_SYNC or error.sqlstate == "08P01":
                raise
            self.fail(error)
            self.query_done()
            return _NOTHING

    def _dispatch(self, kind: bytes, data: bytes) -> Step | _Nothing | None:
        reader = FieldReader(data)
        match kind:
            case b"Q":
                text = reader.text()
                reader.end()
                self._drop_portal("")
                return QueryAsked(text)
            case b"P":
                return self._parse(data)
            case b"B":
                return self._bind(data)
            case b"D":
                kind, name = reader.byte(), reader.text()
                if kind == b"S":
                    return DescribeStatementAsked(self._statement(name))
                return DescribePortalAsked(self._portal(name))
            case b"E":
                name, row_limit = reader.text(), reader.int32()
                return ExecuteAsked(self._portal(name), max(0, row_limit))
            case b"C":
                kind, name = reader.byte(), reader.text()
                if kind == b"S":
                    self._statements.pop(name, None)
                else:
                    self._drop_portal(name)
                self.say(messages.CLOSE_COMPLETE)
            case b"S":
                self._skips_to_sync = False
                self._end_statement()
            case b"H" | b"d" | b"c" | b"f":
                pass  # output is flushed before more is awaited; there is no COPY
            case b"X":
                self.end()
                return Ended()
            case b"F":
                raise SQLError("0A000", "calls of functions are not supported")
            case _:
                raise SQLError("08P01", f"there is no message of type {kind!r}")
        return _NOTHING

    def _parse(self, data: bytes) -> Step:
        name, text, oids = messages.parse_parse(data)
        if name in self._statements and name:
            raise SQLError("42P05", f'prepared statement "{name}" already exists')
        if len(self._statements) >= _STATEMENT_COUNT_MAX:
            raise SQLError(
                "54000",
                f"there are {_STATEMENT_COUNT_MAX} prepared statements already",
                "DEALLOCATE some",
            )
        self._statements.pop(name, None)
        kept = sum(size for _, size in self._statements.values())
        if kept + len(text) > _STATEMENT_SIZE_MAX:
            raise SQLError(
                "54000",
                f"prepared statements have {kept:,} characters, with this one they "
                f"would have more than {_STATEMENT_SIZE_MAX:,}",
                "DEALLOCATE some",
            )
        self._name = name
        self._size = len(text)
        return ParseAsked(name, text, oids)

    def _bind(self, data: bytes) -> Step:
        bind = messages.parse_bind(data)
        statement = self._statement(bind.statement)
        if bind.portal:
            if bind.portal in self._portals:
                raise SQLError("42P03", f'portal "{bind.portal}" already exists')
            if len(self._portals) >= _PORTAL_COUNT_MAX:
                raise SQLError(
                    "54000", f"there are {_PORTAL_COUNT_MAX} portals already"
                )
        else:
            self._drop_portal("")
        return BindAsked(bind, statement)

    def _statement(self, name: str) -> Any:
        try:
            return self._statements[name][0]
        except KeyError:
            raise SQLError(
                "26000", f'prepared statement "{name}" does not exist'
            ) from None

    def _portal(self, name: str) -> Any:
        try:
            return self._portals[name]
        except KeyError:
            raise SQLError("34000", f'portal "{name}" does not exist') from None

    def _end_statement(self) -> None:
        """Say that the next may come; outside of a transaction portals end."""
        if self.transaction == b"I":
            self._close_portals()
        self.say(messages.ready(self.transaction))

    def _close_portals(self) -> None:
        self.closed_portals += self._portals.values()
        self._portals.clear()

    def _drop_portal(self, name: str) -> None:
        portal = self._portals.pop(name, None)
        if portal is not None:
            self.closed_portals.append(portal)


@final
class _Nothing:
    """A message that was dealt with."""


_NOTHING: Final = _Nothing()


def parse_parameters(reader: FieldReader) -> dict[str, str]:
    """
    Return the parameters of the first message.

    Raises:
        SQLError: If there is no user.
    """
    parameters = messages.parse_startup(reader)
    if not parameters.get("user"):
        raise SQLError("28000", "no user name: name any, e.g. psql -U anybody")
    return parameters
