from __future__ import annotations

from uuid import UUID

import pytest

from leaderserver.client.core.exchanges import Exchange, ExchangeKey, Purpose
from leaderserver.client.core.failures import (
    error_of_failure,
    error_of_refusal,
    error_of_silence,
)
from leaderserver.messages import (
    ConfirmRequest,
    FailedReply,
    Failure,
    RefusedHello,
    RequestBody,
)
from leaderserver.operator_messages import ExpireRequest, StatusRequest, TransferRequest
from leaderserver.store_messages import CleanupRequest, CommitRequest, DeleteRecord
from nameservice import (
    AuthenticationError,
    ConfigurationError,
    DidNotHappenError,
    LeadershipLostError,
    MayHaveHappenedError,
    NameServiceError,
    NoLeaderError,
    RemoteProtocolError,
    StaleEpochError,
    UnknownContenderError,
    UnknownSessionError,
    UnreachableError,
    VersionMismatchError,
)


TARGET = "leaderserver://h:1"
COMMIT = CommitRequest(
    component_id="c/job",
    leader_session_id=UUID(int=1),
    epoch=7,
    operations=[DeleteRecord(path="p", version=None)],
)
CONFIRM = ConfirmRequest(
    component_id="c/job",
    contender_id="x",
    leader_session_id=UUID(int=1),
    confirm_count=1,
    address="a:1",
)
CLEANUP = CleanupRequest(component_id="c/job")
TRANSFER = TransferRequest(component_id="c/job", contender_id="x")
EXPIRE = ExpireRequest(session_id="s1")


def same(one: NameServiceError, other: NameServiceError) -> bool:
    """Return whether two errors are of one class and carry the same data."""
    return type(one) is type(other) and one.args == other.args


class TestErrorOfRefusal:
    @pytest.mark.parametrize(
        ("reason", "error"),
        [
            (Failure.NOT_ALLOWED, AuthenticationError(TARGET, "no key")),
            (Failure.LIMIT_REACHED, DidNotHappenError(f"{TARGET}: no key")),
            (
                Failure.WRONG_VERSION,
                RemoteProtocolError("wrong-version", f"{TARGET}: no key"),
            ),
            (
                "of-the-future",
                RemoteProtocolError("of-the-future", f"{TARGET}: no key"),
            ),
        ],
    )
    def test_reasons(self, reason: str, error: NameServiceError) -> None:
        """Not allowed, too many and not understood are different answers (L4)."""
        refused = RefusedHello(nonce=b"", reason=reason, detail="no key")
        assert same(error_of_refusal(refused, TARGET), error)


class TestErrorOfFailure:
    @pytest.mark.parametrize(
        ("reason", "body", "error"),
        [
            (Failure.NOT_ALLOWED, CONFIRM, AuthenticationError(TARGET, "why")),
            (Failure.STALE, COMMIT, StaleEpochError("job", 7, 9)),
            (Failure.STALE, CONFIRM, LeadershipLostError("job", None)),
            (Failure.VERSION_MISMATCH, COMMIT, VersionMismatchError("p", 2, 3)),
            (Failure.NO_LEADER, CLEANUP, NoLeaderError("job", 0.0)),
            (Failure.UNKNOWN_SESSION, EXPIRE, UnknownSessionError("s1")),
            (
                Failure.UNKNOWN_SESSION,
                CLEANUP,
                DidNotHappenError(f"{TARGET}: why (unknown-session)"),
            ),
            (
                Failure.UNKNOWN_CONTENDER,
                TRANSFER,
                UnknownContenderError("job", "x"),
            ),
            (
                Failure.NOT_HEARD,
                TRANSFER,
                DidNotHappenError(f"{TARGET}: why (not-heard)"),
            ),
            (Failure.INVALID, CLEANUP, ConfigurationError(f"{TARGET}: why")),
            (
                Failure.UNDECIDED,
                COMMIT,
                DidNotHappenError(f"{TARGET}: why (undecided)"),
            ),
            (
                Failure.STORAGE,
                StatusRequest(),
                DidNotHappenError(f"{TARGET}: why (storage)"),
            ),
        ],
    )
    def test_reasons(
        self, reason: str, body: RequestBody, error: NameServiceError
    ) -> None:
        """What the server says of a request comes back as its own error (L2, L4)."""
        failed = FailedReply(
            reason=reason,
            detail="why",
            epoch_max=9,
            path="p",
            version=3,
            version_expected=2,
        )
        assert same(error_of_failure(failed, body, TARGET), error)

    def test_a_mismatch_may_come_without_its_data(self) -> None:
        """A field that is missing is no reason to fail in another way."""
        failed = FailedReply(reason=Failure.VERSION_MISMATCH, detail="")
        error = error_of_failure(failed, COMMIT, TARGET)
        assert same(error, VersionMismatchError("", 0, None))


class TestErrorOfSilence:
    @pytest.mark.parametrize(
        ("purpose", "body", "is_repeatable", "was_sent", "kind"),
        [
            (Purpose.CALL, StatusRequest(), True, False, UnreachableError),
            (Purpose.CALL, StatusRequest(), True, True, UnreachableError),
            (Purpose.CALL, COMMIT, False, False, DidNotHappenError),
            (Purpose.CALL, COMMIT, False, True, MayHaveHappenedError),
            (Purpose.CALL, CLEANUP, True, False, DidNotHappenError),
            (Purpose.CALL, CLEANUP, True, True, MayHaveHappenedError),
            (Purpose.CONFIRM, CONFIRM, True, False, DidNotHappenError),
            (Purpose.CONFIRM, CONFIRM, True, True, MayHaveHappenedError),
        ],
    )
    def test_kinds(
        self,
        purpose: Purpose,
        body: RequestBody,
        is_repeatable: bool,
        was_sent: bool,
        kind: type[NameServiceError],
    ) -> None:
        """Only what was sent and changes something may have happened (E3, L4)."""
        key: ExchangeKey = (purpose, "1")
        exchange = Exchange(
            key=key,
            body=body,
            call_id=1,
            began_ns=0,
            deadline_ns=None,
            retry_ns=1,
            retry_ns_max=1,
            is_repeatable=is_repeatable,
            due_ns=None,
            was_sent=was_sent,
        )
        error = error_of_silence(exchange, target=TARGET, waited_ns=2_500_000_000)
        assert type(error) is kind
        assert TARGET in str(error)
        assert "2.5 s" in str(error)
