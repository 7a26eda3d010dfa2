"""
Who may ask what of a proxy: callers, their credentials and their rights (C1); pure.

Theory of operation.  A caller shows a credential once, when it opens a session: a
token, or the CURVE key that it has proved to hold.  `AccessList.authenticate` tells who
that is; the `Caller` that it returns is kept with the session, and every request is
judged by `AccessList.may`.  Rights are looked up in the list of the moment, so that a
new list holds for open sessions too: a caller that was taken off, or whose credential
was replaced, may do nothing from then on, and is none (`AccessList.knows`).

Judge a request *before* looking whether the job or state exists: who is refused learns
nothing about what there is.

Only the SHA-256 of a token is ever kept.  A token is random and long, so that its hash
needs no salt and no slowness; it is compared with every hash of the list, each time in
constant time.  Neither tokens nor their hashes appear in a ``repr``.
"""

from __future__ import annotations

import enum
import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, assert_never, final

import attrs

from nameservice import ConfigurationError, check_component_id
from queryablestate.proxy.state_glob import StateGlob, to_state_glob
from queryablestate.wire.clients import TOKEN_LENGTH_MAX
from queryablestate.wire.direct import NAMELESS_CALLER
from zmqtransport.access import PUBLIC_KEY_LENGTH, AllowList, Principal, is_z85_key


__all__ = [
    "ANONYMOUS_CALLER",
    "AccessList",
    "Caller",
    "CallerEntry",
    "Right",
    "open_access",
    "token_sha256",
]

_GLOB_COUNT_MAX: Final = 1_000
_CALLER_COUNT_MAX: Final = 10_000
_SHA256: Final = re.compile("[0-9a-f]{64}")


