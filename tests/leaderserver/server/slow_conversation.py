"""A conversation with a service whose storage takes its time."""

from __future__ import annotations

from typing import Any

from leaderserver.messages import Granted, ToClient
from leaderserver.server.core.storage_queue import StorageWork
from leaderserver.server.core.turn import Outgoing, Send
from leaderserver.server.storage_work import Outcome, perform_storage_work
from nameservice import StorageError
from tests.leaderserver.conversation import Conversation, Talker, register


class SlowConversation(Conversation):
    """A conversation with a service whose storage works when it is told to."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(is_storage_apart=True, **settings)
        self.under_way: list[StorageWork] = []

    def take_work(self) -> None:
        """Begin whatever the service wants done."""
        while (work := self.service.next_storage_work()) is not None:
            self.under_way.append(work)

    def work_once(self) -> list[ToClient]:
        """Do what is under way, the first of it; return what is sent then."""
        work = self.under_way.pop(0)
        outcomes: list[Outcome] = [*perform_storage_work(self.storage, work)]
        sent = self.service.storage_done(work, outcomes, now_ns=self.now_ns)
        return [item.message for item in sent]

    def work(self, error: Exception | None = None) -> list[ToClient]:
        """Do all that waits, or fail at it; return what is sent then."""
        sent: list[Outgoing] = []
        self.take_work()
        while self.under_way:
            work = self.under_way.pop(0)
            outcomes: list[Outcome] = []
            if isinstance(error, StorageError):
                outcomes = [error] * len(work.jobs)
            else:
                outcomes += perform_storage_work(self.storage, work)
            sent += self.service.storage_done(work, outcomes, now_ns=self.now_ns)
            self.take_work()
        return [item.message for item in sent]


def talker(conversation: SlowConversation, name: str) -> Talker:
    """Return a client with a session."""
    made = Talker(conversation, name)
    made.hello()
    return made


def messages(outgoing: list[Outgoing]) -> list[ToClient]:
    """Return what is sent to somebody."""
    return [item.message for item in outgoing if isinstance(item, Send)]


def granted(sent: list[ToClient]) -> Granted:
    """Return the one grant of *sent*."""
    (found,) = [message for message in sent if isinstance(message, Granted)]
    return found


def lead(conversation: SlowConversation, who: Talker, contender_id: str) -> Granted:
    """Make *who* lead, with the epoch recorded."""
    who.say(register(contender_id))
    return granted(conversation.work())
