"""Plans for a table of GPU x model x precision x goal x vLLM version, as ``planner recommend`` makes them."""

from collections.abc import Callable

from pairwise import Row
from searches import search_for

from planner.engine.settings import EngineArgs
from planner.engine.version import parse_version
from planner.errors import PlannerError
from planner.output.scripts.emission import Emission
from planner.output.tables.recommendation import predicted_lines
from planner.planning.plan import Plan, PlanFile
from planner.planning.search.space import Candidate
from planner.workload.load import Load

#: Hub ids by precision; a precision that nobody publishes is that of the model itself.
MODELS = {
    "llama-70b": {
        "16-bit": "meta-llama/Llama-3.3-70B-Instruct",
        "8-bit": "amd/Llama-3.3-70B-Instruct-FP8-KV",
        "4-bit": "nvidia/Llama-3.3-70B-Instruct-FP4",
    },
    "llama-8b": {"16-bit": "meta-llama/Llama-3.1-8B-Instruct", "8-bit": "amd/Llama-3.1-8B-Instruct-FP8-KV"},
    "qwen3-moe": {
        "16-bit": "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "8-bit": "Qwen/Qwen3-235B-A22B-FP8",
        "4-bit": "amd/Qwen3-235B-A22B-Instruct-2507-MXFP4",
    },
    "deepseek": {"8-bit": "deepseek-ai/DeepSeek-R1"},
    "gpt-oss": {"4-bit": "openai/gpt-oss-120b"},
    "llama2-7b": {"16-bit": "meta-llama/Llama-2-7b-chat-hf"},
    "mixtral": {"16-bit": "mistralai/Mixtral-8x7B-Instruct-v0.1", "8-bit": "amd/Mixtral-8x7B-Instruct-v0.1-FP8-KV"},
}
#: All but the versions.
FACTORS = {
    "gpu": (
        "mi300x", "mi300x-cpx", "mi325x", "mi355x", "a100-sxm-80gb", "h100-sxm", "h200-sxm", "h100-mig-3g.40gb",
        "b200-sxm",
    ),
    "model": tuple(MODELS),
    "precision": ("16-bit", "8-bit", "4-bit", "fp8 cache"),
    "goal": ("min-latency", "max-throughput", "balanced"),
}  # fmt: skip


def planned(row: Row, explain: Callable[[str], None] = lambda reason: None) -> tuple[Plan, Candidate] | None:
    """The best plan of a row and what was simulated for it; where there is none, ``explain`` is told why."""
    published = MODELS[row["model"]]
    name = published.get(row["precision"]) or next(iter(published.values()))
    args = EngineArgs(kv_cache_dtype="fp8" if row["precision"] == "fp8 cache" else "auto")
    try:
        search = search_for(
            None, row["gpu"], model=name, load=Load(1024, 1024), version=parse_version(row["version"]), args=args,
            goal=row["goal"],  # type: ignore[arg-type]
        )  # fmt: skip
        (ranking,) = search.run()
        if ranking.best is None:
            explain("nothing fits, or no version of the engine runs it")
            return None
        return search.plan(ranking), ranking.best
    except PlannerError as error:
        explain(error.cause.split(":")[0])
        return None


def emitted(plan: Plan, candidate: Candidate, row: Row) -> Emission:
    """The plan with what is said about it in the scripts, as ``planner recommend -o`` says it."""
    command = f"planner recommend {plan.requested_model} --gpu {row['gpu']} --goal {row['goal']}"
    file = PlanFile(planner_version="0.0.0", command=command, goal=row["goal"], plan=plan)
    profile, checkpoint_bytes = candidate.deployment.profile, plan.memory["checkpoint_bytes"]
    return Emission(file, profile, checkpoint_bytes, tuple(predicted_lines(plan)))
