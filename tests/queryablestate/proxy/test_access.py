from __future__ import annotations

import pickle
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nameservice import ConfigurationError
from queryablestate.proxy.access import (
    ANONYMOUS_CALLER,
    AccessList,
    Caller,
    CallerEntry,
    Right,
    open_access,
    token_sha256,
)
from queryablestate.wire.clients import TOKEN_LENGTH_MAX


KEY_A = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
KEY_B = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def entry(name: str = "dashboard", **settings: Any) -> CallerEntry:
    """Return an entry whose token is ``NAME-token`` and that may read everything."""
    if "public_key" not in settings:
        settings.setdefault("token_sha256", token_sha256(f"{name}-token"))
    if not settings.keys() & {"read", "write", "admin", "node"}:
        settings["read"] = ["*/*"]
    return CallerEntry(name=name, **settings)


def access(*entries: CallerEntry) -> AccessList:
    """Return the list of *entries*."""
    return AccessList(callers=entries)


def caller_of(
    access_list: AccessList, token: str | None = None, key: str | None = None
) -> Caller:
    """Return who shows *token* or *key*, who must be known."""
    caller = access_list.authenticate(token=token, public_key=key)
    assert caller is not None
    return caller


@pytest.mark.proves("C1")
class TestToken:
    def test_its_hash_is_what_sha256sum_prints(self) -> None:
        """C1: an operator can make the hash with any tool there is."""
        assert token_sha256("s3cret") == sha256(b"s3cret").hexdigest()

    @given(st.text(st.characters(codec=None), max_size=5))
    def test_every_text_has_a_hash(self, token: str) -> None:
        """C1: whatever a peer sends is judged, lone surrogates included."""
        assert len(token_sha256(token)) == 64
        assert access(entry()).authenticate(token=token) is None


class TestOpenAccess:
    @pytest.mark.proves("C1")
    def test_whoever_connects_may_do_everything(self) -> None:
        """C1: without a list there are no rights to check, and none is asked who."""
        everybody = open_access()
        assert everybody.is_open
        for shown in ({}, {"token": "x"}, {"public_key": KEY_A}):
            assert everybody.authenticate(**shown) is ANONYMOUS_CALLER
        for right in Right:
            assert everybody.may(ANONYMOUS_CALLER, right, "flights", "aircraft")
            assert everybody.may(ANONYMOUS_CALLER, right, "flights")
        assert everybody.may_see_job(ANONYMOUS_CALLER, "flights")
        assert everybody.allow_list() is None

    @pytest.mark.proves("C4")
    def test_it_ends_when_a_list_comes(self) -> None:
        """C4: sessions from before the list have proved nothing, and may do nothing."""
        closed = access(entry(admin=True))
        assert not closed.is_open
        assert not closed.may(ANONYMOUS_CALLER, Right.READ, "flights", "aircraft")
        assert not closed.may_see_job(ANONYMOUS_CALLER, "flights")

    @pytest.mark.proves("C1")
    def test_nobody_on_a_list_is_called_anonymous(self) -> None:
        """C1: else one that proved nothing would have that entry's name."""
        with pytest.raises(ConfigurationError, match="choose another"):
            entry("anonymous")


class TestAuthentication:
    @pytest.mark.proves("C1")
    def test_a_token_names_its_caller(self) -> None:
        """C1: who a caller is, its credential says and nothing else."""
        people = access(entry("a"), entry("b"), entry("c", public_key=KEY_A))
        assert caller_of(people, "a-token").name == "a"
        assert caller_of(people, "b-token").name == "b"
        assert not caller_of(people, "b-token").is_anonymous

    @pytest.mark.proves("C1")
    def test_a_key_names_its_caller(self) -> None:
        """C1: a CURVE key that was proved needs no token."""
        people = access(
            entry("a"), entry("b", public_key=KEY_A), entry("c", public_key=KEY_B)
        )
        assert caller_of(people, key=KEY_A).name == "b"
        assert caller_of(people, key=KEY_B).name == "c"

    @pytest.mark.proves("C1")
    def test_whoever_shows_nothing_known_is_nobody(self) -> None:
        """C1: no credential, a wrong one, the hash itself, or nothing at all."""
        people = access(entry("a"), entry("b", public_key=KEY_A))
        for token in ("", "c-token", token_sha256("a-token"), KEY_A, "x" * 5_000):
            assert people.authenticate(token=token) is None
        assert people.authenticate(public_key=KEY_B) is None
        assert people.authenticate(public_key=token_sha256("a-token")) is None
        assert people.authenticate() is None

    @pytest.mark.proves("C1")
    def test_a_wrong_token_is_not_made_good_by_a_key(self) -> None:
        """C1: who says who it is, is that or none."""
        people = access(entry("a"), entry("b", public_key=KEY_A))
        assert people.authenticate(token="wrong", public_key=KEY_A) is None
        assert caller_of(people, "a-token", KEY_A).name == "a"

    def test_tokens_have_a_length(self) -> None:
        """A token that is too long is refused before it costs anything."""
        longest = "x" * TOKEN_LENGTH_MAX
        people = access(
            entry("a", token_sha256=token_sha256(longest)),
            entry("b", token_sha256=token_sha256(longest + "x")),
        )
        assert caller_of(people, longest).name == "a"
        assert people.authenticate(token=longest + "x") is None

    @pytest.mark.proves("C1")
    def test_the_keys_are_let_in_by_the_transport(self) -> None:
        """C1: callers with a key are those that a CURVE handshake admits."""
        people = access(entry("a"), entry("b", public_key=KEY_A))
        admitted = people.allow_list()
        assert admitted is not None
        principal = admitted.get(KEY_A)
        assert principal is not None
        assert principal.name == "b"
        assert admitted.get(KEY_B) is None
        assert access(entry("a")).allow_list() is None

    @pytest.mark.proves("C1")
    def test_a_key_is_optional_where_something_else_will_do(self) -> None:
        """C1: a token, or nothing at all where everybody may do everything."""
        with_key = entry("a", public_key=KEY_A)
        assert not access(with_key).is_key_optional
        assert access(with_key, entry("b")).is_key_optional
        assert open_access().is_key_optional

    @pytest.mark.proves("C1")
    def test_a_writer_is_who_may_publish_anything(self) -> None:
        """C1: whatever it is called; operators may do everything."""
        people = access(
            entry("a", write=["x/y"]), entry("b", read=["*/*"]), entry("c", admin=True)
        )
        writers = [
            name
            for name in "abc"
            if people.is_writer(caller_of(people, f"{name}-token"))
        ]
        assert writers == ["a", "c"]
        assert open_access().is_writer(ANONYMOUS_CALLER)
        assert not access(entry("b")).is_writer(caller_of(people, "a-token"))


