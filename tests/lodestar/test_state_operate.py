from __future__ import annotations

from lodestar.state_operate import node_document, nodes_text
from queryablestate.operations.node_information import NodeInformation


class TestNodes:
    NODES = (
        NodeInformation(
            node_id="n-1",
            address="tcp://10.0.0.7:4000",
            last_heard_seconds=0.4,
            key_group_counts={"orders": 64, "flights": 128, "old": 0},
            behind_counts={"orders": 0, "flights": 3},
            copy_counts={"orders": 128, "flights": 128},
            is_draining=True,
        ),
        NodeInformation(
            node_id="n-2",
            address=None,
            last_heard_seconds=None,
            key_group_counts={"orders": 64},
            behind_counts={},
        ),
    )

    def test_a_line_for_each(self) -> None:
        """N6: where it is, how it is, what it is asked for; words where it is away."""
        assert nodes_text(self.NODES).splitlines() == [
            (
                "NODE            ADDRESS              LAST HEARD  "
                "KEY GROUPS              COPIES                   BEHIND"
            ),
            (
                "n-1 (draining)  tcp://10.0.0.7:4000  0.40 s ago  "
                "flights 128, orders 64  flights 128, orders 128  flights 3"
            ),
            (
                "n-2             away                 -           "
                "orders 64               -                        -"
            ),
        ]
        assert nodes_text(()) == "there are no nodes"

    def test_the_document(self) -> None:
        """N6: --json has the same, null where there is nothing."""
        assert node_document(self.NODES[1]) == {
            "node_id": "n-2",
            "address": None,
            "last_heard_seconds": None,
            "key_group_counts": {"orders": 64},
            "copy_counts": {},
            "behind_counts": {},
            "is_draining": False,
            "kept_batches": {},
        }
