"""
Who may do what: principals, their roles and the allow-list; pure.

The allow-list is a TOML file.  A client is known by its CURVE public key alone; its
name is for logs and operators::

    [clients.collector-1]
    public_key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    roles = ["contend:flights"]

    [clients.operator]
    public_key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    roles = ["admin"]

Roles:

``observe``
    May ask who leads, and be told of changes.
``observe:GLOB``
    May ask so about the components that GLOB matches only.  A client with such a role
    sees what its globs match, those of ``contend:`` included, and learns nothing of
    anything else, not even that it exists.
``contend:GLOB``
    May also contend for the components that GLOB matches; without an ``observe:GLOB``
    it may observe all.  Without a ``/`` the glob, of either role, is
    about the component id, in any cluster; ``CLUSTER/COMPONENT`` is about both, each
    side on its own: no wildcard reaches across the ``/``.  ``*``, ``?`` and ``[…]``
    mean what they mean in a shell; case counts.
``admin``
    May do everything, operators' verbs included.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, final

import attrs

from nameservice import ConfigurationError
from nameservice.toml import parse_toml


__all__ = [
    "ANONYMOUS",
    "PUBLIC_KEY_LENGTH",
    "AllowList",
    "Principal",
    "is_z85_key",
    "parse_allow_list",
]

PUBLIC_KEY_LENGTH: Final = 40
"""Characters of a CURVE key in Z85: 32 bytes, five characters for every four."""

_Z85_DIGITS: Final = {
    character: value
    for value, character in enumerate(
        "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
        ".-:+=^!/*?&<>()[]{}@%$#"
    )
}

_OBSERVE: Final = "observe"
_OBSERVE_SOME: Final = "observe:"
_CONTEND: Final = "contend:"
_ADMIN: Final = "admin"
_ROLES_TEXT: Final = '"observe", "observe:<glob>", "contend:<glob>" or "admin"'


def is_z85_key(text: str) -> bool:
    """
    Return whether *text* is 32 bytes in Z85, as CURVE keys are written.

    Source: ZeroMQ RFC 32; groups of five digits above 2**32 - 1 stand for nothing.
    """
    if len(text) != PUBLIC_KEY_LENGTH:
        return False
    for start in range(0, PUBLIC_KEY_LENGTH, 5):
        value = 0
        for character in text[start : start + 5]:
            digit = _Z85_DIGITS.get(character)
            if digit is None:
                return False
            value = value * 85 + digit
        if value > 0xFFFF_FFFF:
            return False
    return True


@final
@attrs.frozen
class _Glob:
    """The components of one role, taken apart; *cluster* ``*`` means any."""

    cluster: str
    component: str

    def matches(self, cluster_id: str, component_id: str) -> bool:
        return fnmatchcase(cluster_id, self.cluster) and fnmatchcase(
            component_id, self.component
        )


def _parse_glob(role: str) -> _Glob:
    """Return the parts of *role*; a `ConfigurationError` says what is wrong with it."""
    verb, _, glob = role.partition(":")
    parts = glob.split("/")
    if len(parts) > 2 or not all(parts):
        raise ConfigurationError(
            f"role {role!r} must be {verb}:COMPONENT or {verb}:CLUSTER/COMPONENT, "
            "where each may hold * ? and […]"
        )
    return _Glob("*" if len(parts) == 1 else parts[0], parts[-1])


def _check_roles(roles: frozenset[str]) -> frozenset[str]:
    """Return *roles* if each is a role that we know."""
    if not roles:
        raise ConfigurationError(f"roles must hold at least one of {_ROLES_TEXT}")
    for role in sorted(roles):
        if role.startswith((_CONTEND, _OBSERVE_SOME)):
            _parse_glob(role)
        elif role not in {_OBSERVE, _ADMIN}:
            raise ConfigurationError(f"role {role!r} must be {_ROLES_TEXT}")
    return roles


def _matches(globs: tuple[_Glob, ...], component: str) -> bool:
    """Return whether *component* is one, and one of *globs* matches it."""
    cluster_id, separator, component_id = component.partition("/")
    if not (cluster_id and separator and component_id) or "/" in component_id:
        return False
    return any(glob.matches(cluster_id, component_id) for glob in globs)


@final
@attrs.frozen(kw_only=True)
class Principal:
    """
    Somebody who may ask something of a server.

    Attributes:
        name: For logs and operators; not an identity.
        roles: As written in the allow-list; at least one.
        observes_all: Whether it may be told of every component.
        public_key: The CURVE key in Z85 that identifies its holder, or None where
            the server does not use CURVE.

    Raises:
        ConfigurationError: If a role is none that we know.
    """

    name: str
    roles: frozenset[str] = attrs.field(converter=_check_roles)
    public_key: str | None
    is_admin: bool = attrs.field(init=False, eq=False, repr=False)
    observes_all: bool = attrs.field(init=False, eq=False, repr=False)
    _globs: tuple[_Glob, ...] = attrs.field(init=False, eq=False, repr=False)
    _seen_globs: tuple[_Glob, ...] = attrs.field(init=False, eq=False, repr=False)

    @is_admin.default
    def _find_admin(self) -> bool:
        return _ADMIN in self.roles

    @observes_all.default
    def _find_observes_all(self) -> bool:
        return (
            _ADMIN in self.roles
            or _OBSERVE in self.roles
            or not any(role.startswith(_OBSERVE_SOME) for role in self.roles)
        )

    @_globs.default
    def _find_globs(self) -> tuple[_Glob, ...]:
        roles = sorted(role for role in self.roles if role.startswith(_CONTEND))
        return tuple(map(_parse_glob, roles))

    @_seen_globs.default
    def _find_seen_globs(self) -> tuple[_Glob, ...]:
        return tuple(
            _parse_glob(role)
            for role in sorted(self.roles)
            if role.startswith((_CONTEND, _OBSERVE_SOME))
        )

    @property
    def may_observe(self) -> bool:
        """Return whether this principal may ask who leads; every role includes it."""
        return bool(self.roles)

    def may_see(self, component: str) -> bool:
        """
        Return whether this principal may be told of *component*.

        Args:
            component: ``CLUSTER/COMPONENT``, as names are on the wire.
        """
        return self.observes_all or _matches(self._seen_globs, component)

    def includes(self, other: Principal) -> bool:
        """Return whether all that *other* may, this principal may for certain."""
        if self.is_admin:
            return True
        return (
            other.roles <= self.roles
            # A glob more may be less: the first ``observe:GLOB`` takes the rest away.
            and (self.observes_all or not other.observes_all)
        )

    def may_contend(self, component: str) -> bool:
        """
        Return whether this principal may contend for *component*.

        Args:
            component: ``CLUSTER/COMPONENT``, as names are on the wire.  Text of any
                other form is no component: only an admin may contend for it, and
                the server then refuses it as malformed.
        """
        if self.is_admin:
            return True
        return _matches(self._globs, component)


ANONYMOUS: Final = Principal(
    name="anonymous", roles=frozenset({_ADMIN}), public_key=None
)
"""A client of a server that does not use CURVE: it may do everything."""


def _check_principals(principals: tuple[Principal, ...]) -> tuple[Principal, ...]:
    """Return *principals* if each has a key of its own and a name of its own."""
    name_of_key: dict[str, str] = {}
    names: set[str] = set()
    for principal in principals:
        key = principal.public_key
        if key is None or not is_z85_key(key):
            raise ConfigurationError(
                f"public_key of client {principal.name!r} must be the "
                f"{PUBLIC_KEY_LENGTH} characters that its .key file holds"
            )
        if key in name_of_key:
            raise ConfigurationError(
                f"clients {name_of_key[key]!r} and {principal.name!r} have the same "
                "public_key: join them, or make a key for each"
            )
        if principal.name in names:
            raise ConfigurationError(f"client {principal.name!r} is listed twice")
        name_of_key[key] = principal.name
        names.add(principal.name)
    return principals


@final
@attrs.frozen
class AllowList:
    """
    The clients that a CURVE server admits; all others are refused.

    Raises:
        ConfigurationError: If a key is missing, malformed or listed twice.
    """

    principals: tuple[Principal, ...] = attrs.field(converter=_check_principals)
    _by_key: dict[str, Principal] = attrs.field(init=False, eq=False, repr=False)

    @_by_key.default
    def _index(self) -> dict[str, Principal]:
        return {
            principal.public_key: principal
            for principal in self.principals
            if principal.public_key is not None
        }

    def get(self, public_key: str) -> Principal | None:
        """Return who holds *public_key* (Z85), or None if it is not on the list."""
        return self._by_key.get(public_key)


def _parse_client(name: str, table: object) -> Principal:
    """Return the principal that ``[clients.NAME]`` describes."""
    if not isinstance(table, dict):
        raise ConfigurationError(f"clients.{name} must be a table: [clients.{name}]")
    unknown = sorted(table.keys() - {"public_key", "roles"})
    if unknown:
        raise ConfigurationError(
            f"client {name!r} has {', '.join(unknown)}: "
            "only public_key and roles are known here"
        )
    if not name or not name.isprintable():
        raise ConfigurationError(f"client name {name!r} must be printable text")
    public_key = table.get("public_key")
    if not isinstance(public_key, str):
        raise ConfigurationError(f"client {name!r} needs public_key, as text")
    roles = table.get("roles")
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise ConfigurationError(
            f"client {name!r} needs roles, a list of {_ROLES_TEXT}"
        )
    try:
        return Principal(name=name, roles=frozenset(roles), public_key=public_key)
    except ConfigurationError as exc:
        raise ConfigurationError(f"client {name!r}: {exc}") from exc


def _parse_document(document: dict[str, object]) -> AllowList:
    """Return the allow-list that a whole TOML document describes."""
    unknown = sorted(document.keys() - {"clients"})
    if unknown:
        raise ConfigurationError(
            f"{', '.join(unknown)} is not known here: write [clients.NAME] tables"
        )
    clients = document.get("clients")
    if not isinstance(clients, dict) or not clients:
        raise ConfigurationError(
            "it is empty: write a [clients.NAME] table for each client"
        )
    return AllowList(
        tuple(_parse_client(name, table) for name, table in clients.items())
    )


def parse_allow_list(text: str, *, source: str) -> AllowList:
    """
    Return the allow-list that *text* describes in TOML.

    Args:
        text: What the file holds; see the module docstring.
        source: How errors name it, e.g. the file's path.

    Raises:
        ConfigurationError: If *text* is not such a list, or is empty: a server
            that admits no client is a mistake.  Never quotes a key.
    """
    try:
        document = parse_toml(text)
    except ValueError as exc:
        raise ConfigurationError(
            f"allow-list {source} is not valid TOML: {exc}"
        ) from exc
    try:
        return _parse_document(document)
    except ConfigurationError as exc:
        raise ConfigurationError(f"allow-list {source}: {exc}") from exc
