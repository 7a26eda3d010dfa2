"""The server's side of a conversation: what is said to what, whatever is sent."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queryablestate.sql.protocol.conversation import (
    BindAsked,
    CancelAsked,
    Conversation,
    DescribePortalAsked,
    DescribeStatementAsked,
    Ended,
    ExecuteAsked,
    LoginAsked,
    ParseAsked,
    PasswordGiven,
    QueryAsked,
    Step,
    TLSAsked,
)
from queryablestate.sql.protocol.messages import (
    command_complete,
    parameter_description,
)
from queryablestate.sql.protocol.refusals import SQLError


pytestmark = pytest.mark.proves("F6")


def startup(version: int = 3 << 16, **parameters: str) -> bytes:
    """Return the first message."""
    body = struct.pack("!i", version)
    for name, value in parameters.items():
        body += f"{name}\0{value}\0".encode()
    body += b"\0"
    return struct.pack("!i", len(body) + 4) + body


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return any other message."""
    return kind + struct.pack("!i", len(body) + 4) + body


def parse(name: str, text: str, *oids: int) -> bytes:
    """Return Parse."""
    packed = struct.pack(f"!h{len(oids)}i", len(oids), *oids)
    return message(b"P", f"{name}\0{text}\0".encode() + packed)


def bind(portal: str = "", statement: str = "") -> bytes:
    """Return Bind without values."""
    return message(
        b"B", f"{portal}\0{statement}\0".encode() + struct.pack("!hhh", 0, 0, 0)
    )


def execute(portal: str = "", row_limit: int = 0) -> bytes:
    """Return Execute."""
    return message(b"E", f"{portal}\0".encode() + struct.pack("!i", row_limit))


SYNC = message(b"S")


def kinds(output: bytes) -> str:
    """Return the types of the messages in *output*."""
    found = ""
    while output:
        found += chr(output[0])
        size = int.from_bytes(output[1:5], "big")
        output = output[size + 1 :]
    return found


def sqlstate(output: bytes) -> str:
    """Return the SQLSTATE of the error in *output*."""
    return output.partition(b"\0C")[2][:5].decode()


@pytest.fixture
def talk() -> Conversation:
    """Return a conversation whose session has begun."""
    begun = Conversation()
    begun.feed(startup(user="me"))
    assert begun.step() == LoginAsked({"user": "me"})
    begun.let_in(7, 8, {"server_version": "15.0"})
    assert kinds(begun.take_output()) == "RSKZ"
    return begun


class TestBeginning:
    def test_a_password_is_asked_for(self) -> None:
        """Then it is the next step, and appears in no ``repr``."""
        talk = Conversation()
        talk.feed(startup(user="me", database="x"))
        assert talk.step() == LoginAsked({"user": "me", "database": "x"})
        talk.want_password()
        assert talk.take_output() == b"R\0\0\0\x08\0\0\0\x03"
        talk.feed(message(b"p", b"secret\0"))
        given_ = talk.step()
        assert given_ == PasswordGiven("secret")
        assert "secret" not in repr(given_)

    def test_tls_is_asked_for_first(self) -> None:
        """And the session begins behind it."""
        talk = Conversation()
        talk.feed(struct.pack("!ii", 8, 80877103) + startup(user="me"))
        assert talk.step() == TLSAsked()
        assert talk.has_unread
        assert isinstance(talk.step(), LoginAsked)

    def test_gss_is_not_spoken(self) -> None:
        """The tool goes on without."""
        talk = Conversation()
        talk.feed(struct.pack("!ii", 8, 80877104))
        assert talk.step() is None
        assert talk.take_output() == b"N"

    def test_a_cancel_request_is_all_of_a_connection(self) -> None:
        """Nothing is answered."""
        talk = Conversation()
        talk.feed(struct.pack("!iiII", 16, 80877102, 7, 2**32 - 1))
        assert talk.step() == CancelAsked(7, 2**32 - 1)
        assert talk.step() == Ended()
        assert talk.take_output() == b""

    def test_a_newer_minor_version_is_negotiated(self) -> None:
        """With the extensions that are not known."""
        talk = Conversation()
        talk.feed(startup((3 << 16) + 2, user="me", _pq_=""))
        assert isinstance(talk.step(), LoginAsked)
        assert kinds(talk.take_output()) == "v"

    @pytest.mark.parametrize(
        "data",
        [
            startup(2 << 16, user="me"),
            startup(database="x"),
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\0\0\0\0\0",
            startup(user="me")[:-1] + b"x",
            startup(user="me") + message(b"Q", b"SELECT 1\0"),
            startup(user="me") + message(b"p", b"x" * 6_000 + b"\0"),
        ],
    )
    def test_what_is_no_beginning_ends_it(self, data: bytes) -> None:
        """With a sentence, and the connection with it."""
        talk = Conversation()
        talk.feed(data)
        step = talk.step()
        if isinstance(step, LoginAsked):
            step = talk.step()
        assert step == Ended()
        assert kinds(talk.take_output()) == "E"


