"""
`NodeLoop`: the thread around a `NodeCore`, with its server and its proxy client.

Nothing here decides.  Events come from `QueryStateProxyClient` (what the proxy says),
from `QueryableStateServer` (what writers bring), from `NodeStore` (what it has done)
and from the clock; effects go back to these, each by one line of `_perform`.  Questions
alone go past the core, from the client to `QuestionAnswerer`, and ask it only whether
they may be answered.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from contextlib import ExitStack
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any, Final, assert_never, final

from attrs import evolve

from nameservice import (
    ConfigurationError,
    LocalProtocolError,
    SystemClock,
    get_logger,
)
from nameservice.clock import NS_PER_MS, NS_PER_US
from nameservice.observation import Latencies, Observation
from nameservice.version import package_version
from queryablestate.connect.credentials import Credentials, credentials_of
from queryablestate.node.advertising import advertised_address
from queryablestate.node.answering import QuestionAnswerer
from queryablestate.node.core.core import NodeCore
from queryablestate.node.core.effects import (
    ApplyEntry,
    AskAgain,
    BindStore,
    CancelFetch,
    CancelReads,
    CheckStages,
    CollectRows,
    ConnectProxy,
    DropFences,
    DropOldStages,
    EndProcess,
    FetchKeyGroups,
    FinishCopy,
    ForgetJobRows,
    ForgetLeftJobs,
    HandleSnapshot,
    HoldKeyGroups,
    KeepCopySecret,
    KeepJobPlan,
    RaiseFences,
    ReportBehind,
    ReportRefused,
    ReportRegistered,
    ReportStale,
    ResetJobRows,
    SendToProxy,
    SendToWriter,
    StageRows,
    SwitchStore,
    TellJobPlan,
)
from queryablestate.node.core.events import LeaveAsked, ProxyDisconnected, TimePassed
from queryablestate.node.core.registration import NodeIdentity
from queryablestate.node.direct import DirectAnswerer
from queryablestate.node.proxy_client import QueryStateProxyClient
from queryablestate.node.readers.crew import NO_READERS, ReaderCrew, merged
from queryablestate.node.readers.shared_page import withdraw_page
from queryablestate.node.server import QueryableStateServer
from queryablestate.node.store_reports import StoreReports
from queryablestate.node.stores import NodeStore
from queryablestate.wire.questions import Refusal
from zmqtransport import (
    Endpoint,
    LogBudget,
    PollLoop,
    ZMQContext,
    load_key_files,
    new_context,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import msgspec
    import zmq

    from haservices import HAServices
    from nameservice import Clock, NameServiceError
    from queryablestate.node.config import NodeConfig
    from queryablestate.node.core.core import Admission
    from queryablestate.node.core.effects import NodeEffect
    from queryablestate.node.core.events import NodeEvent
    from queryablestate.store.threads import StageTask
    from queryablestate.wire.direct import DirectTicket
    from queryablestate.wire.questions import Question


__all__ = ["NodeLoop"]

_REGISTRATION_ID_SIZE_BYTES: Final = 16
_BURST_NS_MAX: Final = NS_PER_MS
"""A question for a thousand keys takes two of them, and others wait (rule B2)."""


@final
class NodeLoop:
    """
    What lives from start to close; all of it belongs to the loop's thread.

    Args:
        ha: The name service; stays its owner's.
        config: Where rows are, where writers connect, and the limits.
        clock: What leases are measured by.

    Attributes:
        loop: The thread.
        node_id: The name of the node.
        address: Where writers reach it, as the proxy is told.
        client: Its connection to the proxy.

    Raises:
        ConfigurationError: If a port, a key or a credential cannot be used; says what
            to change.  Nothing stays open then.
        StorageError: Likewise for the data directory.
    """

    def __init__(self, ha: HAServices, config: NodeConfig, clock: Clock) -> None:
        self._clock = clock
        self._log = get_logger(component="state-node")
        self._budget = LogBudget()
        self._pending: deque[NodeEvent] = deque()
        self._is_stepping = False
        self._changed = Condition()  # guards the four that follow
        self._is_registered = False
        self._end_reason: str | None = None
        self._has_ended = False
        self._refusal: ReportRefused | None = None
        self._resources = ExitStack()
        self._crew: ReaderCrew | None = None
        self.loop = PollLoop(name="state-node", clock=clock, burst_ns_max=_BURST_NS_MAX)
        self._version = package_version()
        self.loop.at_end(self._end)  # the first one is called last
        self.loop.at_end(self._resources.close)
        try:
            self._open(ha, config)
        except BaseException:
            self.loop.stop()  # closes the loop and, with it, what was opened
            raise

    def _open(self, ha: HAServices, config: NodeConfig) -> None:
        credentials = _credentials_of(config)
        token = credentials.read_token()
        registration_id = secrets.token_hex(_REGISTRATION_ID_SIZE_BYTES)
        context: ZMQContext = new_context()
        self._resources.callback(context.term)
        key_pair, allow_list = load_key_files(
            config.curve_secret_key_file,
            config.curve_public_key_file,
            config.allow_list_file,
        )
        self._store = NodeStore(
            config,
            loop=self.loop,
            context=context,
            key_pair=key_pair,
            clock=self._clock,
            on_event=self.step,
            on_staged=self._staged,
            send_page=self._send_page,
        )
        self._resources.callback(self._store.close)
        latencies = Latencies()
        self._direct = DirectAnswerer(
            self._store,
            answer_size_bytes_max=config.answer_size_bytes_max,
            clock=self._clock,
            wall_clock_us=lambda: time.time_ns() // NS_PER_US,
            is_current=self._is_current,
            admit=self._admit,
            send=self._answer_client,
            latencies=latencies,
        )
        self._server = QueryableStateServer(
            config,
            key_pair=key_pair,
            allow_list=allow_list,
            loop=self.loop,
            context=context,
            clock=self._clock,
            on_event=self.step,
            serve_copy=self._store.serve_copy,
            direct=self._direct,
        )
        self._resources.callback(self._server.close)
        reader_endpoints = self._start_readers(config, registration_id)
        self._answerer = QuestionAnswerer(
            self._store,
            answer_size_bytes_max=config.answer_size_bytes_max,
            clock=self._clock,
            admit=self._admit,
            reply=self._reply,
            is_congested=lambda: self.client.is_congested,
            defer=self.step,
            latencies=latencies,
        )
        self._reports = StoreReports(
            self._store,
            registration_id=registration_id,
            stage_retention_us=config.stage_retention_us,
            clock=self._clock,
            tell=lambda message: self._reply(message, None, 0),
        )
        self.node_id = self._store.opened.store.node_id
        self._log = self._log.bind(node_id=self.node_id)
        self.address = str(advertised_address(self._server.address, config, ha.config))
        reader_addresses = tuple(
            str(
                advertised_address(
                    evolve(self._server.address, endpoint=endpoint), config, ha.config
                )
            )
            for endpoint in reader_endpoints
        )
        self._core = NodeCore(
            NodeIdentity(
                node_id=self.node_id,
                registration_id=registration_id,
                address=self.address,
                chunk_size_bytes_max=config.chunk_size_bytes_max,
                reader_addresses=reader_addresses,
            ),
            config.limits,
            token=token,
            now_ns=self._clock.now_ns(),
        )
        self.client = QueryStateProxyClient(
            ha,
            credentials,
            loop=self.loop,
            context=context,
            clock=self._clock,
            on_event=self.step,
            on_question=self._asked,
            join=lambda: self._core.join_message,
        )
        self._resources.callback(self.client.disconnect)
        self.step(self._store.store_opened())
        self.loop.set_deadline(self._next_deadline_ns, self._advance)

    def _start_readers(self, config: NodeConfig, run: str) -> Sequence[Endpoint]:
        """Start the reader processes, if there are to be any; return where they are."""
        withdraw_page(config.data_dir)
        if not config.readers:
            return ()
        if not isinstance(self._clock, SystemClock):
            raise ConfigurationError(
                "reader processes go by the machine's clock: use that, or no readers"
            )
        release = partial(self._store.post, self._store.release_dead_readers)
        crew = ReaderCrew(config, run=run, on_ended=release)
        self._resources.callback(crew.close)
        self._crew = crew
        return crew.start(self._store.opened.store.name)

    # -- for every thread ----------------------------------------------------------

    @property
    def is_registered(self) -> bool:
        """Return whether the proxy leader has taken the node, as far as is known."""
        return self._is_registered

    @property
    def problem(self) -> str:
        """Return why the node is not registered, as far as is known."""
        refusal, problem = self._refusal, self.client.problem
        if refusal is not None:
            return f"the proxy refused it ({refusal.reason}): {refusal.detail}"
        return "" if problem is None else str(problem)

    def wait_until_registered(self, timeout_seconds: float | None) -> bool:
        """Wait until the node is registered; return whether it is."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_registered or self._has_ended, timeout_seconds
            )

    def leave(self, timeout_seconds: float) -> str | None:
        """
        Ask for leave to end, and wait for it.

        Returns:
            Why it may end, as in `NodeEmptied`; None after *timeout_seconds*, or if the
            loop ends before.
        """
        try:
            self.loop.call_soon_threadsafe(partial(self.step, LeaveAsked()))
        except LocalProtocolError:
            return None
        with self._changed:
            self._changed.wait_for(
                lambda: self._end_reason is not None or self._has_ended, timeout_seconds
            )
            return self._end_reason

    # -- in the loop ---------------------------------------------------------------

    def figures(self) -> dict[str, str | int | float]:
        """Return the node's figures by name."""
        counts = self.client.counts
        errors = self._answerer.errors + self._direct.errors
        figures: dict[str, Any] = {
            "version": self._version,
            "node_id": self.node_id,
            "address": self.address,
            **self._core.figures(now_ns=self._clock.now_ns()),
            **self._server.figures(),
            **self._answerer.figures(),
            **self._direct.figures(),
            **self._store.figures(),
            **{f"proxy_frames_{name}_total": n for name, n in sorted(counts.items())},
            "proxy_received_bytes_total": self.client.received_bytes,
            "proxy_sent_bytes_total": self.client.sent_bytes,
            **{f"{name}_total": n for name, n in sorted(errors.items())},
            "failures_total": self.loop.failure_count,
        }
        crew = NO_READERS if self._crew is None else self._crew.figures()
        for name, count in crew.items():
            figures[name] = figures.get(name, 0) + count
        return figures

    def observe(self) -> Observation:
        """Return what metrics and health are made of."""
        problem = None
        if not self._core.is_registered:
            problem = self.problem or "it is not registered with a proxy that leads"
        latencies = self._answerer.latencies.buckets()
        if self._crew is not None:
            problem = problem or self._crew.problem
            latencies = merged([*latencies, *self._crew.latencies()])
        return Observation(
            role="node",
            figures=self.figures(),
            problem=problem,
            stopped=self._core.stopped(),
            latencies=latencies,
        )

    def step(self, event: NodeEvent) -> None:
        """Have *event* happen; what happens meanwhile, after it."""
        self._pending.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._pending:
                now_ns = self._clock.now_ns()
                effects = self._core.step(self._pending.popleft(), now_ns=now_ns)
                if self._crew is not None:
                    # Before anybody is told of it, or rows are others (rules D2, S3).
                    self._crew.publish(
                        self._core.standing(), store=self._store.opened.store.name
                    )
                for effect in effects:
                    self._perform(effect)
        finally:
            self._is_stepping = False
        if self._is_registered != self._core.is_registered:
            if self._is_registered:
                self._answerer.cancel_all()  # the askers are not there any more
            with self._changed:
                self._is_registered = self._core.is_registered
                self._changed.notify_all()

    def _perform(self, effect: NodeEffect) -> None:
        store, reports = self._store, self._reports
        match effect:
            case SendToProxy(message=message):
                if isinstance(message, Refusal):  # of a question that has waited
                    self._answerer.count_refused(message)
                if not self.client.send(message):
                    # It would wait for what it was not told, a batch that is applied,
                    # for ever: the node begins anew, and tells all of it.
                    self.step(ProxyDisconnected())
            case ConnectProxy(address=address):
                self.client.connect(address)
            case AskAgain(asked=asked):
                self._answerer.ask(
                    asked.question,
                    asked.keys,
                    asked_at_ns=asked.asked_at_ns,
                    link=self.client.link,
                )
            case CancelReads(question_ids=question_ids):
                self._answerer.cancel(question_ids, link=self.client.link)
            case EndProcess(reason=reason):
                self._log.info("node.emptied", reason=reason)
                with self._changed:
                    self._end_reason = reason
                    self._changed.notify_all()
            case ReportRegistered(leader_epoch=leader_epoch):
                self._refusal = None
                self._log.info("node.registered", epoch=leader_epoch)
            case ReportRefused(reason=reason, detail=detail):
                if self._refusal != effect:
                    self._log.warning("node.refused", reason=reason, detail=detail)
                self._refusal = effect
            case ReportBehind(job_id=job_id, sequence=sequence, failure=failure):
                self._log.error(
                    "job.stopped", job_id=job_id, sequence=sequence, reason=failure
                )
            case ReportStale(leader_epoch=epoch, leader_epoch_max=epoch_max):
                if self._budget.admits("stale", now_ns=self._clock.now_ns()):
                    self._log.warning("command.stale", epoch=epoch, epoch_max=epoch_max)
            case SendToWriter(writer=writer, message=refused):
                self._server.refuse(writer, refused)
            case KeepCopySecret(secret=secret):
                self._server.keep_secret(secret)
                if self._crew is not None:
                    self._crew.keep_secret(secret)
                store.show(secret)
            case StageRows():
                store.stage(effect)
            case ApplyEntry():
                store.apply(effect)
            case ResetJobRows():
                store.reset(effect)
            case HoldKeyGroups():
                store.hold(effect)
            case FetchKeyGroups():
                store.fetch(effect)
            case CancelFetch(job_id=job_id):
                store.cancel_fetch(job_id)
            case FinishCopy():
                store.finish_copy(effect)
            case BindStore(control_id=control_id):
                store.bind(control_id)
            case SwitchStore(control_id=control_id):
                store.switch(control_id)
            case RaiseFences(fences=fences):
                store.raise_fences(fences)
            case DropOldStages(spared=spared):
                store.drop_old_stages(spared)
            case ForgetJobRows(job_id=job_id):
                store.forget_job(job_id)
            case ForgetLeftJobs(kept=kept):
                store.forget_left(kept)
            case DropFences(job_id=job_id, query_ids=query_ids):
                store.drop_fences(job_id, query_ids)
            case KeepJobPlan(plan=plan):
                store.keep_plan(plan)
            case CheckStages(command=verify):
                reports.check(verify)
            case CollectRows(command=collect):
                reports.collect(collect)
            case TellJobPlan(job_id=job_id):
                reports.tell_plan(job_id)
            case HandleSnapshot(command=snapshot):
                reports.handle_snapshot(snapshot)
            case _:
                assert_never(effect)

    def _asked(self, question: Question, keys: bytes) -> None:
        """Answer a question: the hot path."""
        self._answerer.ask(
            question, keys, asked_at_ns=self._clock.now_ns(), link=self.client.link
        )

    def _staged(self, task: StageTask, error: NameServiceError | None) -> None:
        self._server.staged(task, error)

    def _send_page(self, peer: bytes, frames: Sequence[bytes]) -> bool:
        return self._server.send_page(peer, frames)

    def _answer_client(self, client: bytes, frames: Sequence[bytes]) -> bool:
        return self._server.answer(client, frames)

    def _admit(self, question: Question, job_id: str | None) -> Admission:
        return self._core.admit(question, job_id, now_ns=self._clock.now_ns())

    def _is_current(self, ticket: DirectTicket) -> bool | None:
        return self._core.is_current(ticket, now_ns=self._clock.now_ns())

    def _reply(
        self,
        message: msgspec.Struct,
        payload: bytes | zmq.Frame | None,
        link: int,
        on_gone: Callable[[], None] | None = None,
        /,
    ) -> None:
        self.client.send(message, payload, link=link, on_gone=on_gone)

    def _next_deadline_ns(self) -> int:
        core_ns, client_ns = (
            self._core.next_deadline_ns(),
            self.client.next_deadline_ns(),
        )
        return core_ns if client_ns is None else min(core_ns, client_ns)

    def _advance(self) -> None:
        """Take note of the time."""
        self.client.advance()
        if self._clock.now_ns() >= self._core.next_deadline_ns():
            self.step(TimePassed())

    def _end(self) -> None:
        """Release all threads that wait."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()


def _credentials_of(config: NodeConfig) -> Credentials:
    return credentials_of(
        token=config.token,
        token_file=config.token_file,
        curve_public_key_file=config.curve_public_key_file,
        curve_secret_key_file=config.curve_secret_key_file,
    )
