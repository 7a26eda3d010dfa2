"""What a request says: parts of its path, parameters, accepted forms; pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl, unquote_to_bytes

from nameservice.errors import ConfigurationError
from nameservice.fields import check_name
from queryablestate.gateway.problems import GatewayError
from queryablestate.wire.clients import TOKEN_LENGTH_MAX


__all__ = [
    "bearer_token",
    "check_names",
    "flag",
    "listed",
    "parameters_of",
    "path_part",
    "preferred",
    "seconds",
    "whole_number",
]

_PARAMETER_COUNT_MAX: Final = 20
_WHOLE_DIGITS_MAX: Final = 19
_SECONDS_MIN: Final = 0.01
_ACCEPTED_COUNT_MAX: Final = 50
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}


def path_part(raw: str) -> str:
    """
    Return a part of a path as it is meant: percent-encoded UTF-8.

    Raises:
        GatewayError: If it is no UTF-8.
    """
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        raise GatewayError(
            "bad-request", "a part of the path is not percent-encoded UTF-8"
        ) from None


def parameters_of(query: bytes, known: Collection[str]) -> Mapping[str, str]:
    """
    Return the parameters behind the question mark.

    Raises:
        GatewayError: If one is unknown, stands there twice, or is not UTF-8.
    """
    try:
        pairs = parse_qsl(
            query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMETER_COUNT_MAX,
        )
    except (UnicodeDecodeError, ValueError):
        raise GatewayError(
            "bad-request",
            f"the parameters must be percent-encoded UTF-8, {_PARAMETER_COUNT_MAX} at "
            "most",
        ) from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise GatewayError(
                "bad-request",
                f"there is no parameter {name!r} here; there are: {there}",
                members={"parameter": name},
            )
        if name in found:
            raise _wrong(name, "it is given twice")
        found[name] = value
    return found


def whole_number(
    parameters: Mapping[str, str],
    name: str,
    default: int | None,
    *,
    least: int | None = 0,
    most: int = 2**63 - 1,
) -> int | None:
    """
    Return a parameter that is a whole number from *least* to *most*.

    Args:
        parameters: All of them.
        name: Of this one.
        default: What it is if it is not given.
        least: None allows what is below 0, too.
        most: The largest one.

    Raises:
        GatewayError: If it is something else.
    """
    text = parameters.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    is_whole = digits.isascii() and digits.isdigit()
    if is_whole and len(digits) <= _WHOLE_DIGITS_MAX:
        value = int(text)
        if (-most if least is None else least) <= value <= most:
            return value
    if least is None:
        raise _wrong(name, f"it must be a whole number, not {text!r}")
    raise _wrong(
        name, f"it must be a whole number from {least} to {most}, not {text!r}"
    )


def seconds(
    parameters: Mapping[str, str], name: str, default: float, *, most: float
) -> float:
    """Return a parameter that is a time of 10 ms to *most*, or refuse it."""
    text = parameters.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _SECONDS_MIN <= value <= most:
        raise _wrong(
            name, f"it must be seconds from {_SECONDS_MIN:g} to {most:g}, not {text!r}"
        )
    return value


def flag(parameters: Mapping[str, str], name: str) -> bool:
    """Return a parameter that is true or false, false if it is not given."""
    text = parameters.get(name, "false")
    if text not in _FLAGS:
        raise _wrong(name, f"it must be true or false, not {text!r}")
    return _FLAGS[text]


def check_names(job_id: str, state_name: str = "-") -> None:
    """Refuse what no job or state is called; a proxy would not understand it."""
    for what, text in (("job", job_id), ("state", state_name)):
        try:
            check_name(text, what=f"the name of a {what}")
        except ConfigurationError as error:
            raise GatewayError(f"unknown-{what}", str(error)) from None


def bearer_token(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """
    Return the token that a request shows, or None if it shows none.

    Args:
        headers: Names in lower case, and values.

    Raises:
        GatewayError: If it shows something else; the answer does not repeat it.
    """
    shown = [value for name, value in headers if name == b"authorization"]
    if not shown:
        return None
    scheme, _, token = shown[0].partition(b" ")
    token = token.strip()
    is_token = token.isascii() and 1 <= len(token) <= TOKEN_LENGTH_MAX
    text = token.decode("ascii") if is_token else ""
    if (
        len(shown) > 1
        or scheme.lower() != b"bearer"
        or not text.isprintable()
        or (not text)
    ):
        raise GatewayError(
            "not-authenticated",
            "the header must be 'Authorization: Bearer TOKEN', once, with a token of "
            f"1 to {TOKEN_LENGTH_MAX} printable ASCII characters",
        )
    return text


def listed(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    """
    Return the list that a header is, on one line or several (RFC 9110, 5.3), or None.

    Args:
        headers: Names in lower case, and values.
        name: Of the header.
    """
    lines = [value.decode("latin-1") for one, value in headers if one == name]
    return ", ".join(lines) if lines else None


def preferred(accept: str | None, offered: Sequence[str]) -> str | None:
    """
    Return which of *offered* media types a caller wants, or None if it wants none.

    Args:
        accept: The value of the header ``Accept``; None takes the first one.
        offered: Media types, the best one first.
    """
    if accept is None or not accept.strip():
        return offered[0]
    weights: dict[str, float] = {}
    for part in accept.split(",")[:_ACCEPTED_COUNT_MAX]:
        name, *parameters = (one.strip() for one in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.lower().startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        weights[name.lower()] = weight if 0 <= weight <= 1 else 0.0
    best, best_weight = None, 0.0
    for media_type in offered:
        kind = media_type.partition("/")[0]
        for pattern in (media_type, f"{kind}/*", "*/*"):
            if pattern in weights:
                if weights[pattern] > best_weight:
                    best, best_weight = media_type, weights[pattern]
                break
    return best


def _wrong(name: str, what: str) -> GatewayError:
    return GatewayError("bad-request", f"{name}: {what}", members={"parameter": name})