class TestStatements:
    def test_a_text_is_a_step(self, talk: Conversation) -> None:
        """And is answered up to ReadyForQuery."""
        talk.feed(message(b"Q", b"SELECT 1\0"))
        assert talk.step() == QueryAsked("SELECT 1")
        talk.say(command_complete("SELECT 1"))
        talk.query_done()
        assert kinds(talk.take_output()) == "CZ"

    def test_a_statement_is_prepared_bound_described_and_executed(
        self, talk: Conversation
    ) -> None:
        """In the order of the messages, though they come at once."""
        talk.feed(
            parse("s", "SELECT $1", 23)
            + message(b"D", b"Ss\0")
            + bind("p", "s")
            + message(b"D", b"Pp\0")
            + execute("p", 5)
            + SYNC
        )
        assert talk.step() == ParseAsked("s", "SELECT $1", [23])
        talk.prepared("statement")
        assert talk.step() == DescribeStatementAsked("statement")
        step = talk.step()
        assert isinstance(step, BindAsked)
        talk.bound(step.bind.portal, "portal")
        assert talk.step() == DescribePortalAsked("portal")
        assert talk.step() == ExecuteAsked("portal", 5)
        assert talk.step() is None
        assert kinds(talk.take_output()) == "12Z"
        assert talk.closed_portals == ["portal"]

    def test_after_an_error_all_is_ignored_up_to_sync(self, talk: Conversation) -> None:
        """
        So what was sent ahead does not go on without what failed.

        A Query was run, and its ReadyForQuery taken for that of the Sync: the tool was
        one answer behind from there on.
        """
        ahead = bind() + execute() + message(b"Q", b"SELECT 1\0")
        talk.feed(parse("", "SELEC") + ahead + SYNC + parse("", "SELECT 1"))
        assert isinstance(talk.step(), ParseAsked)
        talk.fail(SQLError("42601", "no"))
        assert talk.step() == ParseAsked("", "SELECT 1", [])
        assert kinds(talk.take_output()) == "EZ"

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            (bind("", "none"), "26000"),
            (execute("none"), "34000"),
            (message(b"D", b"Pnone\0"), "34000"),
            (message(b"F", b""), "0A000"),
            (parse("", "SELECT \xff"), ""),
        ],
    )
    def test_what_is_not_there_is_told(
        self, talk: Conversation, sent: bytes, expected: str
    ) -> None:
        """And the connection goes on."""
        talk.feed(sent + SYNC)
        while talk.step() is not None:
            pass
        output = talk.take_output()
        if expected:
            assert sqlstate(output) == expected
        assert kinds(output)[-1] == "Z"

    @pytest.mark.parametrize(
        "sent",
        [
            b"Q\0\0\0\x03",
            b"Q\x7f\xff\xff\xff",
            message(b"?"),
            message(b"Q", b"no end"),
            message(b"B", b"\0\0\0\1\0\7"),
            message(b"P", b"\0\0\0\7"),
            message(b"Q", b"SELECT 1\0more"),
        ],
    )
    def test_what_makes_no_sense_ends_it(self, talk: Conversation, sent: bytes) -> None:
        """Where the next message begins is not known then."""
        talk.feed(sent)
        assert talk.step() == Ended()
        output = talk.take_output()
        assert sqlstate(output) == "08P01"
        assert talk.step() == Ended()

    def test_a_type_has_a_number_above_zero(self, talk: Conversation) -> None:
        """Half of all were taken for negative ones, and told as an internal error."""
        talk.feed(parse("", "SELECT $1", -1))
        step = talk.step()
        assert step == ParseAsked("", "SELECT $1", [2**32 - 1])
        assert parameter_description(step.type_oids)[-4:] == b"\xff" * 4

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            (message(b"Q", b"SELECT '\xff'\0"), "22021"),
            (message(b"F", struct.pack("!ihhh", 1, 0, 0, 0)), "0A000"),
        ],
        ids=["text that is not UTF-8", "call of a function"],
    )
    def test_what_no_sync_follows_ends_with_its_error(
        self, talk: Conversation, sent: bytes, expected: str
    ) -> None:
        """The tool waited for ever: it was to send a Sync, and none is due here."""
        talk.feed(sent + message(b"Q", b"SELECT 1\0"))
        assert talk.step() == QueryAsked("SELECT 1")
        output = talk.take_output()
        assert (kinds(output), sqlstate(output)) == ("EZ", expected)

    def test_numbers_are_bounded(self, talk: Conversation) -> None:
        """Of prepared statements, of portals and of parameters."""
        for number in range(501):
            talk.feed(parse(f"s{number}", "SELECT 1") + SYNC)
            if isinstance(talk.step(), ParseAsked):
                talk.prepared(number)
        assert sqlstate(talk.take_output()[-120:]) == "54000"
        talk.feed(parse("", "SELECT 1", *range(1_001)))
        talk.step()
        assert sqlstate(talk.take_output()) == "54000"


