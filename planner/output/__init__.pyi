# answers, one class for each command, and how they are printed
from .answer import Answer as Answer
from .answer import print_answer as print_answer
from .tables.fit import FitAnswer as FitAnswer
from .tables.fit import FitTable as FitTable
from .tables.fit import GpuFit as GpuFit
from .tables.fit import RefusedFit as RefusedFit
from .tables.prediction import PredictionAnswer as PredictionAnswer
from .tables.prediction import PredictionRefused as PredictionRefused
from .tables.recommendation import Recommendation as Recommendation
from .tables.recommendation import predicted_lines as predicted_lines
from .tables.comparison import ComparisonAnswer as ComparisonAnswer
from .tables.fleet import FleetAnswer as FleetAnswer
from .tables.check import CheckAnswer as CheckAnswer
from .tables.measured import Evaluation as Evaluation
from .tables.measured import CalibrationAnswer as CalibrationAnswer
from .tables.measured import OfflineValidation as OfflineValidation
from .tables.measured import ValidationAnswer as ValidationAnswer
from .tables.measured import validate_offline as validate_offline

# lists of facts
from .tables.facts import model_facts as model_facts
from .tables.facts import print_catalog as print_catalog
from .tables.facts import print_files as print_files
from .tables.facts import print_hardware as print_hardware
from .tables.facts import print_models as print_models
from .tables.facts import print_profile as print_profile
from .tables.facts import print_workflows as print_workflows

# notes, and files of one piece
from .render import note as note
from .render import print_notes as print_notes
from .render import write_file as write_file

# charts, and the report on a folder of plans
from .charts import svg as svg
from .report import charts_of as charts_of
from .report import page as page

# the page of planner ui
from .report import Asked as Asked
from .report import Played as Played
from .report import front_page as front_page
from .report import ladder as ladder
from .report import live_answer as live_answer
from .report import refused as refused
from .report import script as script
from .report import style as style
from .report import whole_answer as whole_answer

# measuring settings one after the other
from .tables.measured import TuningAnswer as TuningAnswer
from .tuning import Tuner as Tuner

# scripts of a plan
from .scripts.emission import Emission as Emission
from .scripts.folder import check_folder as check_folder
from .scripts.folder import write_folder as write_folder

# files for compose, Kubernetes and Slurm
from .deploy.pods import Site as Site
from .deploy.hosts import FILES as FILES
from .deploy.hosts import render_deployable as render_deployable

# workflows: scripts for one purpose
from .workflows.documents import find_workflow as find_workflow
from .workflows.documents import list_workflows as list_workflows
from .workflows.render import calibration_of as calibration_of
from .deploy.hosts import split_files as split_files
from .workflows.render import plan_files as plan_files
from .workflows.render import plan_workflow as plan_workflow
from .workflows.render import purpose_of as purpose_of
from .workflows.subject import Choice as Choice
