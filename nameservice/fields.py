"""
What every field of a public call may hold; pure.

This is the one place that knows.  Every public call on every backend passes what it is
given through here before anything is sent, and the wire format
(leaderserver/message_parts) takes its own limits from the constants below.  So what is
admitted here, every codec encodes, and what is not is refused before anything is sent.

Each function returns its argument as the exact builtin type.  Subclasses
(``numpy.str_``, an enumeration of strings, ``numpy.bytes_``, ``IntEnum``) are harmless
as values and fatal in an encoder, so they are turned into what they say.  The same
holds for integers that are no `int` (``numpy.int64``), and for buffers: a ``bytearray``
or a ``memoryview`` is copied, so that a later change of it changes nothing that is
being sent.  `bool` is no number here.  Everything else is refused with a
`ConfigurationError` that says what to pass instead.
"""

from __future__ import annotations

import contextlib
import operator
from typing import Final
from uuid import UUID

from nameservice.errors import ConfigurationError


__all__ = [
    "ADDRESS_LENGTH_MAX",
    "CLIENT_NAME_LENGTH_MAX",
    "COMPONENT_ID_LENGTH_MAX",
    "IDENTIFIER_LENGTH_MAX",
    "INTEGER_MAX",
    "STORE_PATH_LENGTH_MAX",
    "as_client_name",
    "check_address",
    "check_epoch",
    "check_identifier",
    "check_leader_session_id",
    "check_name",
    "check_store_path",
    "check_store_prefix",
    "check_text",
    "check_value",
    "check_version",
    "value_size_bytes",
]

COMPONENT_ID_LENGTH_MAX: Final = 255
"""Characters of a component id, a cluster id, or the name of an embedded service."""

IDENTIFIER_LENGTH_MAX: Final = 64
"""Characters of a contender id or a session id."""

ADDRESS_LENGTH_MAX: Final = 1024
"""Characters of an address."""

STORE_PATH_LENGTH_MAX: Final = 255
"""Characters of a path, or of a prefix, of the leader store."""

CLIENT_NAME_LENGTH_MAX: Final = 255
"""Characters of what a client calls itself."""

INTEGER_MAX: Final = 2**63 - 1
"""The highest epoch, and the highest version; what every backend can carry."""

_SHOWN_LENGTH_MAX: Final = 100


def check_text(value: object, *, what: str) -> str:
    """
    Return *value* as an exact `str`.

    Args:
        value: A string, or of a subclass.
        what: How the error names it, e.g. ``"an address"``.

    Raises:
        ConfigurationError: If it is no string at all.
    """
    if not isinstance(value, str):
        message = f"{what} must be text, not {type(value).__name__}"
        raise ConfigurationError(message)
    return str.__str__(value)


def check_name(value: object, *, what: str) -> str:
    """
    Return *value* as a name: 1 to 255 printable characters, without ``/``.

    Raises:
        ConfigurationError: If it is none.
    """
    text = check_text(value, what=what)
    if not 1 <= len(text) <= COMPONENT_ID_LENGTH_MAX:
        message = (
            f"{what} must have 1 to {COMPONENT_ID_LENGTH_MAX} characters, "
            f"not {len(text)}"
        )
        raise ConfigurationError(message)
    if "/" in text or not text.isprintable():
        message = f"{what} must be printable and without '/', not {text!r}"
        raise ConfigurationError(message)
    return text


def check_identifier(value: object, *, what: str) -> str:
    """
    Return *value* as the id of a session or a contender: 1 to 64 printable characters.

    Raises:
        ConfigurationError: If it is none.
    """
    return _check_printable(value, what=what, length_max=IDENTIFIER_LENGTH_MAX)


def check_address(value: object) -> str:
    """
    Return *value* as an address: 1 to 1,024 printable characters.

    Raises:
        ConfigurationError: If it is none.
    """
    return _check_printable(value, what="an address", length_max=ADDRESS_LENGTH_MAX)


