"""What a server keeps of its clients must be what they have, once all is well."""

from __future__ import annotations

from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from tests.simulation.world import World


__all__ = ["find_leftover"]


def find_leftover(world: World) -> str | None:
    """
    Return what a server has that its client has not, or the other way round (E7, E8).

    A contender that has left must not be granted: it holds up all the others, and
    nothing takes it out before its session ends.
    """
    server = world.host.process
    if server is None:
        return "there is no server"
    core = server.service.core
    for client in world.living():
        session_id = client.core.session_id
        session = None if session_id is None else core.session(session_id)
        if session_id is None or session is None or client.is_deaf or client.is_leaving:
            continue
        kept = {contender_id for _, contender_id in session.contenders}
        for contender_id in kept.symmetric_difference(client.elections):
            where = "the server" if contender_id in kept else client.name
            return f"only {where} has contender {contender_id}"
        retrieved = {listener.component_id for listener in client.listeners.values()}
        for component_id in world.scenario.components:
            if server.service.is_subscribed(session_id, component_id) != (
                component_id in retrieved
            ):
                return f"{client.name} and the server differ on who asks {component_id}"
    return None
