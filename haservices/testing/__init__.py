"""
What test suites need: name services of their own, and control over what goes wrong.

A pytest plugin comes with it: the fixture ``ha_services`` is an embedded name service,
and ``leadership_control`` decides who leads in it.

* `LeadershipControl`: grant, revoke, expire, cut, heal and pause, embedded.
* `LeaderServer`: a real one in this process; `ServerConfig` configures it.
* `ZooKeeperServer`, `ZooKeeperEnsemble`: real ones, out of pyspark's jars.
* `TCPProxy`: stands between a client and any of them, and cuts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nameservice.lazy import lazy_face


if TYPE_CHECKING:
    from haservices.testing.control import LeadershipControl
    from haservices.testing.tcp_proxy import TCPProxy
    from haservices.testing.zookeeper_ensemble import ZooKeeperEnsemble
    from haservices.testing.zookeeper_server import ZooKeeperServer
    from leaderserver import LeaderServer, ServerConfig


__all__ = [
    "LeaderServer",
    "LeadershipControl",
    "ServerConfig",
    "TCPProxy",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]

__getattr__, __dir__ = lazy_face(
    __name__,
    {
        "haservices.testing.control": ("LeadershipControl",),
        "haservices.testing.tcp_proxy": ("TCPProxy",),
        "haservices.testing.zookeeper_ensemble": ("ZooKeeperEnsemble",),
        "haservices.testing.zookeeper_server": ("ZooKeeperServer",),
        "leaderserver": ("LeaderServer", "ServerConfig"),
    },
)