class TestRights:
    @pytest.mark.proves("C1")
    def test_reading_is_by_state(self) -> None:
        """C1: a caller reads the states that one of its globs means, and no other."""
        people = access(entry(read=["flights/*", "*/aircraft"]))
        caller = caller_of(people, "dashboard-token")
        assert people.may(caller, Right.READ, "flights", "log")
        assert people.may(caller, Right.READ, "trains", "aircraft")
        assert not people.may(caller, Right.READ, "trains", "log")
        assert not people.may(caller, Right.WRITE, "flights", "log")
        assert not people.may(caller, Right.ADMIN)
        assert not people.may(caller, Right.NODE)

    @pytest.mark.proves("C1")
    def test_writing_is_not_reading(self) -> None:
        """C1: a job that publishes its states need not read anybody's."""
        people = access(entry(write=["flights/*"]))
        caller = caller_of(people, "dashboard-token")
        assert people.may(caller, Right.WRITE, "flights", "log")
        assert not people.may(caller, Right.WRITE, "trains", "log")
        assert not people.may(caller, Right.READ, "flights", "log")

    @pytest.mark.proves("C1")
    def test_a_node_may_join_and_no_more(self) -> None:
        """C1: what a node is given to keep, it need not ask for."""
        people = access(entry(node=True))
        caller = caller_of(people, "dashboard-token")
        assert people.may(caller, Right.NODE)
        assert not people.may(caller, Right.READ, "flights", "log")
        assert not people.may(caller, Right.ADMIN)
        assert not people.may_see_job(caller, "flights")

    @pytest.mark.proves("C1")
    def test_an_admin_may_do_everything(self) -> None:
        """C1: as an admin of the name service may."""
        people = access(entry(admin=True))
        caller = caller_of(people, "dashboard-token")
        for right in Right:
            assert people.may(caller, right, "flights", "log")
        assert people.may_see_job(caller, "flights")

    @pytest.mark.proves("C1")
    def test_a_whole_job_takes_a_glob_for_all_its_states(self) -> None:
        """C1: without a state's name, every state that could be is meant."""
        people = access(entry(read=["flights/*", "trains/log"]))
        caller = caller_of(people, "dashboard-token")
        assert people.may(caller, Right.READ, "flights")
        assert not people.may(caller, Right.READ, "trains")

    @pytest.mark.proves("C1")
    def test_a_job_is_seen_through_any_of_its_states(self) -> None:
        """C1: a job that a caller could neither read nor write is not shown to it."""
        people = access(entry(read=["flights/log"], write=["trains/x"]))
        caller = caller_of(people, "dashboard-token")
        assert people.may_see_job(caller, "flights")
        assert people.may_see_job(caller, "trains")
        assert not people.may_see_job(caller, "ships")

    @pytest.mark.proves("C4")
    def test_a_new_list_holds_for_old_sessions(self) -> None:
        """C4: rights are those of the list of the moment."""
        caller = caller_of(access(entry(read=["a/*"])), "dashboard-token")
        later = access(entry(read=["b/*"]))
        assert not later.may(caller, Right.READ, "a", "x")
        assert later.may(caller, Right.READ, "b", "x")

    @pytest.mark.proves("C4")
    def test_who_was_taken_off_may_do_nothing(self) -> None:
        """C4: an open session is no right."""
        caller = caller_of(access(entry(admin=True)), "dashboard-token")
        later = access(entry("another", admin=True))
        assert not later.may(caller, Right.READ, "a", "x")
        assert not later.may_see_job(caller, "a")

    @pytest.mark.proves("C4")
    def test_a_replaced_credential_ends_what_the_old_one_could(self) -> None:
        """C4: a token that leaked is worth nothing once it was replaced."""
        caller = caller_of(access(entry(admin=True)), "dashboard-token")
        later = access(entry(admin=True, token_sha256=token_sha256("next")))
        assert not later.may(caller, Right.READ, "a", "x")
        assert later.may(caller_of(later, "next"), Right.READ, "a", "x")


