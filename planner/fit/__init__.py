"""Does a model fit on a GPU with vLLM: the verdict, the arithmetic, and the ways out."""

from planner.fit.answer import fit, sweep
from planner.fit.check import check, min_tensor_parallel_size, served_model
from planner.fit.explain import Line, explain
from planner.fit.result import Checked, Condition, FitResult, LogLine, Option, Verdict

__all__ = [
    "Checked",
    "Condition",
    "FitResult",
    "Line",
    "LogLine",
    "Option",
    "Verdict",
    "check",
    "explain",
    "fit",
    "min_tensor_parallel_size",
    "served_model",
    "sweep",
]
