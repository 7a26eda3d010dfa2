from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from nameservice import (
    AuthenticationError,
    CallbackLane,
    ConfigurationError,
    ForkedClientError,
    LocalProtocolError,
    NoLeaderError,
    UnreachableError,
)
from retrieval import (
    ContactLost,
    ContactRestored,
    ContactSuspended,
    LeaderInformation,
    LeaderRetriever,
    Publication,
)
from tests.forking import run_in_child
from tests.recording import (
    WAIT_SECONDS,
    Failed,
    Notified,
    Record,
    RecordingListener,
    wait_until,
)
from tests.retrieval.fakes import FakeRetrievalDriver, leader


if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def driver() -> FakeRetrievalDriver:
    """A name service without a leader so far."""
    return FakeRetrievalDriver()


@pytest.fixture
def retriever(driver: FakeRetrievalDriver) -> Iterator[LeaderRetriever]:
    """A retriever over *driver*, not started; closed in the end."""
    with_closing = LeaderRetriever("job", driver, clears_on_suspended=False)
    yield with_closing
    with_closing.close()


class HoldingListener(RecordingListener):
    """Stays in its first notification until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = threading.Event()
        self.let_go = threading.Event()

    def notify_leader(self, leader: LeaderInformation | None) -> None:
        """Write it down; stay if it is the first."""
        super().notify_leader(leader)
        if not self.is_held.is_set():
            self.is_held.set()
            assert self.let_go.wait(WAIT_SECONDS)


class TestListening:
    @pytest.mark.proves("R1")
    def test_confirmed_leader_is_told_at_once(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: a retriever that starts while somebody leads is told."""
        driver.publish(leader(3))
        listener = RecordingListener()
        retriever.start(listener)
        assert listener.record.wait_for_count(1) == (Notified(leader(3)),)

    @pytest.mark.proves("R1")
    def test_nothing_is_told_before_there_is_a_leader(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: not told of any leader yet, it is not told that there is none."""
        driver.publish(None, epoch=2)
        listener = RecordingListener()
        retriever.start(listener)
        driver.deliver(ContactSuspended())
        driver.deliver(ContactLost())
        driver.deliver(ContactRestored(publication=None))
        driver.publish(leader(3))
        assert listener.record.wait_for_count(1) == (Notified(leader(3)),)

    @pytest.mark.proves("R2")
    def test_each_change_is_told_in_order(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: a listener that keeps up hears of every change, None between leaders."""
        listener = RecordingListener()
        retriever.start(listener)
        driver.publish(leader(3))
        listener.record.wait_for_count(1)
        driver.publish(None, epoch=3)
        listener.record.wait_for_count(2)
        driver.publish(leader(4, "b:1"))
        assert listener.record.wait_for_count(3) == (
            Notified(leader(3)),
            Notified(None),
            Notified(leader(4, "b:1")),
        )

    @pytest.mark.proves("R2")
    def test_slow_listener_gets_the_latest(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: what is out of date when it returns is left out; the latest arrives."""
        listener = HoldingListener()
        retriever.start(listener)
        driver.publish(leader(1))
        assert listener.is_held.wait(WAIT_SECONDS)
        for epoch in range(2, 100):
            driver.publish(leader(epoch))
        listener.let_go.set()
        assert listener.record.wait_for_count(2) == (
            Notified(leader(1)),
            Notified(leader(99)),
        )

    @pytest.mark.proves("R2")
    def test_change_and_back_is_no_change_for_a_slow_listener(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: it is told only what differs from what it was told last."""
        listener = HoldingListener()
        retriever.start(listener)
        driver.publish(leader(1))
        assert listener.is_held.wait(WAIT_SECONDS)
        driver.deliver(ContactLost())
        driver.deliver(ContactRestored(publication=None))
        listener.let_go.set()
        driver.publish(leader(2))
        assert listener.record.wait_for_count(2) == (
            Notified(leader(1)),
            Notified(leader(2)),
        )

    @pytest.mark.proves("R2")
    def test_slow_listener_delays_nobody(self, driver: FakeRetrievalDriver) -> None:
        """R2: while one is busy the others are told, and the driver goes on."""
        other_driver = FakeRetrievalDriver()
        slow = HoldingListener()
        quick = RecordingListener()
        first = LeaderRetriever("job", driver, clears_on_suspended=False)
        second = LeaderRetriever("job", other_driver, clears_on_suspended=False)
        first.start(slow)
        second.start(quick)
        driver.publish(leader(1))
        assert slow.is_held.wait(WAIT_SECONDS)
        driver.publish(leader(2))  # returns while the slow one is in its callback
        other_driver.publish(leader(2))
        assert quick.record.wait_for_count(1) == (Notified(leader(2)),)
        assert first.leader == leader(2)
        slow.let_go.set()
        first.close()
        second.close()

    @pytest.mark.proves("R2")
    def test_calls_come_one_at_a_time_on_one_thread(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: a listener needs no lock of its own."""
        threads: Record[str] = Record()

        class Listener(RecordingListener):
            def notify_leader(self, leader: LeaderInformation | None) -> None:
                threads.add(threading.current_thread().name)

            def handle_error(self, error: Exception) -> None:
                threads.add(threading.current_thread().name)

        retriever.start(Listener())
        driver.publish(leader(1))
        threads.wait_for_count(1)
        driver.fail(UnreachableError("tcp://h:1", 1.0))
        assert set(threads.wait_for_count(2)) == {"retriever-job"}


class TestErrors:
    def test_error_of_the_driver_goes_to_the_listener(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """L4: what went wrong in the background reaches handle_error."""
        listener = RecordingListener()
        retriever.start(listener)
        error = AuthenticationError("tcp://h:1", "no key")
        driver.fail(error)
        assert listener.record.wait_for_count(1) == (Failed(error),)

    def test_error_without_a_listener_is_logged(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """L4: to have no one to tell is no reason to be silent."""
        retriever.start()
        with capture_logs() as lines:
            driver.fail(AuthenticationError("tcp://h:1", "no key"))
        assert [(line["event"], line["log_level"]) for line in lines] == [
            ("retrieval.failed", "warning")
        ]

    @pytest.mark.proves("R2")
    @pytest.mark.parametrize("fault", [RuntimeError("mine"), SystemExit(3)])
    def test_fault_of_the_listener_goes_to_the_listener(
        self,
        retriever: LeaderRetriever,
        driver: FakeRetrievalDriver,
        fault: BaseException,
    ) -> None:
        """R2: what notify_leader raises reaches handle_error, and news goes on."""

        class Listener(RecordingListener):
            def notify_leader(self, leader: LeaderInformation | None) -> None:
                super().notify_leader(leader)
                if leader is not None and leader.epoch == 1:
                    raise fault

        listener = Listener()
        retriever.start(listener)
        driver.publish(leader(1))
        _, failed = listener.record.wait_for_count(2)
        assert isinstance(failed, Failed)
        assert fault in (failed.error, failed.error.__cause__)
        driver.publish(leader(2))
        assert listener.record.wait_for_count(3)[2] == Notified(leader(2))

    def test_a_method_that_cannot_be_had_is_told_like_one_that_raises(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """A listener may be a proxy for another object, which has gone."""
        fault = ReferenceError("gone")

        class Listener(RecordingListener):
            is_gone = False

            def __getattribute__(self, name: str) -> Any:
                if name == "notify_leader" and self.is_gone:
                    raise fault
                return super().__getattribute__(name)

        listener = Listener()
        retriever.start(listener)
        listener.is_gone = True
        driver.publish(leader(1))
        (failed,) = listener.record.wait_for_count(1)
        assert isinstance(failed, Failed)
        assert failed.error is fault

    @pytest.mark.proves("R2")
    def test_fault_of_handle_error_is_logged(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: even a listener whose handle_error raises goes on being told."""

        class Listener(RecordingListener):
            def handle_error(self, error: Exception) -> None:
                super().handle_error(error)
                raise error

        listener = Listener()
        with capture_logs() as lines:
            retriever.start(listener)
            driver.fail(RuntimeError("theirs"))
            listener.record.wait_for_count(1)
            driver.publish(leader(1))
            listener.record.wait_for_count(2)
        assert [line["event"] for line in lines] == ["listener.failed"]


class TestAsking:
    @pytest.mark.proves("R2")
    def test_leader_is_the_latest_known(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: the property never blocks, and says what is known now."""
        assert retriever.leader is None
        retriever.start()
        assert retriever.leader is None
        driver.publish(leader(1))
        assert retriever.leader == leader(1)
        driver.publish(None, epoch=1)
        assert retriever.leader is None

    def test_component_id_is_what_it_was_made_for(
        self, retriever: LeaderRetriever
    ) -> None:
        """A retriever knows whose leader it finds."""
        assert retriever.component_id == "job"

    @pytest.mark.proves("R1")
    def test_wait_returns_the_leader_there_is(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: with a leader known there is nothing to wait for."""
        driver.publish(leader(1))
        retriever.start()
        assert retriever.wait_for_leader(timeout_seconds=0) == leader(1)

    @pytest.mark.proves("R1")
    def test_wait_returns_as_soon_as_there_is_a_leader(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: one that waits is woken by the first confirmed leader."""
        retriever.start()
        found: Record[LeaderInformation] = Record()
        thread = threading.Thread(target=lambda: found.add(retriever.wait_for_leader()))
        thread.start()
        driver.publish(leader(1))
        assert found.wait_for_count(1) == (leader(1),)
        thread.join()

    def test_wait_gives_up_with_an_error_that_says_how_long(
        self, retriever: LeaderRetriever
    ) -> None:
        """L4: no leader in time is NoLeaderError, which carries the waiting time."""
        retriever.start()
        with pytest.raises(NoLeaderError) as caught:
            retriever.wait_for_leader(timeout_seconds=0.01)
        assert caught.value.component_id == "job"
        assert caught.value.waited_seconds >= 0.01

    @pytest.mark.proves("R5")
    def test_wait_ends_when_the_retriever_is_closed(
        self, retriever: LeaderRetriever
    ) -> None:
        """R5: no thread waits for ever on a retriever that is closed."""
        retriever.start()
        errors: Record[str] = Record()

        def wait() -> None:
            try:
                retriever.wait_for_leader()
            except LocalProtocolError as error:
                errors.add(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        retriever.close()
        assert errors.wait_for_count(1) == ("the retriever is closed",)
        thread.join()

    @pytest.mark.proves("R1", "R2")
    def test_changes_begin_with_the_present_leader(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1, R2: the present leader, then each change, until it closes."""
        driver.publish(leader(1))
        retriever.start()
        changes = retriever.changes()
        assert next(changes) == leader(1)
        driver.publish(None, epoch=1)
        assert next(changes) is None
        driver.publish(leader(2))
        assert next(changes) == leader(2)
        retriever.close()
        assert list(changes) == []

    @pytest.mark.proves("R2")
    def test_changes_leave_out_what_is_out_of_date(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: who comes back late gets the latest."""
        retriever.start()
        changes = retriever.changes()
        for epoch in range(1, 10):
            driver.publish(leader(epoch))
        assert next(changes) == leader(9)

    @pytest.mark.proves("R2")
    def test_iterators_go_their_own_ways(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: one that is slow takes nothing from another."""
        retriever.start()
        slow, quick = retriever.changes(), retriever.changes()
        driver.publish(leader(1))
        assert next(quick) == leader(1)
        driver.publish(leader(2))
        assert next(quick) == leader(2)
        assert next(slow) == leader(2)


class TestAsyncio:
    @pytest.mark.proves("R1")
    def test_wait_returns_the_leader_there_is(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: the same for asyncio."""
        driver.publish(leader(1))
        retriever.start()
        found = asyncio.run(retriever.wait_for_leader_async(timeout_seconds=0))
        assert found == leader(1)

    @pytest.mark.proves("R1")
    def test_wait_does_not_block_the_loop(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R1: others run while it waits; it returns when somebody leads."""
        retriever.start()

        async def wait_and_publish() -> LeaderInformation:
            waiting = asyncio.create_task(retriever.wait_for_leader_async())
            await asyncio.sleep(0)
            driver.publish(leader(1))
            return await asyncio.wait_for(waiting, WAIT_SECONDS)

        assert asyncio.run(wait_and_publish()) == leader(1)

    def test_wait_gives_up_with_an_error_that_says_how_long(
        self, retriever: LeaderRetriever
    ) -> None:
        """L4: the same error as without asyncio."""
        retriever.start()
        with pytest.raises(NoLeaderError) as caught:
            asyncio.run(retriever.wait_for_leader_async(timeout_seconds=0.01))
        assert caught.value.component_id == "job"

    @pytest.mark.proves("R5")
    def test_wait_ends_when_the_retriever_is_closed(
        self, retriever: LeaderRetriever
    ) -> None:
        """R5: the same as without asyncio."""
        retriever.start()

        async def wait_and_close() -> None:
            waiting = asyncio.create_task(retriever.wait_for_leader_async())
            await asyncio.sleep(0)
            await asyncio.to_thread(retriever.close)
            with pytest.raises(LocalProtocolError, match="closed"):
                await asyncio.wait_for(waiting, WAIT_SECONDS)

        asyncio.run(wait_and_close())

    @pytest.mark.proves("R2")
    def test_changes_are_the_same(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: the present leader, then each change, until it closes."""
        driver.publish(leader(1))
        retriever.start()

        async def following(changes: AsyncIterator[LeaderInformation | None]) -> None:
            assert await anext(changes) == leader(1)
            driver.publish(None, epoch=1)
            assert await anext(changes) is None
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            await asyncio.to_thread(driver.publish, leader(2))
            assert await asyncio.wait_for(waiting, WAIT_SECONDS) == leader(2)
            await asyncio.to_thread(retriever.close)
            assert [change async for change in changes] == []

        async def follow() -> None:
            await following(retriever.changes_async())

        asyncio.run(follow())

    @pytest.mark.proves("R5")
    def test_nothing_is_left_behind(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: one that stops waiting, or gives up, leaves no waker in the retriever."""
        retriever.start()

        async def give_up() -> None:
            with pytest.raises(NoLeaderError):
                await retriever.wait_for_leader_async(timeout_seconds=0.01)
            assert retriever._wakers == set()

        asyncio.run(give_up())

    @pytest.mark.proves("R2")
    def test_news_after_the_loop_has_closed_harms_nobody(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R2: an event loop that was closed in the middle of waiting stops no news."""
        retriever.start()
        driver.publish(leader(1))
        changes = retriever.changes_async()

        async def take_one() -> LeaderInformation | None:
            return await anext(changes)

        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(take_one()) == leader(1)
        loop.close()
        driver.publish(leader(2))
        assert retriever.leader == leader(2)


class TestLifetime:
    @pytest.mark.proves("R5")
    def test_is_started_once(self, retriever: LeaderRetriever) -> None:
        """R5: a second start is our caller's mistake."""
        retriever.start()
        with pytest.raises(LocalProtocolError):
            retriever.start()

    @pytest.mark.proves("R5")
    def test_is_not_started_after_it_was_closed(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: so is a start after close."""
        retriever.close()
        with pytest.raises(LocalProtocolError):
            retriever.start()
        assert driver.calls == []

    @pytest.mark.proves("R5")
    @pytest.mark.parametrize("ask", ["changes", "changes_async", "wait_for_leader"])
    def test_is_asked_only_after_it_was_started(
        self, retriever: LeaderRetriever, ask: str
    ) -> None:
        """R5: what was not started will never know: that is said at once."""
        with pytest.raises(LocalProtocolError, match="start the retriever first"):
            getattr(retriever, ask)()

    @pytest.mark.proves("R5")
    def test_asyncio_wait_is_asked_only_after_it_was_started(
        self, retriever: LeaderRetriever
    ) -> None:
        """R5: the same for asyncio."""
        with pytest.raises(LocalProtocolError, match="start the retriever first"):
            asyncio.run(retriever.wait_for_leader_async())

    def test_context_manager_starts_and_closes(
        self, driver: FakeRetrievalDriver
    ) -> None:
        """A `with` statement is start and close."""
        with LeaderRetriever("job", driver, clears_on_suspended=False) as retriever:
            assert driver.calls == ["open"]
            assert retriever.leader is None
        assert driver.calls == ["open", "close"]

    def test_context_manager_takes_one_that_is_started(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """With a listener it is started before."""
        retriever.start(RecordingListener())
        with retriever:
            assert driver.calls == ["open"]
        assert driver.calls == ["open", "close"]

    @pytest.mark.parametrize("wrong", ["x", RecordingListener, object()])
    def test_what_is_no_listener_is_refused(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver, wrong: object
    ) -> None:
        """L4: at once, and nothing was opened."""
        with pytest.raises(ConfigurationError):
            retriever.start(wrong)  # type: ignore[arg-type]
        assert driver.calls == []
        retriever.start()

    @pytest.mark.parametrize("timeout_seconds", [float("nan"), float("inf"), -1, "1"])
    def test_what_is_no_timeout_is_refused(
        self, retriever: LeaderRetriever, timeout_seconds: float
    ) -> None:
        """L4: NaN would spin, and infinity overflow."""
        retriever.start()
        with pytest.raises(ConfigurationError):
            retriever.wait_for_leader(timeout_seconds)
        with pytest.raises(ConfigurationError):
            asyncio.run(retriever.wait_for_leader_async(timeout_seconds))

    @pytest.mark.proves("R5")
    def test_close_is_idempotent(self, driver: FakeRetrievalDriver) -> None:
        """R5: closing twice is closing once; the owner is told once."""
        closed: list[LeaderRetriever] = []
        retriever = LeaderRetriever(
            "job", driver, clears_on_suspended=False, on_closed=closed.append
        )
        retriever.start()
        retriever.close()
        retriever.close()
        assert driver.calls == ["open", "close"]
        assert closed == [retriever]

    @pytest.mark.proves("R5")
    def test_closing_waits_for_no_thread_that_wakes_the_listener(
        self, driver: FakeRetrievalDriver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        R5: a signal handler that closes may have interrupted the waking of another.

        What delivers to this retriever waits for that, and the handler waited for it.
        """
        is_waking, may_wake = threading.Event(), threading.Event()
        wake = CallbackLane.wake

        def wake_late(lane: CallbackLane) -> None:
            if threading.current_thread() is delivering:
                is_waking.set()
                assert may_wake.wait(WAIT_SECONDS)
            wake(lane)

        retriever = LeaderRetriever("job", driver, clears_on_suspended=False)
        retriever.start(RecordingListener())
        assert driver._deliver is not None  # without the lock that `close` takes, too
        event = ContactRestored(
            publication=Publication(epoch=3, confirm_count=1, leader=leader(3))
        )
        delivering = threading.Thread(target=driver._deliver, args=[event])
        monkeypatch.setattr(CallbackLane, "wake", wake_late)
        delivering.start()
        assert is_waking.wait(WAIT_SECONDS)
        closing = threading.Thread(target=retriever.close)
        closing.start()
        closing.join(WAIT_SECONDS / 2)
        has_returned = not closing.is_alive()
        may_wake.set()
        delivering.join()
        closing.join()
        assert has_returned

    @pytest.mark.proves("R5")
    def test_nothing_is_delivered_after_close(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: news and errors that come later are not told; its thread is gone."""
        listener = RecordingListener()
        retriever.start(listener)
        driver.publish(leader(1))
        listener.record.wait_for_count(1)
        retriever.close()
        driver.publish(leader(2))
        driver.fail(RuntimeError("late"))
        assert listener.calls == (Notified(leader(1)),)
        assert not [
            thread for thread in threading.enumerate() if thread.name == "retriever-job"
        ]

    @pytest.mark.proves("R5")
    def test_close_waits_for_the_listener(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: a call that is under way ends before close() returns."""
        listener = HoldingListener()
        retriever.start(listener)
        driver.publish(leader(1))
        assert listener.is_held.wait(WAIT_SECONDS)
        ended: Record[str] = Record()

        def close() -> None:
            retriever.close()
            ended.add("closed")

        closer = threading.Thread(target=close)
        closer.start()
        wait_until(lambda: driver.calls == ["open", "close"])
        driver.publish(leader(2))
        assert ended.items == ()
        listener.let_go.set()
        assert ended.wait_for_count(1) == ("closed",)
        closer.join()
        assert listener.calls == (Notified(leader(1)),)

    @pytest.mark.proves("R5")
    def test_listener_may_close_it(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: close() inside notify_leader does not wait, and nothing follows it."""
        closed = threading.Event()

        class Listener(RecordingListener):
            def notify_leader(self, leader: LeaderInformation | None) -> None:
                super().notify_leader(leader)
                retriever.close()
                closed.set()

        listener = Listener()
        retriever.start(listener)
        driver.publish(leader(1))
        assert closed.wait(WAIT_SECONDS)
        driver.publish(leader(2))
        retriever.close()
        assert listener.calls == (Notified(leader(1)),)

    @pytest.mark.proves("R5")
    def test_listener_may_close_it_when_it_hears_of_an_error(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """R5: news and errors taken together with that error are not delivered."""

        class Listener(HoldingListener):
            def handle_error(self, error: Exception) -> None:
                super().handle_error(error)
                retriever.close()

        listener = Listener()
        retriever.start(listener)
        driver.publish(leader(1))
        assert listener.is_held.wait(WAIT_SECONDS)
        first, second = RuntimeError("first"), RuntimeError("second")
        driver.fail(first)
        driver.fail(second)
        driver.publish(leader(2))
        listener.let_go.set()
        listener.record.wait_for_count(2)
        retriever.close()
        assert listener.calls == (Notified(leader(1)), Failed(first))

    @pytest.mark.proves("R5")
    def test_close_during_start_closes_the_driver_last(self) -> None:
        """R5: what is closed while it opens does not stay open."""
        is_opening, may_open = threading.Event(), threading.Event()
        calls: list[str] = []

        class SlowDriver:
            def open(self, deliver: object, fail: object) -> None:
                is_opening.set()
                assert may_open.wait(WAIT_SECONDS)
                calls.append("open")

            def close(self) -> None:
                calls.append("close")

        retriever = LeaderRetriever("job", SlowDriver(), clears_on_suspended=False)
        starter = threading.Thread(target=retriever.start)
        starter.start()
        assert is_opening.wait(WAIT_SECONDS)
        closer = threading.Thread(target=retriever.close)
        closer.start()
        closer.join(WAIT_SECONDS)
        assert calls == ["close"]
        may_open.set()
        starter.join()
        assert calls == ["close", "open", "close"]

    @pytest.mark.proves("R5")
    @pytest.mark.parametrize("listener", [None, RecordingListener()])
    def test_a_driver_that_does_not_close_is_left(
        self, listener: RecordingListener | None
    ) -> None:
        """R5: its error is told once; the retriever has ended, and its services can."""
        ended: list[LeaderRetriever] = []

        class Lost:
            def open(self, deliver: object, fail: object) -> None:
                """Do nothing."""

            def close(self) -> None:
                raise LocalProtocolError("its loop has ended")

        retriever = LeaderRetriever(
            "job",
            Lost(),
            clears_on_suspended=False,
            on_closed=ended.append,
        )
        retriever.start(listener)
        with pytest.raises(LocalProtocolError):
            retriever.close()
        retriever.close()
        assert ended == [retriever]


class TestFork:
    def test_child_is_told_that_it_may_not_use_it(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """E10: every use in the child raises; the parent is not disturbed."""
        retriever.start()
        driver.publish(leader(1))
        uses = {
            "start": retriever.start,
            "leader": lambda: retriever.leader,
            "wait_for_leader": retriever.wait_for_leader,
            "wait_for_leader_async": lambda: asyncio.run(
                retriever.wait_for_leader_async()
            ),
            "changes": retriever.changes,
            "changes_async": retriever.changes_async,
        }
        outcomes = {name: run_in_child(use) for name, use in uses.items()}
        assert outcomes == dict.fromkeys(uses, ForkedClientError.__name__)
        assert retriever.leader == leader(1)

    def test_child_is_told_when_it_goes_on_with_an_iterator(
        self, driver: FakeRetrievalDriver, retriever: LeaderRetriever
    ) -> None:
        """E10: a child that was forked in a loop over changes does not hang."""
        retriever.start()
        driver.publish(leader(1))
        changes = retriever.changes()
        next(changes)
        assert run_in_child(lambda: next(changes)) == ForkedClientError.__name__

    def test_close_in_the_child_is_silent_and_closes_nothing(
        self, retriever: LeaderRetriever, driver: FakeRetrievalDriver
    ) -> None:
        """E10: a child that cleans up what it inherited does no harm."""

        def close() -> list[str]:
            retriever.close()
            return driver.calls

        retriever.start()
        assert run_in_child(close) == repr(["open"])
        driver.publish(leader(1))
        assert retriever.leader == leader(1)