@pytest.mark.proves("C1")
class TestSecrecy:
    def test_no_credential_is_in_a_repr(self) -> None:
        """C1: what is logged by mistake tells no token, hash or key."""
        people = access(entry("a"), entry("b", public_key=KEY_A))
        shown = repr(people) + repr(caller_of(people, "a-token"))
        shown += repr(caller_of(people, key=KEY_A))
        for secret in ("a-token", token_sha256("a-token"), KEY_A):
            assert secret not in shown
        assert "'a'" in shown

    @pytest.mark.parametrize(
        "settings",
        [
            {"token_sha256": token_sha256("s3cret").upper()},
            {"token_sha256": token_sha256("s3cret")[1:]},
            {"public_key": KEY_A[1:]},
            {"public_key": KEY_A, "token_sha256": token_sha256("s3cret")},
        ],
    )
    def test_no_credential_is_in_an_error(self, settings: dict[str, str]) -> None:
        """C1: an error names the setting, and quotes neither hash nor key."""
        with pytest.raises(
            ConfigurationError, match=r"token_sha256|public_key"
        ) as caught:
            entry(**settings)
        for value in settings.values():
            assert value not in str(caught.value)


class TestEntries:
    @pytest.mark.proves("C4")
    @pytest.mark.parametrize(
        ("settings", "match"),
        [
            ({"token_sha256": None}, "either token_sha256 or public_key"),
            ({"token_sha256": 7}, "64 hexadecimal digits"),
            ({"token_sha256": "s3cret"}, "64 hexadecimal digits"),
            ({"token_sha256": token_sha256("")}, "empty token"),
            ({"public_key": 7}, "40 characters"),
            ({"public_key": ""}, "40 characters"),
            ({"read": "flights/*"}, 'read must be a list of globs, e.g. \\["flights'),
            ({"read": ["flights"]}, "read: glob 'flights' must be JOB/STATE"),
            ({"write": [7]}, "write: glob 7 must be JOB/STATE"),
            (
                {"write": ["a/b"] * 1_001},
                "write must be at most 1,000 globs, not 1,001",
            ),
            ({"admin": 1}, "admin must be true or false: 1"),
            ({"node": "yes"}, "node must be true or false: 'yes'"),
            ({"read": []}, "it may do nothing"),
            ({"name": ""}, "name of a caller must have 1 to 255 characters"),
            ({"name": "a/b"}, "name of a caller must be printable and without '/'"),
        ],
    )
    def test_a_mistake_is_named(self, settings: dict[str, Any], match: str) -> None:
        """C4: what is wrong with an entry is said, and what it should be."""
        with pytest.raises(ConfigurationError, match=match):
            entry(**settings)

    @pytest.mark.proves("C4")
    def test_a_list_that_lets_nobody_in_is_refused(self) -> None:
        """C4: an empty list is a mistake; no list at all admits everybody."""
        with pytest.raises(ConfigurationError, match="is empty"):
            access()

    @pytest.mark.proves("C1")
    def test_names_and_credentials_are_one_callers_own(self) -> None:
        """C1: a credential that named two callers would name none."""
        with pytest.raises(ConfigurationError, match="different names"):
            access(entry("a"), entry("a", public_key=KEY_A))
        with pytest.raises(ConfigurationError, match="'a' and 'b' have the same cred"):
            access(entry("a", public_key=KEY_A), entry("b", public_key=KEY_A))
        same = token_sha256("same")
        with pytest.raises(ConfigurationError, match="'a' and 'b' have the same cred"):
            access(entry("a", token_sha256=same), entry("b", token_sha256=same))

    def test_there_is_a_limit(self) -> None:
        """Everything has a limit: 10,000 callers."""
        callers = [entry(f"c{index}") for index in range(10_001)]
        assert not access(*callers[:10_000]).is_open
        with pytest.raises(ConfigurationError, match="at most 10,000, not 10,001"):
            access(*callers)

    def test_a_list_is_a_value(self) -> None:
        """Two lists that say the same are equal, in other processes too."""
        people = access(entry("a"), entry("b", public_key=KEY_A))
        copy = pickle.loads(pickle.dumps(people))
        assert copy == people
        assert hash(copy) == hash(people)
        assert caller_of(copy, "a-token").name == "a"
        assert people != access(entry("a"))
