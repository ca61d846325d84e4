"""What vLLM 0.24.0 took on a real H200, which no fit has seen; launches in graphs of prompts are read off it."""

import json

import pytest

from h200 import MEASURED, batch_of, deployment, measured_ms

STEPS = json.loads(MEASURED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", STEPS["kv_cache_tokens"])
def test_the_logged_kv_cache_is_predicted_within_one_percent(model: str) -> None:
    engine = deployment(model)
    predicted = int(engine.budget.num_blocks.mid) * engine.config.block_size
    assert predicted == pytest.approx(STEPS["kv_cache_tokens"][model], rel=0.01)


@pytest.mark.parametrize("row", [row for row in STEPS["rows"] if row[0].startswith("meta-llama")])
def test_a_dense_step_is_predicted_within_a_quarter(row: tuple[str, str, int, int, list[float]]) -> None:
    model, kind, prompts, input_len, repeats = row
    step_s = deployment(model).timer.step_s(batch_of(kind, prompts, input_len))
    assert step_s * 1e3 == pytest.approx(measured_ms(repeats), rel=0.25)
