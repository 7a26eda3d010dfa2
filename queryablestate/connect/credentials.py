"""
What a caller shows the proxy: a token, or CURVE keys, or both.

Credentials travel in the closures of Spark tasks, so they are picklable; what they
hold, or what their files hold, appears in no ``repr`` and in no error.
"""

from __future__ import annotations

import os
import stat
from typing import Final, final

import attrs

from haservices import HAConfig
from nameservice import AuthenticationError, ConfigurationError
from queryablestate.wire.address import StateAddress
from queryablestate.wire.clients import TOKEN_LENGTH_MAX
from zmqtransport import (
    CurveKeyPair,
    Dealer,
    SocketLimits,
    ZMQContext,
    ZMQSocket,
    load_key_files,
    secure_client,
)


__all__ = [
    "NO_CREDENTIALS",
    "Credentials",
    "as_credentials",
    "credentials_of",
    "dealer_to",
    "load_caller_keys",
    "secure_to",
]

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def _to_text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


@final
@attrs.frozen
class Credentials:
    """
    A token, or CURVE key files, or both.

    The keys must belong to the proxy's ACL; they are used only if the proxy uses CURVE.
    A proxy with CURVE can be told a token, too: the connection is then encrypted by
    keys that are drawn for it and say nothing about the caller.

    Args:
        token: The secret itself.
        token_file: A file that holds it on one line and that its owner alone may read;
            read for each connection, so a new one needs no restart.
        curve_public_key_file: Our public key; may be left out, the secret file has it.
        curve_secret_key_file: Our secret key, readable by us alone.
        is_anonymous: Show nothing, and mean it; what ``credentials=None`` stands for.
        lends_service_keys: Whether a proxy is shown the keys that we have for the name
            service where there are no others.  A program that asks for other people
            says no: its own rights are not theirs.

    Raises:
        ConfigurationError: If two tokens are given, a public key alone, or nothing.
    """

    token: str | None = attrs.field(default=None, repr=False)
    token_file: str | None = attrs.field(default=None, converter=_to_text)
    curve_public_key_file: str | None = attrs.field(default=None, converter=_to_text)
    curve_secret_key_file: str | None = attrs.field(default=None, converter=_to_text)
    is_anonymous: bool = attrs.field(default=False, kw_only=True, repr=False)
    lends_service_keys: bool = attrs.field(default=True, kw_only=True, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.token is not None:
            if self.token_file is not None:
                raise ConfigurationError("give token or token_file, not both")
            _check_token(self.token, what="token")
        if self.curve_public_key_file and not self.curve_secret_key_file:
            raise ConfigurationError(
                "curve_public_key_file alone proves nothing: give "
                "curve_secret_key_file as well"
            )
        is_empty = self.token is None and not (
            self.token_file or self.curve_secret_key_file
        )
        if is_empty and not self.is_anonymous:
            raise ConfigurationError(
                "these credentials show nothing: give token, token_file or "
                "curve_secret_key_file, or pass credentials=None to ask without any"
            )

    def read_token(self) -> str | None:
        """
        Return the token, from its file if that is where it is.

        Raises:
            ConfigurationError: If the file cannot be used; says what to change.
        """
        if self.token_file is None:
            return self.token
        path = self.token_file
        try:
            with open(path, encoding="utf-8") as file:  # noqa: PTH123 (a path would race with fstat)
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                text = file.read(TOKEN_LENGTH_MAX + 2).strip()
        except OSError as error:
            raise ConfigurationError(
                f"token_file {path} cannot be read: {error.strerror}: correct the path "
                "or its permissions"
            ) from error
        except UnicodeDecodeError:
            # Not chained: the exception would carry the bytes.
            raise ConfigurationError(f"token_file {path} is not UTF-8 text") from None
        if mode & _OTHERS:
            raise ConfigurationError(
                f"token_file {path} is open to others (mode {mode:04o}): "
                f"run chmod 600 {path}"
            )
        _check_token(text, what=f"token_file {path}")
        return text

    def load_key_pair(self) -> CurveKeyPair | None:
        """
        Return our CURVE keys, or None if no files are named.

        Raises:
            ConfigurationError: If a file cannot be used; says what to change.
        """
        key_pair, _ = load_key_files(
            self.curve_secret_key_file, self.curve_public_key_file
        )
        return key_pair


def _check_token(token: object, *, what: str) -> None:
    """Refuse what no token can be, without showing it."""
    if (
        not isinstance(token, str)
        or not 1 <= len(token) <= TOKEN_LENGTH_MAX
        or not token.isprintable()
    ):
        raise ConfigurationError(
            f"{what} must be one line of 1 to {TOKEN_LENGTH_MAX} printable characters"
        )


NO_CREDENTIALS: Final = Credentials(is_anonymous=True)
"""Shows nothing: every program that may connect speaks."""


def credentials_of(
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    curve_public_key_file: str | os.PathLike[str] | None = None,
    curve_secret_key_file: str | os.PathLike[str] | None = None,
) -> Credentials:
    """
    Return the credentials of settings that may all be left out.

    Raises:
        ConfigurationError: If they contradict each other.
    """
    return Credentials(
        token,
        token_file,
        curve_public_key_file,
        curve_secret_key_file,
        is_anonymous=token is None
        and not (token_file or curve_public_key_file or curve_secret_key_file),
    )


def as_credentials(credentials: str | Credentials | None) -> Credentials:
    """Return *credentials*: text is a token, None is none at all."""
    match credentials:
        case Credentials():
            return credentials
        case None:
            return NO_CREDENTIALS
        case str():
            return Credentials(token=credentials)
        case _:
            raise ConfigurationError(
                "credentials must be a token, Credentials or None, not "
                f"{type(credentials).__name__}"
            )


def load_caller_keys(
    credentials: Credentials, config: HAConfig, address: StateAddress
) -> CurveKeyPair | None:
    """
    Return the keys to show *address*, or None if there are none to show.

    A client that has keys for the name service and none for the proxy is the same to
    both.

    Raises:
        ConfigurationError: If a key file cannot be used; says what to change.
    """
    key_pair = credentials.load_key_pair()
    if key_pair is not None or address.server_public_key is None:
        return key_pair
    if not credentials.lends_service_keys:
        return None
    return credentials_of(
        curve_public_key_file=config.curve_public_key_file,
        curve_secret_key_file=config.curve_secret_key_file,
    ).load_key_pair()


def secure_to(
    socket: ZMQSocket, address: StateAddress, key_pair: CurveKeyPair | None
) -> None:
    """
    Make *socket*, not connected yet, speak to *address* as *key_pair*.

    Where the proxy uses CURVE and we have no keys, some are drawn: they encrypt, and
    the proxy's ACL decides whether they may come in.

    Raises:
        AuthenticationError: If we have keys and the proxy uses no CURVE: nothing would
            be encrypted, and the proxy could not tell who we are.
    """
    if address.server_public_key is None:
        if key_pair is not None:
            raise AuthenticationError(
                str(address),
                "it uses no CURVE, so CURVE keys prove nothing to it: give the proxy "
                "keys, or leave the key files out",
            )
        return
    if key_pair is None:
        key_pair = CurveKeyPair.generate()
    secure_client(socket, key_pair, server_public_key=address.server_public_key)


def dealer_to(
    context: ZMQContext,
    address: StateAddress,
    key_pair: CurveKeyPair | None,
    limits: SocketLimits,
) -> Dealer:
    """Return a socket that connects to *address* as *key_pair*; see `secure_to`."""

    def secure(socket: ZMQSocket) -> None:
        secure_to(socket, address, key_pair)

    return Dealer(context, address.endpoint, limits, secure=secure)
