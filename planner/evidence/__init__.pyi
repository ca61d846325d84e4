# measured runs: tables, results of vllm bench and other tools, folders of plans
from .sources import Stated as Stated
from .sources import read_measurements as read_measurements
from .sources import read_sources as read_sources

# predicted beside measured, and errors in figures
from .evaluation import Evaluated as Evaluated
from .evaluation import PredictedFigure as PredictedFigure
from .evaluation import evaluate as evaluate
from .evaluation import Near as Near
from .evaluation import nearest_runs as nearest_runs
from .evaluation import notes_on_runs as notes_on_runs
from .evaluation import statistics as statistics
from .evaluation import summary as summary

# what a user's own runs teach
from .calibration import CalibrationOutcome as CalibrationOutcome
from .calibration import calibrate as calibrate
from .calibration import figures_of as figures_of
from .calibration import mean_error as mean_error
from .calibration import mean_width as mean_width
from .fitting import MEANINGS as MEANINGS

# the plans of a folder, what was measured of them, and why it missed
from .validation import ComparedLine as ComparedLine
from .validation import compare as compare
from .folder import PlanFolder as PlanFolder
from .folder import PlanFolders as PlanFolders
from .folder import PlannedPoint as PlannedPoint
from .folder import read_measured as read_measured
from .folder import read_offline as read_offline
from .folder import read_plan_folders as read_plan_folders
from .validation import Validation as Validation
from .validation import validate as validate

# a server that runs