def check_store_path(value: object) -> str:
    """
    Return *value* as a path of the leader store: 1 to 255 printable characters.

    Raises:
        ConfigurationError: If it is none.
    """
    return _check_printable(
        value, what="a store path", length_max=STORE_PATH_LENGTH_MAX
    )


def check_store_prefix(value: object) -> str:
    """
    Return *value* as a prefix of store paths: up to 255 printable characters.

    Raises:
        ConfigurationError: If it is none.
    """
    text = check_text(value, what="a prefix of store paths")
    return check_store_path(text) if text else ""


def check_version(value: object) -> int | None:
    """
    Return *value* as a version of the leader store: None, or 0 to 2^63 - 1.

    Raises:
        ConfigurationError: If it is none.
    """
    if value is None:
        return None
    return _check_integer(value, what="a version")


def check_epoch(value: object) -> int:
    """
    Return *value* as an epoch: 0 to 2^63 - 1.

    Granted epochs begin at 1.  0 is admitted since it harms nothing: it never leads.

    Raises:
        ConfigurationError: If it is none.
    """
    return _check_integer(value, what="an epoch")


def check_leader_session_id(value: object) -> UUID:
    """
    Return *value* as the id of a leadership, an exact `UUID`.

    Raises:
        ConfigurationError: If it is no UUID.
    """
    if not isinstance(value, UUID):
        message = (
            "a leader_session_id is the UUID that was granted, "
            f"not {type(value).__name__}: pass session.leader_session_id"
        )
        raise ConfigurationError(message)
    return value if type(value) is UUID else UUID(int=value.int)


def value_size_bytes(value: object) -> int:
    """
    Return how many bytes *value* has, before it is copied.

    Raises:
        ConfigurationError: If it cannot be a value of the leader store.
    """
    if isinstance(value, bytes):
        return bytes.__len__(value)
    if isinstance(value, bytearray | memoryview):
        try:
            return memoryview(value).nbytes
        except ValueError as error:  # it was released
            message = f"a value is bytes, and this buffer has none: {error}"
            raise ConfigurationError(message) from error
    message = f"a value is bytes, not {type(value).__name__}: encode it first"
    raise ConfigurationError(message)


def check_value(value: object) -> bytes:
    """
    Return *value* as exact `bytes`: a copy, unless it is that already.

    Raises:
        ConfigurationError: If it cannot be a value of the leader store.
    """
    if type(value) is bytes:
        return value
    value_size_bytes(value)
    if isinstance(value, bytes):
        return b"".join((value,))  # whatever a subclass says of itself
    assert isinstance(value, bytearray | memoryview)
    return bytes(value)


def as_client_name(text: str) -> str:
    """Return *text* as what a client calls itself: printable, and short enough."""
    shown = "".join(c if c.isprintable() else "?" for c in str.__str__(text))
    return shown[:CLIENT_NAME_LENGTH_MAX]


def _check_printable(value: object, *, what: str, length_max: int) -> str:
    if isinstance(value, str):
        text = str.__str__(value)
        if 1 <= len(text) <= length_max and text.isprintable():
            return text
        shown = f"{len(text):,} of them" if len(text) > length_max else repr(text)
    else:
        shown = _show(value)
    message = f"{what} is 1 to {length_max:,} printable characters, not {shown}"
    raise ConfigurationError(message)


def _check_integer(value: object, *, what: str) -> int:
    if type(value) is int and 0 <= value <= INTEGER_MAX:
        return value
    number = -1
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            number = int.__index__(operator.index(value))  # type: ignore[arg-type]
    if not 0 <= number <= INTEGER_MAX:
        message = (
            f"{what} is a whole number from 0 to {INTEGER_MAX}, not {_show(value)}"
        )
        raise ConfigurationError(message)
    return number


def _show(value: object) -> str:
    """Return *value* for a person, however large it is."""
    try:
        shown = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        shown = f"a much larger {type(value).__name__}"
    return shown if len(shown) <= _SHOWN_LENGTH_MAX else f"{shown[:_SHOWN_LENGTH_MAX]}…"
