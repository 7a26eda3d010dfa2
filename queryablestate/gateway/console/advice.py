"""What a person can do about a problem; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


__all__ = ["ADVICE", "advice_of"]

ADVICE: Final[Mapping[str, str]] = {
    "bad-request": "Correct what is named above, and ask again.",
    "wrong-key": "Write the key as the columns of the state say, and ask again.",
    "wrong-question": "Look at the page of the state: it says what can be asked of it.",
    "not-authenticated": "Sign in with a token of the proxy's access list.",
    "not-allowed": "Ask who runs the proxy for the right, or sign in as another "
    "caller.",
    "unknown-path": "Begin again at the overview.",
    "unknown-job": "Look for the job in the overview: it may be called otherwise, may "
    "not have committed yet, or this caller may not read it.",
    "unknown-state": "Look for the state in the overview: it may be called otherwise, "
    "or this caller may not read it.",
    "unknown-key": "Look at the key again, or browse the rows of the state.",
    "no-leader": "Start a process that contends for it, or wait for the next one.",
    "wrong-method": "Go back, and use the form on the page.",
    "too-slow": "Ask again; if it stays so, look at the network.",
    "too-large": "Ask for less at once.",
    "wrong-host": "Ask by the address of this machine, or have who runs the gateway "
    "tell it its name.",
    "rate-limited": "Wait a moment, and ask again.",
    "too-many-watches": "Close other pages that watch, and ask again.",
    "failed": "Tell who runs the gateway; its log says more.",
    "not-understood": "Look whether gateway, proxy and nodes are of the same version.",
    "unavailable": "Start the nodes that are away, or wait while key groups move: "
    "“lodestar nodes” and the page Nodes say which. No row is lost meanwhile.",
    "no-proxy": "Start “lodestar proxy”, or wait until another one leads.",
    "unreachable": "Look whether the name service runs, and whether the gateway "
    "reaches it.",
    "busy": "Wait a moment, and ask again, or ask another gateway.",
    "ending": "Ask another gateway, or this one when it is back.",
    "late": "Ask again; if it stays so, look at the nodes: “lodestar nodes”.",
}
"""What to do, by the name of a problem (`queryablestate.gateway.problems`)."""

_OTHERS: Final = "Begin again at the overview."


def advice_of(name: str) -> str:
    """Return what a person can do about the problem *name*."""
    return ADVICE.get(name, _OTHERS)
