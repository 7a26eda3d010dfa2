"""
Lead job ``flights`` until you are interrupted, and say what happens.

Run it as ``python examples/first_leader.py leaderserver://127.0.0.1:5170 host-a:8000``.
"""

from __future__ import annotations

import sys
import threading

from election import LeaderElection, LeaderSession
from haservices import open_ha_services
from nameservice import LeadershipLostError


class Contender:
    """Accepts whatever it is granted."""

    def __init__(self, election: LeaderElection, address: str) -> None:
        self.election = election
        self.address = address

    def grant_leadership(self, session: LeaderSession) -> None:
        """Prepare what leading needs; then confirm, so that retrievers find us."""
        print(f"granted epoch {session.epoch}", flush=True)
        try:
            self.election.confirm_leadership(session.leader_session_id, self.address)
        except LeadershipLostError:
            return  # over before it began: our turn comes again
        print(f"leading at {self.address}", flush=True)

    def revoke_leadership(self) -> None:
        """Stop what only a leader may do."""
        print("leading no longer", flush=True)

    def handle_error(self, error: Exception) -> None:
        """Say what is wrong; the election goes on."""
        print(f"error: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    url, address = sys.argv[1:]
    with open_ha_services(url) as ha, ha.get_leader_election("flights") as election:
        election.start(Contender(election, address))
        print("contending for flights", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("resigning", flush=True)
