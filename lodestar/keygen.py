"""The verb keygen: CURVE keys for servers and clients, and tokens (rules N4, C1)."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from lodestar.arguments import add_json_option, add_log_option
from lodestar.exit_codes import ExitCode
from lodestar.output import json_text, pairs_text, write, write_answer
from nameservice import ConfigurationError
from nameservice.durable_files import make_directory
from queryablestate.connect.tokens import generate_token, write_token
from queryablestate.proxy.access import token_sha256
from zmqtransport import CurveKeyPair, write_key_pair


if TYPE_CHECKING:
    from lodestar.verbs import Verbs


__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "keygen",
        _keygen,
        operands="NAME",
        description="Make a CURVE key pair: NAME.key is public and goes into the "
        "server's allow-list, NAME.key_secret stays with its owner. With --token, make "
        "a token for a caller of a proxy: NAME.token stays with its owner (without "
        "NAME it is printed), token_sha256 goes into the proxy's configuration. Files "
        "that exist are never overwritten.",
        examples="lodestar keygen collector-1 --dir keys\n"
        "lodestar keygen dashboard --token --dir keys",
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="what the files are called"
    )
    parser.add_argument(
        "--token", action="store_true", help="make a token instead of a key pair"
    )
    parser.add_argument(
        "--dir",
        metavar="D",
        type=Path,
        default=Path(),
        help="where to write them; made if it is not there (default: the working "
        "directory)",
    )
    add_json_option(parser, "one JSON object")
    add_log_option(parser, "error")


def _keygen(arguments: Namespace) -> ExitCode:
    base = _base(arguments)
    if arguments.token:
        return _keygen_token(arguments, base)
    if base is None:
        message = "NAME is wanted: what the files of the key pair are called"
        raise ConfigurationError(message)
    pair = CurveKeyPair.generate()
    files = write_key_pair(pair, base)
    write_answer(
        {
            "public_key": pair.public_key,
            "public_key_file": str(files.public_file),
            "secret_key_file": str(files.secret_file),
        },
        pairs_text(
            [
                ("public key", pair.public_key),
                ("public key file", str(files.public_file)),
                ("secret key file", str(files.secret_file)),
            ]
        ),
        is_json=arguments.json,
    )
    return ExitCode.DONE


def _keygen_token(arguments: Namespace, base: Path | None) -> ExitCode:
    token = generate_token()
    # In a file the token is where it is wanted, and in no scrollback.
    made = ("token", token)
    if base is not None:
        made = ("token_file", str(write_token(token, base)))
    digest = token_sha256(token)
    if arguments.json:
        write(json_text(dict([made, ("token_sha256", digest)])))
    else:
        # The second line is one of the proxy's configuration.
        name = made[0].replace("_", " ")
        write(pairs_text([(name, made[1]), ("token_sha256 =", f'"{digest}"')]))
    return ExitCode.DONE


def _base(arguments: Namespace) -> Path | None:
    """Return the directory and name of what is written, or None if nothing is."""
    name: str | None = arguments.name
    if name is None:
        return None
    if Path(name).name != name:
        message = f"{name!r} is not a name: say where it goes with --dir"
        raise ConfigurationError(message)
    directory: Path = arguments.dir
    try:
        make_directory(directory, mode=0o700)
    except OSError as error:
        message = f"directory {directory} cannot be made: {error.strerror}"
        raise ConfigurationError(message) from error
    return directory / name
