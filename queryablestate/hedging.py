"""
`HedgePolicy`: when a read is asked of another copy; pure (rule D4).

Theory of operation.  A read goes to one node.  If that has not answered within the
*hedge delay*, the read is *late*, and is asked of another one too: it is *hedged*.  A
proxy asks another copy; a client that has asked a node itself asks the proxy.

**The delay** follows from how long answers have taken lately: each node has an estimate
of the 99th percentile, and the delay is the lower median of these, within bounds.  So
one slow node does not put off its own hedges, and nodes that are all busy are not made
busier.  An estimate goes up by 99 steps with an answer that took longer, and down by
one with an answer that did not: it rests where one answer in a hundred takes longer.

**The budget**: a read earns a tenth of a hedge, a hedge costs a whole one, and a few
may be saved up.  So hedges are a tenth of all reads at most, whatever happens.

**A node that is unresponsive** would use up that budget: it answers nothing, and all of
its reads are late.  It is taken for unresponsive when some of its reads were late since
it was heard last, and that is several delays ago; or when one waits for very long.
Then it is asked second: its reads go to other copies at once, and cost nothing, since
they replace a question rather than repeat it.  A *probe* goes to the node as well, now
and then.  The first word from it, of whatever kind, ends that: every question is
answered or refused in the end, cancelled ones too, so a node that runs again is heard.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, final

from attrs import define, frozen

from nameservice.clock import NS_PER_MS


__all__ = ["HEDGE_LIMITS", "HedgeLimits", "HedgePolicy", "Verdict"]

_PERCENTILE_STEPS_UP: Final = 99
_STEPS_PER_ESTIMATE: Final = 2_048
_EARNINGS_PER_HEDGE: Final = 10


@final
@frozen(kw_only=True)
class HedgeLimits:
    """
    What a policy keeps to; durations in nanoseconds.

    Attributes:
        delay_ns_min: The hedge delay is not shorter than this.
        delay_ns_max: Nor longer than this.
        slow_delay_ns: After which pages and counts are late: long for these, and short
            of the default deadline.
        saved_count_max: Hedges that may be saved up.
        late_count: Late reads from which on a silent node is unresponsive.
        silent_delay_count: Hedge delays of silence that this takes.
        silent_delay_count_alone: Hedge delays of silence after which one late read
            suffices.
        probe_delay_count: Hedge delays between two probes of an unresponsive node.
    """

    delay_ns_min: int = 20 * NS_PER_MS
    delay_ns_max: int = 200 * NS_PER_MS
    slow_delay_ns: int = 2_000 * NS_PER_MS
    saved_count_max: int = 10
    late_count: int = 3
    silent_delay_count: int = 3
    silent_delay_count_alone: int = 10
    probe_delay_count: int = 10


HEDGE_LIMITS: Final = HedgeLimits()


class Verdict(Enum):
    """What becomes of a late read."""

    WAIT = auto()
    """Look again one delay later: the budget is used up."""

    HEDGE = auto()
    """Ask another copy, and tell `HedgePolicy.spend`."""

    MOVE = auto()
    """The node is unresponsive: ask others for all that it was asked."""


@final
@define(eq=False)
class _NodeRecord:
    """
    What is known of a node.

    Attributes:
        late_ns: The estimate of the 99th percentile.
        heard_at_ns: When it was heard last.
        late_count: Reads that were late since then.
        silent_since_ns: Since when something waits for it; means nothing without them.
        probe_at_ns: When it may be probed next, if it is unresponsive.
    """

    late_ns: int
    heard_at_ns: int = 0
    late_count: int = 0
    silent_since_ns: int = 0
    probe_at_ns: int = 0


@final
class HedgePolicy:
    """
    Decides when reads are hedged; see the module docstring.

    Two policies given the same calls answer the same.  Not thread-safe.

    Args:
        limits: What it keeps to.
    """

    def __init__(self, limits: HedgeLimits = HEDGE_LIMITS) -> None:
        self._limits = limits
        self._nodes: dict[int, _NodeRecord] = {}
        self._unresponsive: set[int] = set()
        self._savings_max = limits.saved_count_max * _EARNINGS_PER_HEDGE
        self._savings = self._savings_max
        self._delay_ns: int | None = limits.delay_ns_min

    @property
    def delay_ns(self) -> int:
        """
        Return the present hedge delay: the lower median of the nodes' estimates.

        It is worked out when it is asked for: many nodes may be forgotten together.
        """
        if self._delay_ns is None:
            estimates = sorted(record.late_ns for record in self._nodes.values())
            estimates = estimates or [self._limits.delay_ns_min]
            self._delay_ns = estimates[(len(estimates) - 1) // 2]
        return self._delay_ns

    @property
    def unresponsive_count(self) -> int:
        """Return how many nodes are asked second."""
        return len(self._unresponsive)

    def is_unresponsive(self, node: int) -> bool:
        """Return whether *node* is to be asked second."""
        return node in self._unresponsive

    # -- what happens --------------------------------------------------------------

    def earn(self) -> None:
        """Count a read."""
        if self._savings < self._savings_max:
            self._savings += 1

    def spend(self, question_count: int) -> None:
        """Count a hedge of *question_count* questions; may leave a debt."""
        self._savings -= question_count * _EARNINGS_PER_HEDGE

    def heard(self, node: int, *, now_ns: int) -> None:
        """Note that somebody, as a rule a node, has said something of a question."""
        record = self._nodes.get(node)
        if record is None:
            return  # anyone may send this: what is not a node takes no memory
        record.heard_at_ns = now_ns
        if record.late_count:
            record.late_count = 0
            self._unresponsive.discard(node)

    def took(self, node: int, elapsed_ns: int) -> None:
        """Note how long an answer took, or, if it was not waited for, longer than."""
        record = self._nodes.get(node)
        if record is None:
            record = self._nodes[node] = _NodeRecord(self._limits.delay_ns_min)
        limits, late_ns = self._limits, record.late_ns
        if elapsed_ns > late_ns:
            late_ns += late_ns * _PERCENTILE_STEPS_UP // _STEPS_PER_ESTIMATE
            record.late_ns = min(late_ns, limits.delay_ns_max)
        elif late_ns > limits.delay_ns_min:
            late_ns -= late_ns // _STEPS_PER_ESTIMATE + 1
            record.late_ns = max(late_ns, limits.delay_ns_min)
        else:
            return
        self._delay_ns = None

    def late(
        self, node: int, *, asked_at_ns: int, now_ns: int, is_first: bool
    ) -> Verdict:
        """
        Say what becomes of a read that *node* has not answered within the delay.

        Args:
            node: Which was asked.
            asked_at_ns: When.
            now_ns: The time.
            is_first: Whether this is said of that read for the first time.
        """
        record = self._nodes.get(node)
        if record is None:
            record = self._nodes[node] = _NodeRecord(self._limits.delay_ns_min)
        if not record.late_count:
            record.silent_since_ns = max(record.heard_at_ns, asked_at_ns)
        if is_first or not record.late_count:
            record.late_count += 1
        if node in self._unresponsive or self._is_silent(record, now_ns):
            self._unresponsive.add(node)
            return Verdict.MOVE
        if self._savings >= _EARNINGS_PER_HEDGE:
            return Verdict.HEDGE
        return Verdict.WAIT

    def take_probe(self, node: int, *, now_ns: int) -> bool:
        """Return whether an unresponsive node is to be asked, too, this time."""
        record = self._nodes.get(node)
        if record is None or now_ns < record.probe_at_ns:
            return False
        record.probe_at_ns = now_ns + self._limits.probe_delay_count * self.delay_ns
        return True

    def forget(self, node: int) -> None:
        """Forget a connection that is over."""
        if self._nodes.pop(node, None) is not None:
            self._unresponsive.discard(node)
            self._delay_ns = None

    def clear(self) -> None:
        """Forget all nodes."""
        self._nodes.clear()
        self._unresponsive.clear()
        self._delay_ns = None

    # -- parts ---------------------------------------------------------------------

    def _is_silent(self, record: _NodeRecord, now_ns: int) -> bool:
        limits = self._limits
        delay_count = (
            limits.silent_delay_count
            if record.late_count >= limits.late_count
            else limits.silent_delay_count_alone
        )
        return now_ns - record.silent_since_ns >= delay_count * self.delay_ns