def token_sha256(token: str) -> str:
    """Return what an access list holds in place of *token*: 64 hexadecimal digits."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


_EMPTY_TOKEN_SHA256: Final = token_sha256("")


@final
class Right(enum.Enum):
    """What a caller may be allowed to do."""

    READ = "read"
    """Ask a state, and see that it is there."""

    WRITE = "write"
    """Publish a state."""

    ADMIN = "admin"
    """Drop states; this right includes all others."""

    NODE = "node"
    """Join as a node, and be given state to keep."""


@final
@attrs.frozen(kw_only=True)
class Caller:
    """
    Who asks, as far as the proxy can tell; made by `AccessList.authenticate`.

    Attributes:
        name: Of its entry in the list; rate limits and logs go by it.
        is_anonymous: Whether it proved nothing, because it need not.
        credential: What it proved: the hash of its token, or its key.  Once its entry
            has another one, it has to open a new session.
    """

    name: str
    is_anonymous: bool = False
    credential: str = attrs.field(default="", repr=False)


ANONYMOUS_CALLER: Final = Caller(name=NAMELESS_CALLER, is_anonymous=True)
"""Every client that connects where access is open."""


def _to_globs(name: str, value: Iterable[StateGlob | str]) -> tuple[StateGlob, ...]:
    """Return the globs of the setting *name*: a list of them, or of their texts."""
    if not isinstance(value, list | tuple):
        raise ConfigurationError(
            f'{name} must be a list of globs, e.g. ["flights/*"], not {value!r}'
        )
    if len(value) > _GLOB_COUNT_MAX:
        raise ConfigurationError(
            f"{name} must be at most {_GLOB_COUNT_MAX:,} globs, "
            f"not {len(value):,}: use wildcards"
        )
    try:
        return tuple(to_state_glob(glob) for glob in value)
    except ConfigurationError as exc:
        raise ConfigurationError(f"{name}: {exc}") from exc


def _to_read(value: Iterable[StateGlob | str]) -> tuple[StateGlob, ...]:
    return _to_globs("read", value)


def _to_write(value: Iterable[StateGlob | str]) -> tuple[StateGlob, ...]:
    return _to_globs("write", value)


def _check_flag(_: object, attribute: attrs.Attribute[bool], value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{attribute.name} must be true or false: {value!r}")


@final
@attrs.frozen(kw_only=True)
class CallerEntry:
    """
    What the list says of one caller: one credential, and at least one right.

    Attributes:
        name: For logs and rate limits; 1 to 255 printable characters without ``/``.
        token_sha256: `token_sha256` of its token, or None if it has a key.
        public_key: Its CURVE key in Z85, or None if it has a token.
        read: The states that it may ask.
        write: The states that it may publish.
        admin: Whether it may drop states, and do everything else.
        node: Whether it may join as a node.
        credential: Its *token_sha256* or its *public_key*.

    Raises:
        ConfigurationError: On construction; says what to change, and quotes neither
            hash nor key.
    """

    name: str
    token_sha256: str | None = attrs.field(default=None, repr=False)
    public_key: str | None = attrs.field(default=None, repr=False)
    read: tuple[StateGlob, ...] = attrs.field(default=(), converter=_to_read)
    write: tuple[StateGlob, ...] = attrs.field(default=(), converter=_to_write)
    admin: bool = attrs.field(default=False, validator=_check_flag)
    node: bool = attrs.field(default=False, validator=_check_flag)
    credential: str = attrs.field(init=False, eq=False, repr=False)

    @credential.default
    def _find_credential(self) -> str:
        return self.token_sha256 or self.public_key or ""

    def __attrs_post_init__(self) -> None:
        check_component_id(self.name, what="the name of a caller")
        if self.name == NAMELESS_CALLER:
            raise ConfigurationError(
                f"the name {NAMELESS_CALLER!r} is for callers without a credential: "
                "choose another"
            )
        self._check_credential()
        if not (self.read or self.write or self.admin or self.node):
            raise ConfigurationError(
                "it may do nothing: give it read, write, admin or node"
            )

    def _check_credential(self) -> None:
        if (self.token_sha256 is None) == (self.public_key is None):
            raise ConfigurationError(
                "it must have either token_sha256 or public_key: one credential"
            )
        if self.token_sha256 is not None:
            _check_hash(self.token_sha256)
        elif not isinstance(self.public_key, str) or not is_z85_key(self.public_key):
            raise ConfigurationError(
                f"public_key must be the {PUBLIC_KEY_LENGTH} characters that the "
                "caller's .key file holds"
            )


def _check_hash(text: object) -> None:
    """Refuse what is not the SHA-256 of a token."""
    if not isinstance(text, str) or not _SHA256.fullmatch(text):
        raise ConfigurationError(
            "token_sha256 must be the SHA-256 of the token in 64 hexadecimal digits, "
            "in lower case"
        )
    if text == _EMPTY_TOKEN_SHA256:
        raise ConfigurationError("token_sha256 is that of an empty token: make one")


def _to_entries(value: Iterable[CallerEntry] | None) -> tuple[CallerEntry, ...] | None:
    """Return *value* as a tuple; None is no list at all."""
    return None if value is None else tuple(value)


@final
@attrs.frozen(kw_only=True)
class AccessList:
    """
    Who may ask what; the same for every thread, since nothing in it changes.

    Attributes:
        callers: One entry per caller, or None: all that may connect may do everything.

    Raises:
        ConfigurationError: If the list is empty, or two entries have the same name or
            credential.
    """

    callers: tuple[CallerEntry, ...] | None = attrs.field(converter=_to_entries)
    _by_name: dict[str, CallerEntry] = attrs.field(init=False, eq=False, repr=False)

    @_by_name.default
    def _index(self) -> dict[str, CallerEntry]:
        return {entry.name: entry for entry in self.callers or ()}

    def __attrs_post_init__(self) -> None:
        if self.callers is None:
            return
        if not self.callers:
            raise ConfigurationError(
                "callers is empty, so that no question would be answered: write a "
                "[callers.NAME] table for each, or leave callers out to let all in"
            )
        if len(self.callers) > _CALLER_COUNT_MAX:
            raise ConfigurationError(
                f"callers must be at most {_CALLER_COUNT_MAX:,}, "
                f"not {len(self.callers):,}"
            )
        if len(self._by_name) < len(self.callers):
            raise ConfigurationError("callers must have different names")
        name_of_credential: dict[str, str] = {}
        for entry in self.callers:
            other = name_of_credential.setdefault(entry.credential, entry.name)
            if other != entry.name:
                raise ConfigurationError(
                    f"callers {other!r} and {entry.name!r} have the same credential: "
                    "join them, or give each its own"
                )

    @property
    def is_open(self) -> bool:
        """Return whether everybody who can connect may do everything."""
        return self.callers is None

    @property
    def is_key_optional(self) -> bool:
        """Return whether somebody whose CURVE key is not listed may be a caller."""
        return self.callers is None or any(
            entry.token_sha256 is not None for entry in self.callers
        )

    def allow_list(self) -> AllowList | None:
        """
        Return the callers with a CURVE key, as `zmqtransport.Authenticator` takes them.

        The role of each is ``observe``, which means nothing here.  None if no caller
        has a key.
        """
        principals = tuple(
            Principal(
                name=entry.name,
                roles=frozenset({"observe"}),
                public_key=entry.public_key,
            )
            for entry in self.callers or ()
            if entry.public_key is not None
        )
        return AllowList(principals) if principals else None

    def authenticate(
        self, *, token: str | None = None, public_key: str | None = None
    ) -> Caller | None:
        """
        Return who shows these credentials, or None if none on the list does.

        Args:
            token: What the caller sent, if anything.  It outweighs *public_key*: who
                sends a wrong token is refused.
            public_key: The CURVE key in Z85 that the caller has proved to hold, or None
                if the connection does not use CURVE.
        """
        if self.callers is None:
            return ANONYMOUS_CALLER
        found: CallerEntry | None = None
        if token is not None:
            if len(token) > TOKEN_LENGTH_MAX:
                return None
            shown = token_sha256(token)
            for entry in self.callers:  # all of them: the time tells nothing
                if hmac.compare_digest(entry.token_sha256 or "", shown):
                    found = entry
        elif public_key is not None:
            for entry in self.callers:
                if entry.public_key == public_key:
                    found = entry
        if found is None:
            return None
        return Caller(name=found.name, credential=found.credential)

    def may(
        self,
        caller: Caller,
        right: Right,
        job_id: str | None = None,
        state_name: str | None = None,
    ) -> bool:
        """
        Return whether *caller* has *right*, according to this list.

        Args:
            caller: As an access list of this proxy has authenticated it, be it an
                earlier one.
            right: ``READ`` and ``WRITE`` are about states; ``ADMIN`` and ``NODE`` are
                not, and need no names.
            job_id: The job.
            state_name: The state, or None for every state that the job could have.
        """
        if self.callers is None:
            return True
        entry = self._entry_of(caller)
        if entry is None:
            return False
        if entry.admin:
            return True
        match right:
            case Right.READ:
                globs = entry.read
            case Right.WRITE:
                globs = entry.write
            case Right.NODE:
                return entry.node
            case Right.ADMIN:
                return False
            case _:
                assert_never(right)
        assert job_id is not None
        if state_name is None:
            return any(glob.matches_all_of(job_id) for glob in globs)
        return any(glob.matches(job_id, state_name) for glob in globs)

    def knows(self, caller: Caller) -> bool:
        """Return whether *caller* is one still: listed, with the same credential."""
        return self.callers is None or self._entry_of(caller) is not None

    def is_writer(self, caller: Caller) -> bool:
        """Return whether there is any state that *caller* may publish."""
        if self.callers is None:
            return True
        entry = self._entry_of(caller)
        return entry is not None and (entry.admin or bool(entry.write))

    def may_see_job(self, caller: Caller, job_id: str) -> bool:
        """
        Return whether *caller* may read or write some state that the job could have.

        It does not say that the job exists to whom this is true: list a job if it has
        a state that the caller may read.
        """
        if self.callers is None:
            return True
        entry = self._entry_of(caller)
        if entry is None:
            return False
        return entry.admin or any(
            glob.matches_job(job_id) for glob in (*entry.read, *entry.write)
        )

    def _entry_of(self, caller: Caller) -> CallerEntry | None:
        """Return the entry of *caller*, if its credential is still the same."""
        entry = self._by_name.get(caller.name)
        if entry is None or entry.credential != caller.credential:
            return None
        return entry


def open_access() -> AccessList:
    """Return the list under which all that may connect may do everything."""
    return AccessList(callers=None)
