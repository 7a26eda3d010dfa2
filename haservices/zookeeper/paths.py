"""
Where everything is in ZooKeeper.

::

    CHROOT/lodestar/CLUSTER/components/COMPONENT/contenders/UUID-0000000042  ephemeral
                                                /leader                      ephemeral
                           /store/COMPONENT/PATH                             persistent
                           /bundles/COMPONENT/UUID                           persistent

Contenders queue by the sequence number that ZooKeeper appends; the first of them holds
the component.  ``leader`` is what it has published: retrievers look at nothing else.
Names are percent-encoded: ZooKeeper forbids slashes, ``.``, ``..`` and some characters.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, final
from urllib.parse import quote, unquote


if TYPE_CHECKING:
    from collections.abc import Iterable


__all__ = [
    "CONTENDER_NAME_EXAMPLE",
    "ComponentPaths",
    "ZooKeeperPaths",
    "ancestors_of",
    "decode_name",
    "encode_name",
    "in_order",
]

_CONTENDER_NAME: Final = re.compile(
    r"(?P<contender_id>[0-9a-f]{32})-(?P<sequence>\d{10}|-\d{9,10})"
)
_SEQUENCE_SPAN: Final = 1 << 32

CONTENDER_NAME_EXAMPLE: Final = f"{'0' * 32}--{'9' * 10}"
"""A name as long as the longest that a contender's node has."""


def encode_name(text: str) -> str:
    """Return *text* as the name of a node; `decode_name` is the way back."""
    if text in (".", ".."):
        return text.replace(".", "%2E")
    return quote(text, safe="")


def decode_name(name: str) -> str:
    """Return the text that `encode_name` made *name* of."""
    return unquote(name)


def ancestors_of(path: str) -> list[str]:
    """Return *path* and every path above it but the root, from the top."""
    names = path.removeprefix("/").split("/")
    return ["/" + "/".join(names[: count + 1]) for count in range(len(names))]


def in_order(names: Iterable[str]) -> list[str]:
    """
    Return the names of contenders in the order in which they registered.

    The sequence is a signed 32-bit counter that wraps around: what is compared is the
    distance, which is small among contenders that exist at the same time.  Other names
    are left out.
    """
    sequences = {}
    for name in names:
        matched = _CONTENDER_NAME.fullmatch(name)
        if matched is not None:
            sequences[name] = int(matched["sequence"])
    if not sequences:
        return []
    pivot = next(iter(sequences.values()))

    def distance(name: str) -> int:
        steps = (sequences[name] - pivot) % _SEQUENCE_SPAN
        return steps if steps < _SEQUENCE_SPAN // 2 else steps - _SEQUENCE_SPAN

    return sorted(sequences, key=distance)


@final
class ComponentPaths:
    """
    The nodes of one component.

    Attributes:
        component_id: Which component.
        node: The node above its contenders and its leader; its version counts leaders.
        contenders: The node above its contenders.
        leader: What its holder has published.
        store: The node above what its leaders have stored.
        bundles: The node above values that were too many for one transaction.
    """

    __slots__ = ("bundles", "component_id", "contenders", "leader", "node", "store")

    def __init__(self, component_id: str, *, cluster: str) -> None:
        name = encode_name(component_id)
        self.component_id = component_id
        self.node = f"{cluster}/components/{name}"
        self.contenders = f"{self.node}/contenders"
        self.leader = f"{self.node}/leader"
        self.store = f"{cluster}/store/{name}"
        self.bundles = f"{cluster}/bundles/{name}"

    def contender_prefix(self, contender_id: str) -> str:
        """Return the path to create a contender's node at, without its sequence."""
        return f"{self.contenders}/{contender_id}-"

    def contender(self, name: str) -> str:
        """Return the path of the contender whose node is called *name*."""
        return f"{self.contenders}/{name}"

    def stored(self, path: str) -> str:
        """Return the path of the node that holds the store's *path*."""
        return f"{self.store}/{encode_name(path)}"


@final
class ZooKeeperPaths:
    """
    The nodes of one cluster.

    Args:
        chroot: Empty, or ``/a/b`` without a slash last.
        cluster_id: The cluster.
    """

    __slots__ = ("_cluster", "components")

    def __init__(self, chroot: str, cluster_id: str) -> None:
        self._cluster = f"{chroot}/lodestar/{encode_name(cluster_id)}"
        self.components = f"{self._cluster}/components"

    def component(self, component_id: str) -> ComponentPaths:
        """Return the nodes of *component_id*."""
        return ComponentPaths(component_id, cluster=self._cluster)
