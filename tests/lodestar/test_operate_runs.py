from __future__ import annotations

import json

import pytest

from tests.lodestar.running import Ask, Running, contenders_of, on_both, run


pytestmark = pytest.mark.shells

LEAD = ("--", "sh", "-c", "echo epoch $LODESTAR_EPOCH; exec sleep 600")


@pytest.fixture
def at(url: str, cluster_id: str) -> tuple[str, ...]:
    """Return the options that name the name service, and the test's own cluster."""
    return ("--url", url, "--cluster-id", cluster_id)


class TestStatus:
    @pytest.mark.proves("N6")
    @on_both
    def test_figures_by_name(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6: the figures of the name service, as text and as JSON."""
        result = run("status", *at)
        assert (result.exit_code, result.err) == (0, "")
        names = [line.split()[0] for line in result.out.splitlines()]
        assert names == sorted(names)
        assert names
        # A figure may appear with what it counts, such as the question before.
        document = json.loads(ask("status", "--json", *at).out)
        assert set(names) <= set(document)


class TestSessions:
    @pytest.mark.proves("N6")
    def test_who_leads_what(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6: the session that leads is listed with what it leads."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
            elected.out.next()
            sessions = json.loads(ask("sessions", "--json", *at).out)
            leading = [each for each in sessions if each["leads_jobs"] == ["flights"]]
            assert len(leading) == 1
            assert leading[0]["jobs"] == ["flights"]
            text = run("sessions", *at).out
            assert leading[0]["session_id"] in text
            elected.end()


class TestRevoke:
    @pytest.mark.proves("N6")
    def test_the_next_in_line_leads(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N6: revoke ends a leadership; the one revoked ends its command."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as first:
            first_epoch = int(first.out.next().split()[1])
            with Running("elect", "flights", "b:1", *at, *LEAD) as second:
                contenders_of("flights", at, count=2)
                result = run("revoke", "flights", "--json", *at)
                assert result.exit_code == 0, result.err
                assert json.loads(result.out)["epoch"] == first_epoch
                assert first.result().exit_code == 1
                assert int(second.out.next().split()[1]) > first_epoch
                result = ask("leader", "flights", "--wait", "30", *at)
                assert "b:1" in result.out
                second.end()

    @pytest.mark.proves("N5")
    def test_nobody_to_revoke_is_not_found(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N5: exit code 3 and a line."""
        result = ask("revoke", "flights", *at)
        assert (result.exit_code, result.out) == (3, "")
        assert "'flights' has no leader" in result.err
        assert len(result.err.splitlines()) == 1

    @pytest.mark.proves("N5")
    def test_a_misspelt_job_is_told(self, ask: Ask, at: tuple[str, ...]) -> None:
        """N5: still not found, with the job that may be meant."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as leader:
            leader.out.next()
            for verb, *operands in (
                ("revoke", "fligths"),
                ("transfer", "fligths", "nobody"),
                ("contenders", "fligths"),
                ("leader", "fligths"),
            ):
                result = ask(verb, *operands, *at)
                assert result.exit_code == 3
                assert "did you mean 'flights'?" in result.err
                assert len(result.err.splitlines()) == 1
            leader.end()


class TestTransfer:
    @pytest.mark.proves("N6")
    def test_the_contender_that_is_named_leads(self, at: tuple[str, ...]) -> None:
        """N6: the holder ends its command, the one named leads; exit code 0."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as first:
            first_epoch = int(first.out.next().split()[1])
            with (
                Running("elect", "flights", "b:1", *at, *LEAD) as second,
                Running("elect", "flights", "c:1", *at, *LEAD) as third,
            ):
                listed = contenders_of("flights", at, count=3)
                chosen = listed[2]["contender_id"]
                result = run("transfer", "flights", chosen, "--json", *at)
                assert (result.exit_code, result.err) == (0, "")
                document = json.loads(result.out)
                assert document["ended_epoch"] == first_epoch
                assert document["epoch"] > first_epoch
                assert document["contender_id"] == chosen
                assert first.result().exit_code == 1
                # Which of them is third in the queue, the command does not know.
                leading, waiting = (
                    (third, second) if document["address"] == "c:1" else (second, third)
                )
                assert int(leading.out.next().split()[1]) == document["epoch"]
                again = run("transfer", "flights", chosen, *at)
                assert again.exit_code == 0, again.err
                assert f"{chosen} leads flights at {document['address']}" in again.out
                waiting.end()
                leading.end()

    @pytest.mark.proves("N5")
    def test_a_contender_that_is_not_there_is_not_found(
        self, ask: Ask, at: tuple[str, ...]
    ) -> None:
        """N5: exit code 3 and a line that names it; the leader stays."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as elected:
            elected.out.next()
            result = ask("transfer", "flights", "no-such-contender", *at)
            assert (result.exit_code, result.out) == (3, "")
            assert "no-such-contender" in result.err
            assert len(result.err.splitlines()) == 1
            assert ask("leader", "flights", *at).exit_code == 0
            elected.end()


class TestExpire:
    @pytest.mark.proves("N6")
    def test_what_the_session_led_goes_to_the_next(self, at: tuple[str, ...]) -> None:
        """N6: expire ends a session as silence would."""
        with Running("elect", "flights", "a:1", *at, *LEAD) as first:
            first_epoch = int(first.out.next().split()[1])
            with Running("elect", "flights", "b:1", *at, *LEAD) as second:
                leader, _ = contenders_of("flights", at, count=2)
                result = run("expire", leader["session_id"], *at)
                assert result.exit_code == 0, result.err
                assert result.out == f"ended session {leader['session_id']}\n"
                assert int(second.out.next().split()[1]) > first_epoch
                assert first.result().exit_code == 1
                second.end()

    @pytest.mark.proves("N5")
    @pytest.mark.parametrize("session", ["no-such-session", "0", "ffffffffffffffff"])
    def test_an_unknown_session_is_not_found(
        self, ask: Ask, at: tuple[str, ...], session: str
    ) -> None:
        """N5: exit code 3 and a line that names it."""
        result = ask("expire", session, *at)
        assert (result.exit_code, result.out) == (3, "")
        assert session in result.err
        assert len(result.err.splitlines()) == 1
