"""What may only rise, or only fall: a fixed number of random servers for each relation of ``fuzz.relations``."""

from random import Random

import pytest
from fuzz.relations import RELATIONS, check, draw, slack

#: Servers that are drawn; a replay of hundreds of requests takes longer than a step.
CASES = {
    "rate": 40,
    "concurrency": 75,
    "data-parallel": 75,
    "eager": 150,
    "longer-prompt": 150,
    "longer-answer": 150,
    "target": 3,
    "host-memory": 30,
}


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_relation_holds(relation: str) -> None:
    random = Random(relation)
    held = 0
    for _ in range(CASES.get(relation, 200)):
        asked = draw(random, relation)
        found = check(asked)
        assert found is None or found <= slack(relation), f"{found:.3f}: {asked}"
        held += found is not None
    assert held  # the exceptions leave something
