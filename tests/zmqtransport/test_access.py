from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zmq.utils import z85

from nameservice import ConfigurationError
from zmqtransport.access import (
    ANONYMOUS,
    AllowList,
    Principal,
    is_z85_key,
    parse_allow_list,
)


KEY_A = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
KEY_B = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


def two_clients(second: str, second_key: str) -> str:
    """Return an allow-list of client ``a``, who has `KEY_A`, and another."""
    return f"""
    [clients.a]
    public_key = "{KEY_A}"
    roles = ["admin"]
    [clients.{second}]
    public_key = "{second_key}"
    roles = ["observe"]
    """


def principal(*roles: str) -> Principal:
    """Return Alice with *roles*."""
    return Principal(name="alice", roles=frozenset(roles), public_key=KEY_A)


@pytest.mark.proves("N4")
class TestObservers:
    def test_without_a_glob_all_may_be_seen(self) -> None:
        """N4: ``observe`` and ``contend:`` see all, as ever."""
        for role in ("observe", "contend:flights", "admin"):
            principal = Principal(name="x", roles=frozenset({role}), public_key=None)
            assert principal.observes_all
            assert principal.may_see("c/anything")

    def test_a_glob_takes_the_rest_away(self) -> None:
        """N4: with ``observe:GLOB`` only what a glob matches may be seen."""
        principal = Principal(
            name="x",
            roles=frozenset({"observe:prod/f*", "contend:mine"}),
            public_key=None,
        )
        assert not principal.observes_all
        assert principal.may_see("prod/flights")
        assert principal.may_see("any/mine")
        assert not principal.may_see("test/flights")
        assert not principal.may_see("prod/other")
        assert not principal.may_see("prod/f/g")
        assert not principal.may_contend("prod/flights")

    def test_the_stronger_role_counts(self) -> None:
        """N4: a glob beside ``observe`` or ``admin`` takes nothing away."""
        for role in ("observe", "admin"):
            roles = frozenset({role, "observe:c/job"})
            assert Principal(name="x", roles=roles, public_key=None).observes_all

    @pytest.mark.parametrize(
        ("before", "after", "is_included"),
        [
            ({"observe"}, {"observe"}, True),
            ({"observe"}, {"observe", "contend:a"}, True),
            ({"contend:a"}, {"contend:a", "contend:b"}, True),
            ({"contend:a", "observe"}, {"admin"}, True),
            ({"admin"}, {"contend:*", "observe"}, False),
            ({"contend:a"}, {"contend:b"}, False),
            ({"contend:a"}, {"contend:a", "observe:b"}, False),
            ({"observe:a"}, {"observe:a", "observe:b"}, True),
        ],
    )
    def test_what_includes_what(
        self, before: set[str], after: set[str], is_included: bool
    ) -> None:
        """N4: only who may all that it might before goes on under a new list."""
        old = Principal(name="x", roles=frozenset(before), public_key=None)
        new = Principal(name="y", roles=frozenset(after), public_key=None)
        assert new.includes(old) is is_included

    def test_a_malformed_glob_is_told(self) -> None:
        """N4: the error names the role."""
        with pytest.raises(ConfigurationError, match="observe:a/b/c"):
            Principal(name="x", roles=frozenset({"observe:a/b/c"}), public_key=None)


class TestZ85:
    @given(st.binary(min_size=32, max_size=32))
    def test_every_32_bytes_are_a_key(self, raw: bytes) -> None:
        """Whatever ZeroMQ writes as a key is taken for one."""
        assert is_z85_key(z85.encode(raw).decode("ascii"))

    @given(st.text(max_size=45))
    def test_only_what_zeromq_reads_is_a_key(self, text: str) -> None:
        """Arbitrary text is no key, unless ZeroMQ would read it as 32 bytes."""
        assert is_z85_key(text) == (
            len(text) == 40
            and all(character.encode() in z85.Z85CHARS for character in text)
            and _decodes(text)
        )

    def test_a_group_above_32_bits_is_no_key(self) -> None:
        """The largest group is %nSc0; one above stands for no bytes at all."""
        assert is_z85_key("%nSc0" * 8)
        assert not is_z85_key("%nSc1" + "%nSc0" * 7)
        assert not is_z85_key("#####" * 8)

    @pytest.mark.parametrize("character", [" ", '"', "'", "\\", "~", "|", ";", "ä"])
    def test_other_characters_make_no_key(self, character: str) -> None:
        """Z85 has 85 digits; what looks similar is none of them."""
        assert is_z85_key("0" * 40)
        assert not is_z85_key(character + "0" * 39)
        assert not is_z85_key("0" * 39 + character)


