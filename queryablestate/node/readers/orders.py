"""What a node and its reader processes tell each other, a line of JSON each; pure."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct


__all__ = [
    "KeepSecret",
    "ReaderOrder",
    "ReaderReport",
    "decode_order",
    "decode_report",
    "decode_secret",
    "line_of",
]


class ReaderOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    What a reader is to be; the first line on its standard input.

    Attributes:
        page: The file of the page.
        run: The process of the node.
        data_dir: The directory of the node.
        store: The sub-directory with the rows.
        bind: Where to listen.
        config: Limits and files of keys, as `NodeConfig` names them.
    """

    page: str
    run: str
    data_dir: str
    store: str
    bind: str
    config: dict[str, Any]


class KeepSecret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By what secret tickets are told; any further line on standard input."""

    secret: bytes


class ReaderReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    That the reader lives, and what it has done; each line on its standard output.

    Attributes:
        port: Where it listens.
        figures: By name.
        latencies: How long answers took: counts and sum, by kind.
    """

    port: int
    figures: dict[str, int]
    latencies: dict[str, tuple[tuple[int, ...], float]]


_ENCODER: Final = msgspec.json.Encoder()
decode_order: Final = msgspec.json.Decoder(ReaderOrder).decode
decode_secret: Final = msgspec.json.Decoder(KeepSecret).decode
decode_report: Final = msgspec.json.Decoder(ReaderReport).decode


def line_of(message: ReaderOrder | KeepSecret | ReaderReport) -> bytes:
    """Return *message* as a line."""
    return _ENCODER.encode(message) + b"\n"
