"""
How large requests to ZooKeeper are, and what is not given to kazoo.

kazoo encodes a request on the thread of its connection, where an argument that cannot
be encoded ends that thread, and with it the session.  ZooKeeper takes requests of up to
1,048,575 bytes (``jute.maxbuffer``) and closes the connection at one more.  So every
request is encoded and measured once before kazoo may have it: one that cannot be sent
fails alone, and nothing of it was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, write_string

from haservices.zookeeper.nodes import CheckNode, CreateNode, DeleteNode, SetNode
from nameservice import ConfigurationError, LocalProtocolError


if TYPE_CHECKING:
    from collections.abc import Iterable

    from haservices.zookeeper.nodes import NodeOperation


__all__ = [
    "REQUEST_SIZE_BYTES_MAX",
    "CheckedKazooClient",
    "encoded_acl",
    "request_size_bytes",
]

REQUEST_SIZE_BYTES_MAX: Final = 1_048_575
"""What a ZooKeeper takes (``jute.maxbuffer``), the length before it not counted."""

_INT_SIZE_BYTES: Final = 4
# Number and type of the request; then, in a transaction, a header for each operation
# and one more at the end: a type, a flag and an error.
_REQUEST_HEADER_SIZE_BYTES: Final = 2 * _INT_SIZE_BYTES
_OPERATION_HEADER_SIZE_BYTES: Final = 2 * _INT_SIZE_BYTES + 1


class CheckedKazooClient(KazooClient):  # type: ignore[misc]
    """kazoo's client; a request that cannot be sent fails before kazoo's thread."""

    def _call(self, request: Any, async_object: Any) -> bool | None:
        error = _problem_of(request)
        if error is not None:
            async_object.set_exception(error)
            return False
        is_queued: bool | None = super()._call(request, async_object)
        return is_queued


def _problem_of(request: Any) -> Exception | None:
    """Return why *request* cannot be sent, or None if it can."""
    try:
        size_bytes = _REQUEST_HEADER_SIZE_BYTES + len(request.serialize())
    except Exception as error:  # noqa: BLE001 - whatever an encoder raises is its own
        kind = type(request).__name__
        problem = LocalProtocolError(f"a request {kind} cannot be encoded: {error}")
        problem.__cause__ = error
        return problem
    if size_bytes > REQUEST_SIZE_BYTES_MAX:
        return ConfigurationError(
            f"a request takes {size_bytes:,} bytes, and ZooKeeper takes "
            f"{REQUEST_SIZE_BYTES_MAX:,}: write less at once"
        )
    return None


def encoded_acl(acl: Iterable[Any]) -> bytes:
    """Return *acl*, a list of kazoo's, as it stands in a request."""
    entries = list(acl)
    parts: list[bytes] = [int_struct.pack(len(entries))]
    for entry in entries:
        parts.append(int_struct.pack(entry.perms))
        parts += [write_string(entry.id.scheme), write_string(entry.id.id)]
    return b"".join(parts)


def request_size_bytes(
    operations: Iterable[NodeOperation], *, acl_size_bytes: int
) -> int:
    """
    Return what the transaction of *operations* takes as one request, to the byte.

    Args:
        operations: In any order.
        acl_size_bytes: What the access list of a created node takes, encoded.
    """
    size_bytes = _REQUEST_HEADER_SIZE_BYTES + _OPERATION_HEADER_SIZE_BYTES
    for operation in operations:
        size_bytes += _OPERATION_HEADER_SIZE_BYTES
        size_bytes += _INT_SIZE_BYTES + len(operation.path.encode())
        match operation:
            case CreateNode(value=value):
                # The access list, and flags.
                size_bytes += _INT_SIZE_BYTES + len(value)
                size_bytes += acl_size_bytes + _INT_SIZE_BYTES
            case SetNode(value=value):
                size_bytes += _INT_SIZE_BYTES + len(value) + _INT_SIZE_BYTES
            case CheckNode() | DeleteNode():
                size_bytes += _INT_SIZE_BYTES  # the version
    return size_bytes
