from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from queryablestate.wire import (
    clients,
    copy_messages,
    node_messages,
    operation_messages,
    questions,
    records,
    refusals,
    snapshot_manifest,
    snapshot_messages,
)
from queryablestate.wire.codec import PROTOCOL_VERSION


ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "reference" / "state-protocol.md").read_text("utf-8")

# What the proxy keeps for itself: it never crosses the wire of this protocol.
STORED = {
    "AssignmentRecord",
    "CountersRecord",
    "JobFence",
    "JobRecord",
    "NodeRecord",
    "QueryProgress",
    "RunRecord",
    "StateProgress",
    "StateRecord",
}


def structs() -> dict[str, Any]:
    """Return every message, and every part of one, by its name."""
    return {
        name: getattr(module, name)
        for module in (
            copy_messages,
            clients,
            node_messages,
            operation_messages,
            questions,
            records,
            snapshot_manifest,
            snapshot_messages,
        )
        for name in module.__all__
        if name not in STORED
        and isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), msgspec.Struct)
    }


class TestPage:
    """docs/reference/state-protocol.md says what crosses the wire."""

    @pytest.mark.parametrize("name", sorted(structs()))
    def test_every_message_is_there_with_its_fields(self, name: str) -> None:
        """A peer in another language could be written from the page."""
        struct = structs()[name]
        tag = struct.__struct_config__.tag
        if tag is not None:
            assert re.search(rf"(`|\b){tag}(`|\b)", PAGE), tag
        missing = [
            field
            for field in struct.__struct_fields__
            if not re.search(rf"\b{field}\b", PAGE)
        ]
        assert missing == []

    def test_every_code_is_there(self) -> None:
        """Whatever a peer may be refused with has a row."""
        codes = {
            *refusals._ERRORS,
            refusals.NOT_LEADER,
            refusals.UNKNOWN_SESSION,
            refusals.STALE_ROUTE,
            "failed",
        }
        rows = set(re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE))
        assert codes - rows == set()

    def test_the_version_is_the_one_that_is_spoken(self) -> None:
        """The page is about the protocol of this release."""
        assert f"version  = %x{PROTOCOL_VERSION:02d}" in PAGE
