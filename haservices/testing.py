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

from haservices.control import LeadershipControl
from haservices.tcp_proxy import TCPProxy
from haservices.zookeeper_ensemble import ZooKeeperEnsemble
from haservices.zookeeper_server import ZooKeeperServer
from leaderserver import LeaderServer, ServerConfig


__all__ = [
    "LeaderServer",
    "LeadershipControl",
    "ServerConfig",
    "TCPProxy",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
]
