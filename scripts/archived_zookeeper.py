"""What the tests have ZooKeeper do, once; for `scripts/archive_classes`."""

from __future__ import annotations

from kazoo.client import KazooClient

from haservices.testing.zookeeper_server import ZooKeeperServer


def main() -> None:
    """Serve a client that writes, reads and watches."""
    with ZooKeeperServer() as server:
        client = KazooClient(hosts=server.address)
        client.start()
        client.create("/a/b", b"1", makepath=True, ephemeral=True)
        client.get("/a/b", watch=lambda _: None)
        client.get_children("/a")
        change = client.transaction()
        change.set_data("/a/b", b"2")
        change.create("/a/c", b"3")
        change.commit()
        client.delete("/a/c")
        client.stop()
        client.close()
        server.ask("mntr")


if __name__ == "__main__":
    main()
