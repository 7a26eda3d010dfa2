"""E3, E4, E6, E7: an application of asyncio leads as any other does."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from haservices import campaign_async
from nameservice import (
    ConfigurationError,
    LeadershipLostError,
    LocalProtocolError,
    NoLeaderError,
)
from tests.conformance.candidates import JOB, Candidate, ids_in_order
from tests.conformance.harness import PATIENT
from tests.conformance.test_closing import follow, lead
from tests.recording import WAIT_SECONDS, Record, RecordingContender, wait_until


if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.harness import Harness


async def in_time(event: asyncio.Event) -> None:
    """Wait for *event*; fail if it never comes."""
    async with asyncio.timeout(WAIT_SECONDS):
        await event.wait()


async def until(holds: Callable[[], bool]) -> None:
    """Return once *holds* does, and run the loop meanwhile."""
    await asyncio.to_thread(wait_until, holds)


class TestCampaignAsync:
    @pytest.mark.proves("E3", "E7")
    def test_leads_for_the_length_of_a_block(self, harness: Harness) -> None:
        """E3, E7: confirmed when the block begins, withdrawn when it has ended."""
        ha = harness.open(**PATIENT)

        async def campaign() -> None:
            async with (
                campaign_async(ha, JOB, "a:1", WAIT_SECONDS) as leadership,
            ):
                with harness.open().get_leader_retriever(JOB) as retriever:
                    leader = await retriever.wait_for_leader_async(WAIT_SECONDS)
                assert leader.address == "a:1"
                assert leader.epoch == leadership.epoch
                assert leader.leader_session_id == leadership.leader_session_id
                leadership.check()
                assert not leadership.lost.is_set()
            assert leadership.lost.is_set()
            with pytest.raises(LeadershipLostError):
                leadership.check()

        asyncio.run(campaign())
        assert list(ha.operations.contenders(JOB)) == []

    @pytest.mark.proves("E1")
    def test_the_loop_runs_while_it_waits(self, harness: Harness) -> None:
        """E1: two campaigns of one loop lead one after the other."""
        story: Record[str] = Record()
        services = [harness.open(**PATIENT) for _ in range(2)]

        async def contend(number: int) -> None:
            async with campaign_async(services[number], JOB, f"c{number}:1"):
                story.add("begin")
                await asyncio.sleep(0)
                story.add("end")

        async def contend_both() -> None:
            async with asyncio.timeout(WAIT_SECONDS), asyncio.TaskGroup() as tasks:
                for number in range(2):
                    tasks.create_task(contend(number))

        asyncio.run(contend_both())
        assert story.items == ("begin", "end") * 2

    @pytest.mark.proves("E6")
    def test_lost_can_be_awaited(self, harness: Harness) -> None:
        """E6: a revocation sets it on the loop, and the successor is granted."""
        ha = harness.open(**PATIENT)

        async def campaign() -> None:
            async with campaign_async(ha, JOB, "a:1", WAIT_SECONDS) as leadership:
                follower = await asyncio.to_thread(
                    Candidate, harness.open(**PATIENT), "follower:1"
                )
                await asyncio.to_thread(harness.operator.operations.revoke, JOB)
                await in_time(leadership.lost)
                with pytest.raises(LeadershipLostError):
                    leadership.check()
                await asyncio.to_thread(follower.wait_for_confirm)

        asyncio.run(campaign())

    def test_gives_up_in_time(self, harness: Harness) -> None:
        """L4: a turn that does not come; nothing of it stays in the queue."""
        leader, _ = lead(harness)
        ha = harness.open()

        async def campaign() -> None:
            with pytest.raises(NoLeaderError):
                async with campaign_async(ha, JOB, "a:1", 0.05):
                    pytest.fail("it leads")

        asyncio.run(campaign())
        assert ids_in_order(leader.election) == [leader.contender_id]

    @pytest.mark.proves("E7")
    def test_cancelled_while_it_waits(self, harness: Harness) -> None:
        """E7: a cancelled campaign leaves the queue."""
        leader, _ = lead(harness)
        ha = harness.open()

        async def wait() -> None:
            async with campaign_async(ha, JOB, "a:1"):
                pytest.fail("it leads")

        async def cancel() -> None:
            task = asyncio.create_task(wait())
            await until(lambda: len(ids_in_order(leader.election)) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())
        assert ids_in_order(leader.election) == [leader.contender_id]

    def test_closed_while_it_waits(self, harness: Harness) -> None:
        """L4: its services are closed by a thread: an error, and no wait for ever."""
        leader, _ = lead(harness)
        ha = harness.open()

        async def wait() -> None:
            closer = threading.Timer(0.1, ha.close)
            closer.start()
            with pytest.raises(LocalProtocolError):
                async with campaign_async(ha, JOB, "a:1", WAIT_SECONDS):
                    pytest.fail("it leads")
            await asyncio.to_thread(closer.join)

        asyncio.run(wait())
        assert ids_in_order(leader.election) == [leader.contender_id]

    @pytest.mark.parametrize("timeout_seconds", [float("nan"), -1.0])
    def test_what_is_no_timeout_is_refused(
        self, harness: Harness, timeout_seconds: float
    ) -> None:
        """L4: at once."""
        ha = harness.open()

        async def campaign() -> None:
            with pytest.raises(ConfigurationError):
                async with campaign_async(ha, JOB, "a:1", timeout_seconds):
                    pytest.fail("it leads")

        asyncio.run(campaign())


class TestRunIfLeaderAsync:
    @pytest.mark.proves("E6")
    def test_runs_in_the_task_that_asked(self, harness: Harness) -> None:
        """E6: it returns what the action returns, and raises what it raises."""
        leader, session = lead(harness)

        async def act() -> asyncio.Task[object] | None:
            return asyncio.current_task()

        async def fail() -> None:
            raise RuntimeError("mine")

        async def run() -> None:
            run_if_leader = leader.election.run_if_leader_async
            found = await run_if_leader(session.leader_session_id, act)
            assert found is asyncio.current_task()
            with pytest.raises(RuntimeError, match="mine"):
                await run_if_leader(session.leader_session_id, fail)

        asyncio.run(run())

    @pytest.mark.proves("E6")
    def test_a_revocation_waits_for_it(self, harness: Harness) -> None:
        """E6: belief ends, the action returns, the revoke callback begins."""
        leader, session = lead(harness)

        async def act() -> int:
            await asyncio.to_thread(harness.operator.operations.revoke, JOB)
            await until(lambda: not leader.believes(session))
            return leader.contender.revoked_count

        async def run() -> int:
            return await leader.election.run_if_leader_async(
                session.leader_session_id, act
            )

        assert asyncio.run(run()) == 0
        leader.contender.wait_for_revoke()

    @pytest.mark.proves("E6")
    def test_does_not_begin_after_the_end(self, harness: Harness) -> None:
        """E6: it starts only while believing."""
        leader, session = lead(harness)
        harness.operator.operations.revoke(JOB)
        leader.contender.wait_for_revoke()

        async def act() -> None:
            pytest.fail("it runs")

        async def run() -> None:
            with pytest.raises(LeadershipLostError):
                await leader.election.run_if_leader_async(
                    session.leader_session_id, act
                )

        asyncio.run(run())

    @pytest.mark.proves("E6")
    def test_cancelled_it_ends_its_turn(self, harness: Harness) -> None:
        """E6: what waits for the turn goes on."""
        leader, session = lead(harness)

        async def run() -> None:
            is_acting = asyncio.Event()

            async def act() -> None:
                is_acting.set()
                await asyncio.Event().wait()

            task = asyncio.create_task(
                leader.election.run_if_leader_async(session.leader_session_id, act)
            )
            await in_time(is_acting)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wrap_future(
                leader.election.run_if_leader(session.leader_session_id, lambda: None)
            )

        asyncio.run(run())

    @pytest.mark.proves("E6", "E7")
    @pytest.mark.parametrize("how", ["election", "async", "services", "thread"])
    def test_closed_inside_it(self, harness: Harness, how: str) -> None:
        """E6, E7: close() inside the action does not wait; the entry goes after it."""
        story: Record[str] = Record()
        leader, session = lead(harness)
        follower = follow(harness, leader, session, story)

        async def act() -> None:
            match how:
                case "election":
                    leader.election.close()
                case "async":
                    await leader.election.close_async()
                case "services":
                    leader.ha.close()
                case _:
                    await asyncio.to_thread(leader.ha.close)
            assert not leader.believes(session)
            assert ids_in_order(follower.election)[0] == leader.contender_id
            assert leader.contender.revoked_count == 0
            story.add("acted")

        async def run() -> None:
            async with asyncio.timeout(WAIT_SECONDS):
                await leader.election.run_if_leader_async(
                    session.leader_session_id, act
                )
                await leader.election.close_async()

        asyncio.run(run())
        follower.wait_for_confirm()
        assert story.items == ("acted", "granted, two believe: False")

    @pytest.mark.proves("E6")
    def test_closed_by_another_task_that_blocks_the_loop(
        self, harness: Harness
    ) -> None:
        """E6: it would wait for the action, which would wait for it: it does not."""
        leader, session = lead(harness)

        async def run() -> None:
            is_acting, may_end = asyncio.Event(), asyncio.Event()

            async def act() -> None:
                is_acting.set()
                await may_end.wait()

            task = asyncio.create_task(
                leader.election.run_if_leader_async(session.leader_session_id, act)
            )
            await in_time(is_acting)
            leader.ha.close()
            assert leader.contender.revoked_count == 0
            may_end.set()
            await task

        asyncio.run(run())
        leader.ha.close()
        assert leader.contender.revoked_count == 1

    def test_an_action_that_cannot_be_called_is_refused(self, harness: Harness) -> None:
        """L4: at once."""
        leader, session = lead(harness)

        async def run() -> None:
            with pytest.raises(ConfigurationError):
                await leader.election.run_if_leader_async(
                    session.leader_session_id,
                    None,  # type: ignore[arg-type]
                )

        asyncio.run(run())


class TestOtherTwins:
    @pytest.mark.proves("E3", "E7")
    def test_confirm_list_and_close(self, harness: Harness) -> None:
        """E3, E7: each does as its twin, and the loop goes on."""

        async def run() -> None:
            candidate = await asyncio.to_thread(
                lambda: Candidate(
                    harness.open(**PATIENT),
                    "-",
                    make_contender=lambda _: RecordingContender(),
                )
            )
            election = candidate.election
            session = await asyncio.to_thread(candidate.contender.wait_for_grant)
            await election.confirm_leadership_async(session.leader_session_id, "a:1")
            (listed,) = await election.contenders_async()
            assert (listed.address, listed.is_leader) == ("a:1", True)
            await election.close_async()
            assert candidate.contender.revoked_count == 1
            with pytest.raises(LeadershipLostError):
                await election.confirm_leadership_async(
                    session.leader_session_id, "b:1"
                )

        asyncio.run(run())
