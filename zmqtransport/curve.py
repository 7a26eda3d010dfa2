"""
CURVE keys: making them, writing them to files, reading them back.

A key pair is two files.  ``NAME.key`` holds the public key and may be shown to
anybody; ``NAME.key_secret`` holds both keys, belongs to its owner alone (mode 0600),
and is refused when others may read it.  The format is the one of pyzmq and CZMQ
certificates, so either side's tools read the other's files::

    #   Comments begin with a hash.
    metadata
        name = "collector-1"
    curve
        public-key = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
        secret-key = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

Secret keys appear in no ``repr`` and in no error, not even a line that cannot be read:
it might be one.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final, TypeAlias, final

import attrs
import zmq

from nameservice import ConfigurationError
from nameservice.new_file import write_new_file
from zmqtransport.access import AllowList, is_z85_key, parse_allow_list


__all__ = [
    "CurveKeyPair",
    "KeyFiles",
    "load_allow_list",
    "load_key_files",
    "load_key_pair",
    "load_public_key",
    "load_public_keys",
    "write_key_pair",
]

_PUBLIC_SUFFIX: Final = ".key"
_SECRET_SUFFIX: Final = ".key_secret"  # noqa: S105 (a file name)
_KEY_FILE_SIZE_BYTES_MAX: Final = 64 * 1024
_ALLOW_LIST_SIZE_BYTES_MAX: Final = 4 * 1024 * 1024
_PUBLIC_MODE: Final = 0o644
_KEYS_PER_FILE_MAX: Final = 8
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_SETTING: Final = re.compile(r'\s*([a-z][a-z-]*)\s*=\s*"([^"]*)"\s*')


def _check_public_key(text: str) -> str:
    """Return *text* if it is a key; a public key may be quoted."""
    if not is_z85_key(text):
        raise ConfigurationError(f"{text!r} is not a public key: 40 characters of Z85")
    return text


def _check_secret_key(text: str) -> str:
    """Return *text* if it is a key; never quotes it."""
    if not is_z85_key(text):
        raise ConfigurationError("the secret key is malformed: 40 characters of Z85")
    return text


@final
@attrs.frozen(kw_only=True)
class CurveKeyPair:
    """
    A public key and the secret key that belongs to it, both in Z85.

    Raises:
        ConfigurationError: If a key is malformed, or if the two do not belong together.
    """

    public_key: str = attrs.field(converter=_check_public_key)
    secret_key: str = attrs.field(converter=_check_secret_key, repr=False)

    def __attrs_post_init__(self) -> None:
        derived = zmq.curve_public(self.secret_key.encode("ascii")).decode("ascii")
        if derived != self.public_key:
            raise ConfigurationError(
                "the public and the secret key do not belong together"
            )

    @classmethod
    def generate(cls) -> CurveKeyPair:
        """Return a new pair, drawn by the crypto library of ZeroMQ."""
        public_key, secret_key = zmq.curve_keypair()
        return cls(
            public_key=public_key.decode("ascii"), secret_key=secret_key.decode("ascii")
        )


@final
@attrs.frozen(kw_only=True)
class KeyFiles:
    """Where the two files of one key pair are."""

    public_file: Path
    secret_file: Path


def write_key_pair(pair: CurveKeyPair, base: Path) -> KeyFiles:
    """
    Write *pair* to ``BASE.key`` and ``BASE.key_secret``.

    Neither file is ever overwritten: a server or a client may depend on it.  The secret
    file is never readable by others, not even while it is being written.

    Args:
        pair: What to write.
        base: The directory and the name of the files, without a suffix.

    Raises:
        ConfigurationError: If a file exists or cannot be written; then neither is left.
    """
    name = base.name
    if not name or '"' in name or not name.isprintable():
        raise ConfigurationError(
            f"{str(base)!r} must end in a printable name without quotes"
        )
    files = KeyFiles(
        public_file=base.with_name(name + _PUBLIC_SUFFIX),
        secret_file=base.with_name(name + _SECRET_SUFFIX),
    )
    heading = f'metadata\n    name = "{name}"\ncurve\n'
    public_line = f'    public-key = "{pair.public_key}"\n'
    write_new_file(
        files.secret_file,
        "#   Lodestar CURVE key pair.  Keep this file secret: it is an identity.\n"
        f'{heading}{public_line}    secret-key = "{pair.secret_key}"\n',
    )
    try:
        write_new_file(
            files.public_file,
            "#   Lodestar CURVE public key.  May be shown to anybody.\n"
            f"{heading}{public_line}",
            mode=_PUBLIC_MODE,
        )
    except ConfigurationError:
        files.secret_file.unlink()
        raise
    return files


def load_public_key(path: Path) -> str:
    """
    Return the public key that *path* holds, in Z85; a secret file will do too.

    Raises:
        ConfigurationError: Naming *path* and what to do about it.
    """
    return load_public_keys(path)[0]


def load_public_keys(path: Path) -> tuple[str, ...]:
    """
    Return the public keys that *path* holds, in its order: at least one.

    Several ``.key`` files one after the other make such a file: it names the keys of a
    server that is about to change them.

    Raises:
        ConfigurationError: Naming *path* and what to do about it.
    """
    settings, _ = _read_key_file(path, is_list=True)
    if len(settings) > _KEYS_PER_FILE_MAX:
        raise ConfigurationError(
            f"key file {path} holds {len(settings)} keys, at most "
            f"{_KEYS_PER_FILE_MAX} are taken: remove the ones that are over"
        )
    return tuple(dict.fromkeys(_public_key(each, path) for each in settings))


def load_key_pair(secret_file: Path, public_file: Path | None = None) -> CurveKeyPair:
    """
    Return the key pair that *secret_file* holds.

    Args:
        secret_file: A ``.key_secret`` file that only its owner may read.
        public_file: If given, the key there must be the same public key.

    Raises:
        ConfigurationError: Naming the file and what to do about it.
    """
    (settings,), mode = _read_key_file(secret_file)
    if "secret-key" not in settings:
        raise ConfigurationError(
            f"key file {secret_file} holds no secret-key: "
            f"name the {_SECRET_SUFFIX} file, not the {_PUBLIC_SUFFIX} file"
        )
    if mode & _OTHERS:
        raise ConfigurationError(
            f"key file {secret_file} is open to others (mode {mode:04o}): "
            f"run chmod 600 {secret_file}"
        )
    public_key = _public_key(settings, secret_file)
    try:
        pair = CurveKeyPair(public_key=public_key, secret_key=settings["secret-key"])
    except ConfigurationError as exc:
        raise ConfigurationError(
            f"key file {secret_file}: {exc}: restore it, or make new keys with "
            "lodestar keygen"
        ) from exc
    if public_file is not None and load_public_key(public_file) != pair.public_key:
        raise ConfigurationError(
            f"key files {public_file} and {secret_file} do not belong together: "
            "name the two files of one pair"
        )
    return pair


def load_allow_list(path: Path) -> AllowList:
    """
    Return the allow-list that *path* holds; see `zmqtransport.access` for its format.

    Raises:
        ConfigurationError: Naming *path* and what to do about it.
    """
    text, _ = _read_text(
        path, what="allow-list", size_bytes_max=_ALLOW_LIST_SIZE_BYTES_MAX
    )
    return parse_allow_list(text, source=str(path))


_Named: TypeAlias = str | os.PathLike[str] | None


def load_key_files(
    secret_file: _Named, public_file: _Named, allow_list_file: _Named = None
) -> tuple[CurveKeyPair | None, AllowList | None]:
    """
    Return one's own keys, and whom to admit; None for what is not named.

    Raises:
        ConfigurationError: Naming the file and what to do about it.
    """
    key_pair = allow_list = None
    if secret_file is not None:
        key_pair = load_key_pair(
            Path(secret_file), None if public_file is None else Path(public_file)
        )
    if allow_list_file is not None:
        allow_list = load_allow_list(Path(allow_list_file))
    return key_pair, allow_list


def _public_key(settings: dict[str, str], path: Path) -> str:
    """Return the public key among *settings*, checked."""
    public_key = settings.get("public-key", "")
    if not is_z85_key(public_key):
        fault = "a malformed" if "public-key" in settings else "no"
        raise ConfigurationError(
            f"key file {path} holds {fault} public-key: restore it, or make new keys "
            "with lodestar keygen"
        )
    return public_key


def _read_key_file(
    path: Path, *, is_list: bool = False
) -> tuple[list[dict[str, str]], int]:
    """
    Return the settings of each section ``curve``, and the permissions of the file.

    Args:
        path: Which file.
        is_list: Whether there may be several such sections.
    """
    text, mode = _read_text(
        path, what="key file", size_bytes_max=_KEY_FILE_SIZE_BYTES_MAX
    )
    sections: list[dict[str, str]] = []
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if not line[0].isspace():
            section = content
            if section == "curve" and (is_list or not sections):
                sections.append({})
            continue
        if section != "curve":
            continue
        setting = _SETTING.fullmatch(line)
        if setting is None or setting[1] in sections[-1]:
            # The line is not quoted: it may be a secret.
            raise ConfigurationError(
                f"key file {path} cannot be understood in line {number}: restore it, "
                "or make new keys with lodestar keygen"
            )
        sections[-1][setting[1]] = setting[2]
    if not any(sections):
        raise ConfigurationError(
            f"key file {path} has no section curve: name a file that lodestar keygen "
            "has made"
        )
    return [settings for settings in sections if settings], mode


def _read_text(path: Path, *, what: str, size_bytes_max: int) -> tuple[str, int]:
    """
    Return what *path* holds and its permission bits, both of the very same file.

    Never blocks on what is no regular file, such as a named pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:  # noqa: PTH123 (a path would race with fstat)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ConfigurationError(f"{what} {path} is no regular file")
            data = file.read(size_bytes_max + 1)
    except OSError as exc:
        raise ConfigurationError(
            f"{what} {path} cannot be read: {exc.strerror}: correct the path or its "
            "permissions"
        ) from exc
    if len(data) > size_bytes_max:
        raise ConfigurationError(
            f"{what} {path} has more than {size_bytes_max} bytes: is it the right file?"
        )
    try:
        return data.decode("utf-8"), stat.S_IMODE(status.st_mode)
    except UnicodeDecodeError:
        # Not chained: the exception would carry the bytes, which may be a secret.
        raise ConfigurationError(
            f"{what} {path} is not UTF-8 text: is it the right file?"
        ) from None
