"""
The file of ``lodestar proxy --config-file``: TOML to `ProxyConfig` and back (C4); pure.

Settings stand at the top under their own names; then come ``[callers.NAME]`` tables and
``[[rate_limits]]`` and ``[[cache]]`` rules, whose keys are the attributes of
`CallerEntry`, `RateLimitRule` and `CacheRule`.  What `print_config` writes, parses back
to the same configuration.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs

from nameservice import ConfigurationError
from nameservice.settings import check_renamed
from nameservice.toml import parse_toml
from queryablestate.proxy.access import AccessList, CallerEntry
from queryablestate.proxy.cache import CacheRule
from queryablestate.proxy.config import RENAMED, ProxyConfig
from queryablestate.proxy.rate_limit import RateLimitRule, RateLimitScope


__all__ = ["parse_proxy_config", "print_config"]

_Entry = TypeVar("_Entry", CallerEntry, RateLimitRule, CacheRule)

_LINE_LENGTH_MAX: Final = 80
_BARE_KEY: Final = re.compile("[A-Za-z0-9_-]+")

_CALLERS: Final = "callers"
_RATE_LIMITS: Final = "rate_limits"
_CACHE: Final = "cache"
_ACCESS: Final = "access"
_TABLES: Final = (_CALLERS, _RATE_LIMITS, _CACHE)

_SETTINGS: Final = tuple(
    attribute
    for attribute in attrs.fields(ProxyConfig)
    if attribute.name not in {_ACCESS, _RATE_LIMITS, _CACHE}
)

# Placeholders, where a credential stands: who only takes the # away is told so.
_EXAMPLES: Final = {
    _CALLERS: """\
[callers.dashboard]
token_sha256 = "64 hexadecimal digits"
read = ["flights/*", "*/aircraft"]

[callers.flights-job]
public_key = "40 characters, from the .key file of this caller"
write = ["flights/*"]

[callers.node]
token_sha256 = "64 hexadecimal digits"
node = true
""",
    _RATE_LIMITS: """\
[[rate_limits]]
scope = "caller"
caller = "dashboard"
state = "*/*"
keys_per_second = 10_000
burst = 20_000

[[rate_limits]]
scope = "state"
state = "flights/aircraft"
keys_per_second = 100_000
""",
    _CACHE: """\
