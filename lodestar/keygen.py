"""The verb keygen: CURVE keys for a LeaderServer or a client of one (rule N4)."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from lodestar.arguments import add_json_option, add_log_option
from lodestar.exit_codes import ExitCode
from lodestar.output import json_text, pairs_text, write
from nameservice import ConfigurationError
from transport import CurveKeyPair, write_key_pair


if TYPE_CHECKING:
    from lodestar.arguments import Verbs


__all__ = ["add_verbs"]


def add_verbs(verbs: Verbs) -> None:
    """Enter the verb of this module."""
    parser = verbs.add_verb(
        "keygen",
        _keygen,
        operands="NAME",
        summary="make a CURVE key pair",
        description="Make a CURVE key pair: NAME.key is public and goes into the "
        "server's allow-list, NAME.key_secret stays with its owner. Files that exist "
        "are never overwritten.",
        examples="lodestar keygen collector-1 --dir keys",
    )
    parser.add_argument("name", metavar="NAME", help="what the files are called")
    parser.add_argument(
        "--dir",
        metavar="D",
        type=Path,
        default=Path(),
        help="where to write them (default: the working directory)",
    )
    add_json_option(parser, "one JSON object")
    add_log_option(parser, "error")


def _keygen(arguments: Namespace) -> ExitCode:
    if Path(arguments.name).name != arguments.name:
        message = f"{arguments.name!r} is not a name: say where it goes with --dir"
        raise ConfigurationError(message)
    pair = CurveKeyPair.generate()
    files = write_key_pair(pair, arguments.dir / arguments.name)
    if arguments.json:
        write(
            json_text(
                {
                    "public_key": pair.public_key,
                    "public_key_file": str(files.public_file),
                    "secret_key_file": str(files.secret_file),
                }
            )
        )
    else:
        write(
            pairs_text(
                [
                    ("public key", pair.public_key),
                    ("public key file", str(files.public_file)),
                    ("secret key file", str(files.secret_file)),
                ]
            )
        )
    return ExitCode.DONE
