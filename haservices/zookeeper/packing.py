"""
How values of the leader store stand in nodes: themselves, or as references.

A commit whose values are too many for one request puts all of them into one node
beforehand, a *bundle*, and writes references to it (bundles.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from haservices.zookeeper.nodes import CheckNode, CreateNode, NodeOperation, SetNode
from nameservice import RemoteProtocolError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from haservices.zookeeper.paths import ComponentPaths


__all__ = [
    "BUNDLE_NAME_EXAMPLE",
    "Reference",
    "pack",
    "refer",
    "unpack",
    "unused_bundles",
]

BUNDLE_NAME_EXAMPLE: Final = "0" * 32
"""A name as long as that of every bundle."""

_ITSELF: Final = b"="
_REFERENCE: Final = b"@"


@attrs.frozen(kw_only=True)
class Reference:
    """Where in which bundle a value is; *stop* is not part of it."""

    name: str
    start: int
    stop: int

    def format(self) -> bytes:
        """Return it as a node holds it."""
        return _REFERENCE + f"{self.name} {self.start} {self.stop}".encode("ascii")

    @classmethod
    def parse(cls, packed: bytes) -> Reference | None:
        """Return the reference that *packed* is, or None if it is none."""
        if not packed.startswith(_REFERENCE):
            return None
        try:
            name, start, stop = packed[1:].decode("ascii").split(" ")
            return cls(name=name, start=int(start), stop=int(stop))
        except ValueError:
            return None


def pack(value: bytes) -> bytes:
    """Return *value* as a node holds it itself."""
    return _ITSELF + value


def unpack(packed: bytes) -> bytes | Reference:
    """
    Return the value that a node holds, or where it is.

    Raises:
        RemoteProtocolError: If it is not ours.
    """
    if packed.startswith(_ITSELF):
        return packed[1:]
    reference = Reference.parse(packed)
    if reference is None:
        raise RemoteProtocolError("malformed-node", "a node of the store is not ours")
    return reference


def refer(
    operations: Sequence[NodeOperation], paths: ComponentPaths, *, name: str
) -> tuple[bytes, Sequence[NodeOperation]]:
    """
    Return what the bundle *name* holds, and *operations* with references to it.

    One more operation checks that the bundle is there.
    """
    bundle = bytearray()
    referring: list[NodeOperation] = []
    for operation in operations:
        if isinstance(operation, SetNode | CreateNode):
            start = len(bundle)
            bundle += operation.value[1:]
            reference = Reference(name=name, start=start, stop=len(bundle))
            referring.append(attrs.evolve(operation, value=reference.format()))
        else:
            referring.append(operation)
    referring.append(CheckNode(path=f"{paths.bundles}/{name}"))
    return bytes(bundle), referring


def unused_bundles(names: Iterable[str], values: Iterable[bytes]) -> list[str]:
    """Return which of the bundles *names* no node refers to; *values* are theirs."""
    unused = set(names)
    for value in values:
        reference = Reference.parse(value)
        if reference is not None:
            unused.discard(reference.name)
    return sorted(unused)
