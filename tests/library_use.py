"""What a user of the library writes. ``make types`` checks it with mypy, ``test_api.py`` runs it."""

from typing import Any, assert_type

import planner
from planner.api.fit import check_fit
from planner.api.predict import predict_serve
from planner.api.recommend import recommend_plans
from planner.errors import InputError, PlannerError
from planner.hardware.profile import GpuProfile
from planner.output.result import Result
from planner.output.tables.fit import FitAnswer
from planner.output.tables.prediction import PredictionAnswer, PredictionRefused
from planner.output.tables.recommendation import Recommendation
from planner.planning.plan import Plan


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
    answers: list[Result] = [served, wanted]
    print([answer.ok for answer in answers])
    try:
        check_fit("meta-llama/Llama-2-7b-hf", "h1000")
    except PlannerError as error:
        print(isinstance(error, InputError), error.hint)


if __name__ == "__main__":
    main()