def _decodes(text: str) -> bool:
    """Return whether each group of five is at most 2**32 - 1."""
    digits = [z85.Z85CHARS.index(character.encode()) for character in text]
    return all(
        sum(
            digit * 85**power
            for digit, power in zip(digits[i : i + 5], (4, 3, 2, 1, 0), strict=True)
        )
        < 2**32
        for i in range(0, 40, 5)
    )


class TestPrincipal:
    @pytest.mark.proves("N4")
    def test_observe_allows_no_more_than_observing(self) -> None:
        """Rule N4: observe is the least of the roles."""
        observer = principal("observe")
        assert observer.may_observe
        assert not observer.may_contend("prod/flights")
        assert not observer.is_admin

    @pytest.mark.proves("N4")
    def test_contend_implies_observe(self) -> None:
        """Rule N4: who may contend for a component may ask who leads."""
        contender = principal("contend:flights")
        assert contender.may_observe
        assert not contender.is_admin

    @pytest.mark.proves("N4")
    def test_admin_implies_all(self) -> None:
        """Rule N4: an admin may observe, and contend for anything."""
        admin = principal("admin")
        assert admin.is_admin
        assert admin.may_observe
        assert admin.may_contend("prod/flights")

    @pytest.mark.proves("N4")
    @pytest.mark.parametrize(
        ("glob", "component", "is_match"),
        [
            ("flights", "prod/flights", True),
            ("flights", "test/flights", True),
            ("flights", "prod/flights-2", False),
            ("flights*", "prod/flights-2", True),
            ("*", "prod/flights", True),
            ("job-[0-9]", "prod/job-7", True),
            ("job-[0-9]", "prod/job-x", False),
            ("job-?", "prod/job-x", True),
            ("prod/flights", "prod/flights", True),
            ("prod/flights", "test/flights", False),
            ("prod/*", "prod/flights", True),
            ("prod/*", "test/flights", False),
            ("*/flights", "test/flights", True),
            ("p*", "prod/flights", False),
            ("Flights", "prod/flights", False),
            ("flights", "flights", False),
            ("*", "flights", False),
            ("*", "prod/a/b", False),
            ("*/*", "prod/a/b", False),
            ("*", "prod/", False),
            ("*", "/flights", False),
            ("*", "", False),
        ],
    )
    def test_globs_match_component_or_cluster_and_component(
        self, glob: str, component: str, is_match: bool
    ) -> None:
        """Rule N4: no wildcard reaches across the slash, and case counts."""
        assert principal(f"contend:{glob}").may_contend(component) is is_match

    def test_any_of_several_globs_will_do(self) -> None:
        """Roles add up."""
        contender = principal("contend:a", "contend:prod/b", "observe")
        assert contender.may_contend("x/a")
        assert contender.may_contend("prod/b")
        assert not contender.may_contend("x/b")

    @pytest.mark.parametrize(
        "role",
        [
            "",
            "contend",
            "contend:",
            "contend:/",
            "contend:a/",
            "contend:/b",
            "contend:a/b/c",
            "Admin",
            "observe ",
            "lead",
        ],
    )
    def test_unknown_roles_are_refused(self, role: str) -> None:
        """A misspelt role is an error, not a role that grants nothing."""
        with pytest.raises(ConfigurationError):
            principal(role)

    def test_no_role_is_refused(self) -> None:
        """A client that may do nothing is a mistake."""
        with pytest.raises(ConfigurationError, match="at least one"):
            principal()

    def test_anonymous_may_do_everything(self) -> None:
        """Without CURVE a client that reaches the server may do everything."""
        assert ANONYMOUS.may_observe
        assert ANONYMOUS.may_contend("prod/flights")
        assert ANONYMOUS.is_admin
        assert ANONYMOUS.public_key is None


