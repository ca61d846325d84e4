"""What a user of the library writes. ``make types`` checks it with mypy, ``test_api.py`` runs it."""

from typing import Any, assert_type

import planner
from planner import (
    Answer,
    FitAnswer,
    GpuProfile,
    InputError,
    Plan,
    PlannerError,
    PredictionAnswer,
    PredictionRefused,
    Recommendation,
    check_fit,
    predict_serve,
    recommend_plans,
)


def smallest(model: str, gpus: list[str]) -> dict[str, int]:
    """The smallest tensor-parallel size on each GPU on which the model fits."""
    found: dict[str, int] = {}
    for name in gpus:
        answer = check_fit(model, name, calibration="none", kv_cache_dtype="fp8")
        assert_type(answer, FitAnswer)
        assert_type(answer.record.min_tensor_parallel_size, int | None)
        if size := answer.record.min_tensor_parallel_size:
            found[name] = size
    return found


def main() -> None:
    """Ask, and print."""
    gpu: GpuProfile = planner.load_gpu("h100")
    print(smallest("meta-llama/Llama-2-7b-hf", ["h100", "mi300x"]), gpu.memory_bytes)
    served = predict_serve("meta-llama/Llama-2-7b-hf", gpu, max_concurrency=4, num_prompts=8, calibration="none")
    assert_type(served, PredictionAnswer | PredictionRefused)
    assert_type(served.result, dict[str, Any])
    print(round(served.result["mean_tpot_ms"], 1))
    wanted = recommend_plans("meta-llama/Llama-2-7b-hf", gpu, max_concurrency=4, num_prompts=8, calibration="none")
    assert_type(wanted, Recommendation)
    assert_type(wanted.best, Plan | None)
    answers: list[Answer] = [served, wanted]
    print([answer.ok for answer in answers])
    try:
        check_fit("meta-llama/Llama-2-7b-hf", "h1000")
    except PlannerError as error:
        print(isinstance(error, InputError), error.hint)


if __name__ == "__main__":
    main()
