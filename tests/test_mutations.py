"""
Every fault that must be found can still be put into the shipped code.

Some take thousands of seeds to be found, and no test looks for them.  Here it shows
that a refactoring has taken their text away.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.haservices.zookeeper.mutations import CORE_MUTATIONS
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.state_simulation.mutations import MUTATIONS as STATE_MUTATIONS
from tests.test_rules import PROMISED
from tests.zookeeper_simulation.mutations import ZOOKEEPER_MUTATIONS


ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "mutation",
    [*MUTATIONS, *STATE_MUTATIONS, *ZOOKEEPER_MUTATIONS, *CORE_MUTATIONS],
    ids=lambda mutation: mutation.name,
)
class TestMutation:
    def test_its_text_is_there_once(self, mutation: Mutation) -> None:
        """What comes of it is Python, and another program."""
        path = ROOT / Path(*mutation.module.split(".")).with_suffix(".py")
        source = path.read_text(encoding="utf-8")
        assert source.count(mutation.before) == 1
        mutated = source.replace(mutation.before, mutation.after)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(source))

    def test_what_it_breaks_is_a_rule(self, mutation: Mutation) -> None:
        """It begins with the name of one that is promised."""
        found = re.match(r"[A-Z]\d+\b", mutation.rule)
        assert found is not None
        assert found[0] in PROMISED