class TestParseAllowList:
    @pytest.mark.proves("N4")
    def test_clients_are_found_by_key(self) -> None:
        """Rule N4: a public key leads to a name and roles, and no other key does."""
        allow_list = parse_allow_list(
            f"""
            [clients.collector-1]
            public_key = "{KEY_A}"
            roles = ["contend:flights", "observe"]
            [clients."Bob, the operator"]
            public_key = "{KEY_B}"
            roles = ["admin"]
            """,
            source="clients.toml",
        )
        assert allow_list.get(KEY_A) == Principal(
            name="collector-1",
            roles=frozenset({"contend:flights", "observe"}),
            public_key=KEY_A,
        )
        operator = allow_list.get(KEY_B)
        assert operator is not None
        assert operator.name == "Bob, the operator"
        assert operator.is_admin
        assert allow_list.get("%nSc0" * 8) is None

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("", "is empty"),
            ("clients = {}", "is empty"),
            ("clients = 3", "is empty"),
            ("[clients", "not valid TOML"),
            ("[client.a]\nx = 1", "client is not known"),
            ("[clients]\na = 1", "must be a table"),
            (f'[clients.a]\npublic_key = "{KEY_A}"', "needs roles"),
            (f'[clients.a]\npublic_key = "{KEY_A}"\nroles = "admin"', "needs roles"),
            (f'[clients.a]\npublic_key = "{KEY_A}"\nroles = [1]', "needs roles"),
            (f'[clients.a]\npublic_key = "{KEY_A}"\nroles = []', "at least one"),
            (f'[clients.a]\npublic_key = "{KEY_A}"\nroles = ["x"]', "role 'x'"),
            ('[clients.a]\nroles = ["admin"]', "needs public_key"),
            ('[clients.a]\npublic_key = 7\nroles = ["admin"]', "needs public_key"),
            ('[clients.a]\npublic_key = "x"\nroles = ["admin"]', "40 characters"),
            (
                f'[clients.a]\npublic_key = "{KEY_A}"\nroles = ["admin"]\nrole = 1',
                "only public_key and roles",
            ),
            (
                f'[clients.""]\npublic_key = "{KEY_A}"\nroles = ["admin"]',
                "must be printable",
            ),
            (
                f'[clients."a\\nb"]\npublic_key = "{KEY_A}"\nroles = ["admin"]',
                "must be printable",
            ),
            (
                two_clients("b", KEY_A),
                "'a' and 'b' have the same",
            ),
            (
                two_clients("a", KEY_B),
                "not valid TOML",
            ),
            ("clients = " + "[" * 100_000, "not valid TOML: it is nested too deeply"),
            ("clients = 1" + "0" * 5_000, "not valid TOML: Exceeds the limit"),
        ],
    )
    def test_mistakes_are_named(self, text: str, complaint: str) -> None:
        """A malformed list is refused as a whole; the error names file and fault."""
        with pytest.raises(ConfigurationError, match=complaint) as caught:
            parse_allow_list(text, source="clients.toml")
        assert "clients.toml" in str(caught.value)

    def test_errors_quote_no_key(self) -> None:
        """What stands in place of a public key may be a secret one: not shown."""
        secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%c"  # one character short
        text = f'[clients.a]\npublic_key = "{secret}"\nroles = ["admin"]'
        with pytest.raises(ConfigurationError) as caught:
            parse_allow_list(text, source="clients.toml")
        assert secret not in str(caught.value)

    @given(st.text())
    def test_arbitrary_text_is_a_configuration_error(self, text: str) -> None:
        """Nothing but a `ConfigurationError` comes out of a file full of rubbish."""
        with pytest.raises(ConfigurationError):
            parse_allow_list(text, source="clients.toml")


class TestAllowList:
    def test_may_be_empty(self) -> None:
        """A program may admit no client for now, and replace the list later."""
        assert AllowList(()).get(KEY_A) is None

    def test_wants_a_key_and_a_name_for_each(self) -> None:
        """Without a key no one could be that client; two of a name confuse the log."""
        with pytest.raises(ConfigurationError, match="public_key"):
            AllowList((ANONYMOUS,))
        with pytest.raises(ConfigurationError, match="listed twice"):
            AllowList(
                (
                    principal("admin"),
                    Principal(
                        name="alice", roles=frozenset({"admin"}), public_key=KEY_B
                    ),
                )
            )
