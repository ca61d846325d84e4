"""Plan how to serve a large language model with vLLM, before renting a GPU.

>>> from planner import check_fit
>>> check_fit("meta-llama/Llama-2-7b-hf", "mi300x", calibration="none").verdict
'fits'

What is public is listed below; each function is one command of the command line, see ``docs/library.md``. Importing
this package imports nothing else: a name is looked up when it is first used.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from planner.api.check import check_command
    from planner.api.compare import compare_gpus
    from planner.api.fit import check_fit, list_fits, sweep_fit
    from planner.api.flags import EngineFlags
    from planner.api.fleet import size_fleet
    from planner.api.inputs import list_gpus, list_models, load_gpu, load_model
    from planner.api.measured import calibrate_from, evaluate_runs, validate_plan
    from planner.api.predict import predict_latency, predict_serve, predict_throughput
    from planner.api.recommend import recommend_plans, write_scripts
    from planner.errors import (
        HubError,
        IllegalPlanError,
        InputError,
        PlannerError,
        UnknownNameError,
        UnsupportedModelError,
    )
    from planner.hardware import GpuProfile
    from planner.model import ResolvedModel
    from planner.output import (
        CalibrationAnswer,
        CheckAnswer,
        ComparisonAnswer,
        Evaluation,
        FitAnswer,
        FitTable,
        FleetAnswer,
        PredictionAnswer,
        PredictionRefused,
        Recommendation,
        Result,
        ValidationAnswer,
    )
    from planner.planning import Demand, Plan

__all__ = [
    "CalibrationAnswer",
    "CheckAnswer",
    "ComparisonAnswer",
    "Demand",
    "EngineFlags",
    "Evaluation",
    "FitAnswer",
    "FitTable",
    "FleetAnswer",
    "GpuProfile",
    "HubError",
    "IllegalPlanError",
    "InputError",
    "Plan",
    "PlannerError",
    "PredictionAnswer",
    "PredictionRefused",
    "Recommendation",
    "ResolvedModel",
    "Result",
    "UnknownNameError",
    "UnsupportedModelError",
    "ValidationAnswer",
    "calibrate_from",
    "check_command",
    "check_fit",
    "compare_gpus",
    "evaluate_runs",
    "list_fits",
    "list_gpus",
    "list_models",
    "load_gpu",
    "load_model",
    "predict_latency",
    "predict_serve",
    "predict_throughput",
    "recommend_plans",
    "size_fleet",
    "sweep_fit",
    "validate_plan",
    "write_scripts",
]

#: Module -> the public names that live there.
_HOMES = {
    "api.check": ("check_command",),
    "api.compare": ("compare_gpus",),
    "api.fit": ("check_fit", "list_fits", "sweep_fit"),
    "api.flags": ("EngineFlags",),
    "api.fleet": ("size_fleet",),
    "api.inputs": ("list_gpus", "list_models", "load_gpu", "load_model"),
    "api.measured": ("calibrate_from", "evaluate_runs", "validate_plan"),
    "api.predict": ("predict_latency", "predict_serve", "predict_throughput"),
    "api.recommend": ("recommend_plans", "write_scripts"),
    "errors": (
        "HubError", "IllegalPlanError", "InputError", "PlannerError", "UnknownNameError", "UnsupportedModelError",
    ),
    "planning": ("Demand", "Plan"),
    "hardware": ("GpuProfile",),
    "model": ("ResolvedModel",),
    "output": (
        "CalibrationAnswer", "CheckAnswer", "ComparisonAnswer", "Evaluation", "FitAnswer", "FitTable", "FleetAnswer",
        "PredictionAnswer", "PredictionRefused", "Recommendation", "Result", "ValidationAnswer",
    ),
}  # fmt: skip

if not TYPE_CHECKING:  # a type checker sees the imports above, and names that are not there as errors

    def __getattr__(name):
        """A public name, imported when it is first used (PEP 562)."""
        from importlib import import_module

        for module, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"planner.{module}"), name)
                return value
        raise AttributeError(f"module 'planner' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
