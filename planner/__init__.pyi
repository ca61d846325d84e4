# What ``from planner import ...`` gives. Names, keywords and keys of answers stay and only grow.

# Objects: a server, what is sent to it, and what it answers
from .planning import Serving as Serving
from .workload import Load as Load
from .planning import Fit as Fit
from .planning import Prediction as Prediction
from .planning import Capacity as Capacity
from .planning import Search as Search
from .planning import Space as Space
from .planning import Objective as Objective
from .workload import Targets as Targets
from .planning import Plan as Plan
from .output import Answer as Answer

# Names
from .planning import list_gpus as list_gpus
from .planning import list_models as list_models
from .planning import load_gpu as load_gpu
from .planning import load_model as load_model

# The commands of the command line, each answering with an Answer
from .commands.check import check_command as check_command
from .commands.recommend import compare_gpus as compare_gpus
from .commands.fit import check_fit as check_fit
from .commands.fit import list_fits as list_fits
from .commands.fit import sweep_fit as sweep_fit
from .commands.recommend import size_fleet as size_fleet
from .commands.folders import calibrate_from as calibrate_from
from .commands.folders import evaluate_runs as evaluate_runs
from .commands.folders import validate_plan as validate_plan
from .commands.predict import predict_latency as predict_latency
from .commands.predict import predict_serve as predict_serve
from .commands.predict import predict_throughput as predict_throughput
from .commands.recommend import recommend_plans as recommend_plans
from .commands.recommend import write_scripts as write_scripts
from .commands.folders import tune_plan as tune_plan

# What they take
from .hardware import GpuProfile as GpuProfile
from .model import ResolvedModel as ResolvedModel
from .workload import Demand as Demand

# What they answer
from .output import CalibrationAnswer as CalibrationAnswer
from .output import CheckAnswer as CheckAnswer
from .output import ComparisonAnswer as ComparisonAnswer
from .output import Evaluation as Evaluation
from .output import FitAnswer as FitAnswer
from .output import FitTable as FitTable
from .output import FleetAnswer as FleetAnswer
from .output import PredictionAnswer as PredictionAnswer
from .output import PredictionRefused as PredictionRefused
from .output import Recommendation as Recommendation
from .output import TuningAnswer as TuningAnswer
from .output import ValidationAnswer as ValidationAnswer

# What they raise
from .errors import HubError as HubError
from .errors import IllegalPlanError as IllegalPlanError
from .errors import InputError as InputError
from .errors import PlannerError as PlannerError
from .errors import UnknownNameError as UnknownNameError
from .errors import UnsupportedModelError as UnsupportedModelError

__version__: str
__all__: list[str]