class TestTransactions:
    def test_an_error_fails_the_transaction(self, talk: Conversation) -> None:
        """Until its end, which is a rollback whatever it is called."""
        talk.begin()
        talk.fail(SQLError("22012", "no"))
        assert talk.transaction == b"E"
        with pytest.raises(SQLError, match="aborted"):
            talk.check_transaction()
        assert talk.finish(commits=True) == "ROLLBACK"
        talk.check_transaction()

    def test_a_savepoint_brings_it_back(self, talk: Conversation) -> None:
        """There is nothing to undo."""
        talk.begin()
        talk.fail(SQLError("22012", "no"))
        talk.roll_back_to()
        assert talk.transaction == b"T"
        assert talk.finish(commits=True) == "COMMIT"

    def test_portals_outlive_sync_inside_of_one(self, talk: Conversation) -> None:
        """So that rows can be fetched in parts."""
        talk.begin()
        talk.feed(parse("", "SELECT 1") + bind("p") + SYNC + execute("p", 1))
        assert isinstance(talk.step(), ParseAsked)
        talk.prepared("statement")
        step = talk.step()
        assert isinstance(step, BindAsked)
        talk.bound("p", "portal")
        assert talk.step() == ExecuteAsked("portal", 1)
        assert talk.closed_portals == []
        talk.finish(commits=False)
        assert talk.closed_portals == ["portal"]

    def test_needless_words_are_warned_of(self, talk: Conversation) -> None:
        """A second BEGIN, and a COMMIT of nothing."""
        talk.take_output()
        talk.finish(commits=True)
        talk.begin()
        talk.begin()
        assert kinds(talk.take_output()) == "NN"


def answer(talk: Conversation, step: Step) -> None:
    """Do something that fits *step*."""
    match step:
        case TLSAsked():
            talk.say(b"N")
        case LoginAsked():
            talk.want_password()
        case PasswordGiven():
            talk.let_in(1, 2, {})
        case QueryAsked():
            talk.query_done()
        case ParseAsked():
            talk.prepared(step)
        case BindAsked(bind=bound):
            talk.bound(bound.portal, bound)
        case _:
            talk.fail(SQLError("0A000", "no"))


pieces: Any = st.one_of(
    st.binary(max_size=40),
    st.builds(
        message,
        st.sampled_from([bytes([n]) for n in b"QPBDECSHXFdcfp?"]),
        st.binary(max_size=30),
    ),
    st.sampled_from(
        [parse("a", "SELECT 1"), bind("", "a"), execute(), SYNC, message(b"Q", b"x\0")]
    ),
)


@given(
    st.booleans(),
    st.lists(pieces, max_size=12),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_rubbish_is_answered_or_ends_it(
    is_in: bool, sent: list[bytes], cuts: list[int]
) -> None:
    """Nothing raises, nothing loops, nothing is kept of what was dealt with."""
    talk = Conversation(message_size_bytes_max=1_000)
    if is_in:
        talk.feed(startup(user="me"))
        assert isinstance(talk.step(), LoginAsked)
        talk.let_in(1, 2, {})
    data = b"".join(sent)
    place = 0
    while place < len(data):
        cut = cuts[place % len(cuts)]
        talk.feed(data[place : place + cut])
        place += cut
        for _ in range(200):
            step = talk.step()
            if step is None:
                break
            if step == Ended():
                return
            answer(talk, step)
        else:
            pytest.fail("it goes on without being told more")
