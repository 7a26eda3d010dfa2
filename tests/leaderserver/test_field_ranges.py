"""L4: what a public call admits, the codec carries; what it refuses is never sent."""

from __future__ import annotations

import contextlib
import enum
import functools
from typing import TYPE_CHECKING, Any, Final, ParamSpec
from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from election import Delete, LeaderSession, Put, StoreOperation
from election.store import LeaderStore, VersionedValue
from haservices.client_services import commit_request
from leaderserver import codec
from leaderserver.message_parts import ClaimRecord
from leaderserver.messages import (
    ConfirmRequest,
    Hello,
    RegisterRequest,
    Request,
    RequestBody,
)
from leaderserver.operator_messages import ContendersRequest, ExpireRequest
from leaderserver.store_messages import GetRequest, ListRequest
from nameservice import ConfigurationError, check_component_id
from nameservice.fields import (
    as_client_name,
    check_address,
    check_epoch,
    check_identifier,
    check_leader_session_id,
    check_store_path,
    check_store_prefix,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


P = ParamSpec("P")


class Text(str):
    """Text of a subclass."""

    __slots__ = ()


class Number(enum.IntEnum):
    """A number of a subclass."""

    SEVEN = 7


class Identity(UUID):
    """A UUID of a subclass."""


texts = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="a/ é航𝄞", max_size=300),
    st.integers(1, 1100).map(lambda length: "𝄞" * length),
    st.text(max_size=20).map(Text),
    st.text(max_size=20).map(np.str_),
)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, Number.SEVEN]),
    st.integers(0, 2**63 - 1).map(np.int64),
)
identities = st.one_of(st.uuids(), st.uuids().map(lambda u: Identity(int=u.int)))
datas = st.one_of(
    st.binary(max_size=50),
    st.binary(max_size=50).map(np.bytes_),
    st.binary(max_size=50).map(bytearray),
    st.binary(max_size=50).map(lambda data: memoryview(data)),  # noqa: PLW0108 - mypy cannot see through the class,
)
strangers = st.one_of(
    st.none(), st.booleans(), st.floats(), st.binary(max_size=5), st.lists(st.none())
)
JOB: Final = "test/flights"
SESSION: Final = LeaderSession(leader_session_id=UUID(int=1), epoch=1)


def carried(body: RequestBody) -> RequestBody:
    """Return *body* as the server gets it."""
    message = codec.decode_to_server(
        codec.encode(Request(secret=bytes(32), number=1, body=body))
    )
    assert isinstance(message, Request)
    return message.body


def if_admitted(test: Callable[P, None]) -> Callable[P, None]:
    """End an example as soon as a field of it is refused."""

    @functools.wraps(test)
    def run(*args: P.args, **keywords: P.kwargs) -> None:
        with contextlib.suppress(ConfigurationError):
            test(*args, **keywords)

    return run


class TestAdmittedIsCarried:
    """Each field, in a message that has it."""

    @given(texts | strangers)
    @if_admitted
    def test_component_ids(self, value: Any) -> None:
        """L4: beside the longest cluster id, too."""
        component_id = f"{'航' * 255}/{check_component_id(value)}"
        body = ContendersRequest(component_id=component_id)
        assert carried(body) == body

    @given(texts | strangers)
    @if_admitted
    def test_identifiers(self, value: object) -> None:
        """L4: of sessions and of contenders."""
        checked = check_identifier(value, what="an id")
        for body in (
            ExpireRequest(session_id=checked),
            RegisterRequest(
                component_id=JOB,
                contender_id=checked,
                confirm_timeout_ns=1,
                ticket=None,
                epoch_ended=0,
                claim=None,
            ),
        ):
            assert carried(body) == body

    @given(texts | strangers, identities | strangers)
    @if_admitted
    def test_confirmations(self, address: object, identity: object) -> None:
        """L4: an address, and the identity of a leadership."""
        body = ConfirmRequest(
            component_id=JOB,
            contender_id="c",
            leader_session_id=check_leader_session_id(identity),
            confirm_count=1,
            address=check_address(address),
        )
        assert carried(body) == body

    @given(numbers | strangers)
    @if_admitted
    def test_epochs(self, value: object) -> None:
        """L4: in a claim, which a client makes of a leadership that it had."""
        body = RegisterRequest(
            component_id=JOB,
            contender_id="c",
            confirm_timeout_ns=1,
            ticket=None,
            epoch_ended=check_epoch(value),
            claim=ClaimRecord(
                leader_session_id=UUID(int=1),
                epoch=check_epoch(value),
                confirm_count=0,
                address=None,
            ),
        )
        assert carried(body) == body

    @given(texts | strangers)
    @if_admitted
    def test_paths_and_prefixes(self, value: object) -> None:
        """L4: a prefix is a path, or empty."""
        prefix = check_store_prefix(value)
        asked: list[RequestBody] = [
            ListRequest(component_id=JOB, prefix=prefix, after=prefix)
        ]
        if prefix:
            asked.append(GetRequest(component_id=JOB, path=check_store_path(value)))
        for body in asked:
            assert carried(body) == body

    @given(texts)
    @if_admitted
    def test_client_names(self, value: str) -> None:
        """L4: whatever the program and the machine are called."""
        hello = Hello(
            nonce=bytes(16),
            session_timeout_ns=1,
            lease_ns=1,
            client=as_client_name(value),
        )
        assert codec.decode_to_server(codec.encode(hello)) == hello

    @given(
        st.lists(
            st.one_of(
                st.builds(Put, texts | strangers, datas | strangers, numbers),
                st.builds(Put, texts, datas, st.none() | strangers),
                st.builds(Delete, texts | strangers, numbers | strangers),
            ),
            max_size=4,
        ),
        numbers | strangers,
        identities | strangers,
    )
    def test_commits(
        self, operations: list[StoreOperation], epoch: Any, identity: Any
    ) -> None:
        """L4: through the store itself: what its driver gets is carried, and equal."""
        sent: list[tuple[Sequence[StoreOperation], LeaderSession]] = []
        store = LeaderStore("flights", _Sending(sent))
        session = LeaderSession(leader_session_id=identity, epoch=epoch)
        try:
            store.commit(operations, session=session)
        except ConfigurationError:
            assert sent == []
            return
        ((checked, shown),) = sent
        body = commit_request(JOB, checked, shown)
        assert carried(body) == body
        assert [o.path for o in checked] == [o.path for o in operations]


class _Sending:
    """A driver that takes what the store would send."""

    def __init__(self, sent: list[tuple[Sequence[StoreOperation], Any]]) -> None:
        self._sent = sent

    def get(self, path: str) -> VersionedValue | None:
        raise AssertionError(path)

    def list(self, prefix: str) -> list[str]:
        raise AssertionError(prefix)

    def commit(
        self, operations: Sequence[StoreOperation], session: LeaderSession
    ) -> None:
        self._sent.append((operations, session))
