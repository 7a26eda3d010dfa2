"""The name services that are compared."""

from __future__ import annotations

from typing import Final

from benchmarks.peers._names import Listened, NamePeer
from benchmarks.peers.etcd import ETCD
from benchmarks.peers.floor_names import BARE_PYZMQ
from benchmarks.peers.leader_server import LEADER_SERVER
from benchmarks.peers.zookeeper import ZOOKEEPER


__all__ = ["LISTENED", "NAME_SERVICES"]

NAME_SERVICES: Final[dict[str, NamePeer]] = {
    "Lodestar": LEADER_SERVER,
    "ZooKeeper 3.9, kazoo": ZOOKEEPER,
    "etcd 3.4, JSON gateway": ETCD,
}

LISTENED: Final[dict[str, Listened]] = {
    **NAME_SERVICES,
    "floor: bare pyzmq": BARE_PYZMQ,
}
"""Those, and the floor under what listeners are told."""
