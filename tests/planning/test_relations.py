"""What may only rise, or only fall: a fixed number of random servers for each relation of ``fuzz.relations``."""

from random import Random

import pytest
from fuzz.relations import RELATIONS, check, draw, slack

#: Servers that are drawn; a replay of hundreds of requests takes longer than a step.
CASES = {
    "rate": 20,
    "concurrency": 35,
    "data-parallel": 35,
    "eager": 75,
    "longer-prompt": 75,
    "longer-answer": 75,
    "target": 2,
    "host-memory": 15,
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_relation_holds(relation: str) -> None:
    random = Random(relation)
    held = 0
    for _ in range(CASES.get(relation, 100)):
        asked = draw(random, relation)
        found = check(asked)
        assert found is None or found <= slack(relation), f"{found:.3f}: {asked}"
        held += found is not None
    assert held  # the exceptions leave something
