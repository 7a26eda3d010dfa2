"""Where statements end, what they are about, and what settings they change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.sql.protocol.refusals import SQLError
from queryablestate.sql.settings import SessionSettings
from queryablestate.sql.statements import Kind, Statement, split


pytestmark = pytest.mark.proves("F6")


class TestSplitting:
    @pytest.mark.parametrize(
        ("text", "kinds"),
        [
            ("", []),
            (" ; -- x\n ;", []),
            ("SELECT 1 -- ;\r; VALUES (1)", [Kind.QUERY, Kind.QUERY]),
            ("SELECT 1", [Kind.QUERY]),
            ("select ';'; values (1)", [Kind.QUERY, Kind.QUERY]),
            ("SELECT E'\\';' ; SHOW all", [Kind.QUERY, Kind.SHOW]),
            ('SELECT ";" FROM "a;b"', [Kind.QUERY]),
            ("SELECT $$ ; $$, $a$ $$; $a$; BEGIN", [Kind.QUERY, Kind.BEGIN]),
            ("/* ; /* ; */ */ SELECT 1 -- ;", [Kind.QUERY]),
            ("BEGIN; ROLLBACK TO SAVEPOINT a", [Kind.BEGIN, Kind.ROLLBACK_TO]),
            ("(SELECT 1) UNION (SELECT 2)", [Kind.QUERY]),
            ("SELECT $1 + $2", [Kind.QUERY]),
            ("SELECT " + "([" * 50 + "])" * 50, [Kind.QUERY]),
            ("SELECT " + "(1), " * 400 + f"'{'(' * 400}'", [Kind.QUERY]),
            ("SELECT " + "(" * 300 + "n = 1" + " OR n = 2)" * 300, [Kind.QUERY]),
            ("SELECT " + "((1)), " * 9_000, [Kind.QUERY]),
        ],
    )
    def test_a_semicolon_ends_a_statement(self, text: str, kinds: list[Kind]) -> None:
        """But for those in texts, names and comments."""
        assert [one.kind for one in split(text)] == kinds

    @pytest.mark.parametrize(
        ("text", "sqlstate"),
        [
            ("SELECT 'x", "42601"),
            ('SELECT "x', "42601"),
            ("SELECT $$x", "42601"),
            ("/* x", "42601"),
            ("DELETE FROM x", "25006"),
            ("VACUUM", "25006"),
            ("COPY x TO STDOUT", "0A000"),
            ("nonsense", "0A000"),
            ("'text'", "0A000"),
            ("SELECT " + "(" * 301, "54001"),
            ("SELECT -- \r" + "(" * 301, "54001"),
            ("SELECT " + "([" * 151, "54001"),
            ("SELECT " + ")" * 301 + "(" * 301, "54001"),
            ("SELECT " + ")" * 301 + "; SELECT " + "(" * 301, "54001"),
            ("SELECT " + ("(" * 100 + "1" + ")" * 100 + ", ") * 11, "54001"),
            ("SELECT " + ("( /* x */" * 100 + "1" + ")" * 100 + ", ") * 11, "54001"),
            (("SELECT " + "(" * 250 + "1" + ")" * 250 + "; ") * 2, "54001"),
        ],
    )
    def test_what_is_none_is_refused(self, text: str, sqlstate: str) -> None:
        """With what may be asked instead."""
        with pytest.raises(SQLError) as caught:
            split(text)
        assert caught.value.sqlstate == sqlstate

    @given(st.text(alphabet="aE'\"$;-*/\\\n 1"))
    def test_any_text_ends(self, text: str) -> None:
        """It is statements, or refused."""
        try:
            found = split(text)
        except SQLError:
            return
        assert all(one.text in text for one in found)


def statement(text: str) -> Statement:
    """Return the one statement in *text*."""
    (found,) = split(text)
    return found


@pytest.fixture
def settings() -> SessionSettings:
    """Return those of a new session."""
    given_ = {"options": "-c statement_timeout=5s", "application_name": "x", "odd": ""}
    return SessionSettings("me", "flights", given_, timeout_seconds_max=60.0)


class TestSettings:
    def test_what_is_given_holds_from_the_start(
        self, settings: SessionSettings
    ) -> None:
        """As options, or as parameters of the first message."""
        assert settings.timeout_seconds == 5.0
        assert settings.reported()["application_name"] == "x"
        assert settings.search_path == ("flights",)

    @pytest.mark.parametrize(
        ("value", "seconds"),
        [
            ("100", 0.1),
            ("2min", 60.0),
            ("90000ms", 60.0),
            ("0", 60.0),
            ("0.5s", 0.5),
            ("0.005 min", 0.3),
            ("500us", 0.0005),
            ("1h", 60.0),
            ("1 d", 60.0),
            ("9" * 20, 60.0),
        ],
    )
    def test_a_session_has_no_longer_than_the_server(
        self, settings: SessionSettings, value: str, seconds: float
    ) -> None:
        """
        Milliseconds, if there is no unit; with a fraction, and all units of Postgres'.

        A time that was not understood, as half a second was not, meant no timeout but
        the server's.
        """
        settings.put("statement_timeout", value)
        assert settings.timeout_seconds == seconds

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("SET application_name = 'a b'", ("application_name", "a b")),
            ("SET SESSION application_name TO y", ("application_name", "y")),
            ("SET search_path TO a, b", None),
            ("SET TIME ZONE 'Europe/Berlin'", None),
            ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", None),
            ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", None),
            ("SET LOCAL statement_timeout = 10", None),
            ("SET extension.name = 1", None),
        ],
    )
    def test_set_is_taken(
        self, settings: SessionSettings, text: str, told: tuple[str, str] | None
    ) -> None:
        """Tools are told of those that they follow."""
        before = settings.reported()
        settings.set(statement(text))
        changed = settings.reported().items() - before.items()
        assert changed == ({told} if told else set())

    @pytest.mark.parametrize(
        ("text", "sqlstate"),
        [
            ("SET nothing = 1", "42704"),
            ("SET is_superuser = on", "55P02"),
            ("SET client_encoding = 'LATIN1'", "22023"),
            ("SET standard_conforming_strings = off", "22023"),
            ("SET application_name", "42601"),
            ("SET", "42601"),
            (f"SET application_name = '{'x' * 2_000}'", "22023"),
            ("SET statement_timeout = '5 sec'", "22023"),
            ("SET statement_timeout = -1", "22023"),
            (f"SET statement_timeout = {'9' * 400}", "22023"),
        ],
    )
    def test_what_cannot_be_set_is_refused(
        self, settings: SessionSettings, text: str, sqlstate: str
    ) -> None:
        """With a SQLSTATE of Postgres'."""
        with pytest.raises(SQLError) as caught:
            settings.set(statement(text))
        assert caught.value.sqlstate == sqlstate

    def test_reset_brings_back_what_was_given(self, settings: SessionSettings) -> None:
        """One, or all."""
        settings.put("search_path", "a, b")
        assert list(settings.search_path) == ["a", "b"]
        settings.reset(statement("RESET search_path"))
        assert settings.search_path == ("flights",)
        settings.put("statement_timeout", "1")
        settings.set(statement("SET statement_timeout TO DEFAULT"))
        assert settings.timeout_seconds == 5.0

    def test_show_names_what_there_is(self, settings: SessionSettings) -> None:
        """However it is spelt."""
        assert settings.show(statement("SHOW TIME ZONE")) == [("timezone", "UTC")]
        assert settings.show(statement("SHOW transaction isolation level")) == [
            ("transaction_isolation", "read committed")
        ]
        assert len(settings.show(statement("SHOW ALL"))) > 20
        with pytest.raises(SQLError):
            settings.show(statement("SHOW nothing"))
