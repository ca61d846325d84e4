"""What a file of the user's own fits may hold."""

from typing import Any

import pytest

from planner.errors import InputError
from planner.timing.fits import base_digest, parse_local


def content(*known: tuple[str, list[float]]) -> dict[str, object]:
    """A file with a factor for each row."""
    factor = {"target": "prefill", "factor": 1.1, "sd": 0.1}
    effects = [{**factor, "when": {"tp": str(n)}, "gpu": gpu, "known": row} for n, (gpu, row) in enumerate(known)]
    return {"base": base_digest(), "fitted_on": "2 runs", "effects": effects}


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1e200])
def test_what_no_run_teaches_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"machine.toml: efficiency.effects.0.known.1 is "):
        parse_local(content(("h100-sxm", [0.1, value])), "machine.toml")


@pytest.mark.parametrize("factor", [0, 1e-9, 1e9, float("nan")])
def test_no_factor_is_beyond_a_million(factor: float) -> None:
    file: Any = content(("h100-sxm", [0.1]))
    file["effects"][0]["factor"] = factor
    with pytest.raises(InputError, match=r"machine.toml: efficiency.effects.0.factor is "):
        parse_local(file, "machine.toml")


def test_what_runs_of_a_gpu_taught_is_as_long_for_each_factor() -> None:
    """They are rows of one matrix; each GPU has its own."""
    parse_local(content(("h100-sxm", [0.1, 0.2]), ("h100-sxm", [0.3, 0.4]), ("mi300x", [0.5])), "machine.toml")
    with pytest.raises(InputError, match=r"machine.toml: efficiency.effects: .*same length"):
        parse_local(content(("h100-sxm", [0.1, 0.2]), ("h100-sxm", [0.3])), "machine.toml")