[[cache]]
state = "flights/*"
ttl_seconds = 2.0
""",
}


def parse_proxy_config(
    text: str, *, source: str, overrides: Mapping[str, object] | None = None
) -> ProxyConfig:
    """
    Return the configuration that *text* describes.

    Args:
        text: What the file holds; an empty one means the defaults.
        source: How errors name it, e.g. the file's path.
        overrides: Settings by name that outweigh those of the file.

    Raises:
        ConfigurationError: Says what to change.  Never quotes a credential.
    """
    try:
        document = parse_toml(text)
    except ValueError as exc:
        raise ConfigurationError(f"{source} is not valid TOML: {exc}") from exc
    try:
        return _parse_document(document, overrides or {})
    except ConfigurationError as exc:
        raise ConfigurationError(f"{source}: {exc}") from exc


def print_config(config: ProxyConfig) -> str:
    """Return *config* as a TOML file that says what each setting means."""
    return "\n".join(_lines(config)) + "\n"


def _parse_document(
    document: dict[str, Any], overrides: Mapping[str, object]
) -> ProxyConfig:
    """Return the configuration that a whole document describes."""
    names = {attribute.name for attribute in _SETTINGS}
    check_renamed(document, RENAMED)
    _check_known("", document, {*names, *_TABLES})
    settings: dict[str, Any] = {
        name: value for name, value in document.items() if name in names
    }
    if _CALLERS in document:
        settings[_ACCESS] = _parse_callers(document[_CALLERS])
    if _RATE_LIMITS in document:
        settings[_RATE_LIMITS] = _parse_rules(
            RateLimitRule, _RATE_LIMITS, document[_RATE_LIMITS]
        )
    if _CACHE in document:
        settings[_CACHE] = _parse_rules(CacheRule, _CACHE, document[_CACHE])
    return ProxyConfig(**{**settings, **overrides})


def _parse_callers(tables: object) -> AccessList:
    if not isinstance(tables, dict):
        raise ConfigurationError(
            f"{_CALLERS} must be tables: [callers.NAME] for each caller"
        )
    return AccessList(
        callers=tuple(
            _parse_entry(CallerEntry, f"caller {name!r}", table, {"name": name})
            for name, table in tables.items()
        )
    )


def _parse_rules(kind: type[_Entry], name: str, tables: object) -> tuple[_Entry, ...]:
    if not isinstance(tables, list):
        raise ConfigurationError(f"{name} must be tables: [[{name}]] for each rule")
    return tuple(
        _parse_entry(kind, f"rule {number} of {name}", table, {})
        for number, table in enumerate(tables, start=1)
    )


def _parse_entry(
    kind: type[_Entry], where: str, table: object, given: dict[str, Any]
) -> _Entry:
    """Return what one table describes; errors begin with *where*."""
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} must be a table, not {table!r}")
    attributes = [
        attribute
        for attribute in attrs.fields(kind)
        if attribute.init and attribute.name not in given
    ]
    _check_known(f"{where}: ", table, {attribute.name for attribute in attributes})
    missing = [
        attribute.name
        for attribute in attributes
        if attribute.default is attrs.NOTHING and attribute.name not in table
    ]
    if missing:
        raise ConfigurationError(f"{where} must say {' and '.join(missing)}")
    try:
        return kind(**{**given, **table})
    except ConfigurationError as exc:
        raise ConfigurationError(f"{where}: {exc}") from exc


def _check_known(
    where: str, table: Mapping[str, object], known: Collection[str]
) -> None:
    """Refuse a name in *table* that is not among *known*, and say what may be meant."""
    for name in table:
        if name in known:
            continue
        if any(name == attribute.name for attribute in _SETTINGS):
            hint = "it is about all of the proxy: move it above the first [table]"
        else:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = (
                f"did you mean {close[0]}?"
                if close
                else f"known are {', '.join(sorted(known))}"
            )
        raise ConfigurationError(f"{where}there is no setting {name!r} here: {hint}")


def _lines(config: ProxyConfig) -> Iterator[str]:
    yield from _comment(
        "The configuration of 'lodestar proxy --config-file'. A running proxy reads it "
        "again on SIGHUP; a file with a mistake changes nothing. Times are in seconds, "
        "sizes in bytes."
    )
    for attribute in _SETTINGS:
        yield ""
        yield from _about(attribute)
        value = getattr(config, attribute.name)
        if value is None:
            yield f"# {attribute.name} = {_value(attribute.metadata['example'])}"
        else:
            yield f"{attribute.name} = {_value(value)}"
    yield from _section(_ACCESS, _CALLERS)
    for entry in config.access.callers or ():
        yield from ("", f"[{_CALLERS}.{_key(entry.name)}]", *_pairs(entry))
    yield from _section(_RATE_LIMITS, _RATE_LIMITS)
    for limit in config.rate_limits:
        yield from ("", f"[[{_RATE_LIMITS}]]", *_pairs(limit))
    yield from _section(_CACHE, _CACHE)
    for rule in config.cache:
        yield from ("", f"[[{_CACHE}]]", *_pairs(rule))


def _section(name: str, table: str) -> Iterator[str]:
    """Yield what is said before the tables of the setting *name*."""
    yield ""
    yield from _about(attrs.fields_dict(ProxyConfig)[name])
    yield "#"
    yield from (f"# {line}".rstrip() for line in _EXAMPLES[table].splitlines())


def _about(attribute: attrs.Attribute[Any]) -> list[str]:
    """Return the comment of a setting."""
    restart = "" if attribute.metadata["is_reloadable"] else " Takes a restart."
    return _comment(attribute.metadata["comment"] + restart)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _LINE_LENGTH_MAX - 2)]


def _pairs(entry: _Entry) -> Iterator[str]:
    """Yield the keys and values of a table; a caller's name is in its header."""
    for attribute in attrs.fields(type(entry)):
        value = getattr(entry, attribute.name)
        if attribute.init and attribute.name != "name" and value is not None:
            yield f"{attribute.name} = {_value(value)}"


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _quote(name)


def _value(value: object) -> str:
    """Return *value* as TOML writes it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:_}"
        case float():
            return repr(value)
        case tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case RateLimitScope():
            return _quote(value.value)
        case _:
            return _quote(str(value))


def _quote(text: str) -> str:
    """Return *text*, which is printable, as a basic string."""
    assert text.isprintable()
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
