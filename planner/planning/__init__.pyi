# What is taken where nobody says otherwise
from . import defaults as defaults

# What the user's own machines taught
from .calibration import SHIPPED as SHIPPED
from .calibration import Local as Local
from .calibration import local_for as local_for
from .calibration import local_path as local_path
from .calibration import read_local as read_local
from .calibration import save as save

# One model on one engine
from .deployment import Deployment as Deployment
from .deployment import resolve_deployment as resolve_deployment

# A model, a GPU, engine arguments, a version and a calibration
from .serving import Serving as Serving
from .defaults import Bench as Bench
from .serving import GpuName as GpuName
from .serving import ModelName as ModelName
from .serving import check_context as check_context
from .serving import check_load as check_load
from .serving import engine_args as engine_args
from .serving import find_gpu as find_gpu
from .serving import find_gpus as find_gpus
from .serving import list_gpus as list_gpus
from .serving import list_models as list_models
from .serving import load_gpu as load_gpu
from .serving import load_model as load_model
from .serving import typed as typed
from .serving import version_for as version_for

# Does it fit?
from .deployment import Verdict as Verdict
from .fit import Fit as Fit
from .fit import LogLine as LogLine
from .fit import WayOut as WayOut
from .fit import explain as explain
from .fit import sweep_settings as sweep_settings
from .startup import read_start as read_start

# How fast is it?
from .predict import ClassFigures as ClassFigures
from .capacity import Capacity as Capacity
from .capacity import steady_per_s as steady_per_s
from .capacity import at_load as at_load
from .predict import Prediction as Prediction
from .sweep import LoadPoint as LoadPoint
from .sweep import Sweep as Sweep
from .sweep import sweep_loads as sweep_loads

# What do published documents advise?
from .advice import Advised as Advised

# What does it cost?
from .cost import Paid as Paid
from .cost import interval_figures as interval_figures
from .cost import parse_prices as parse_prices
from .cost import price_of as price_of

# The plan: the one object that is simulated, launched, benchmarked and validated
from .plan import Plan as Plan
from .plan import PlanFile as PlanFile
from .plan import PlannedClass as PlannedClass
from .plan import PlannedRouter as PlannedRouter
from .plan import PlannedTrace as PlannedTrace
from .plan import BenchmarkLine as BenchmarkLine
from .plan import PlannedWorkload as PlannedWorkload
from .plan import Service as Service
from .plan import read_plan as read_plan

# Which settings?
from .search.search import Search as Search
from .search.space import Space as Space
from .search.space import Objective as Objective
from .search.space import Candidate as Candidate
from .search.space import Rejected as Rejected
from .search.space import Ranking as Ranking
from .search.space import Merit as Merit
from .search.plans import accuracy_warnings as accuracy_warnings
from .search.plans import mean_usd as mean_usd
from .search.plans import plans_in_order as plans_in_order
from .search.comparison import beside_recipe as beside_recipe
from .search.comparison import departures_in as departures_in
from .search.comparison import recipe_of as recipe_of
from .search.plans import closest_lines as closest_lines
from .search.plans import closest_point as closest_point
from .search.plans import little_in_words as little_in_words
from .search.plans import bottleneck as bottleneck

# Which GPU?
from .predict import cache_remark as cache_remark
from .predict import limit_in_words as limit_in_words
from .search.comparison import Question as Question
from .search.space import Refused as Refused
from .search.comparison import ComparedPoint as ComparedPoint
from .search.comparison import Comparison as Comparison
from .search.comparison import Order as Order
from .search.comparison import compare_hardware as compare_hardware
from .search.comparison import compare_partitions as compare_partitions

# How many?
from .search.fleet import Terms as Terms
from .search.fleet import Pool as Pool
from .search.fleet import Fleet as Fleet
from .search.fleet import Fleets as Fleets
from .search.fleet import plan_fleets as plan_fleets
from .search.fleet import times as times
from .search.disaggregated import Disaggregated as Disaggregated
from .search.disaggregated import SideLaunch as SideLaunch
from .search.disaggregated import disaggregate as disaggregate
from .search.disaggregated import beside as beside
from .search.disaggregated import Apart as Apart
from .search.disaggregated import apart_from as apart_from
from .search.disaggregated import check_apart as check_apart
from .search.disaggregated import cheapest_apart as cheapest_apart

# Is the size suspicious?
from .search.doubts import Doubt as Doubt
from .search.doubts import doubt_about_refusal as doubt_about_refusal
from .search.doubts import doubt_about_size as doubt_about_size
from .search.doubts import doubts_about_comparison as doubts_about_comparison
from .search.doubts import doubts_about_fleets as doubts_about_fleets
from .search.doubts import doubts_about_plan as doubts_about_plan
from .search.doubts import met_limits as met_limits

# Which settings, by measuring?
from .search.tuning import broken_words as broken_words
from .search.tuning import measured_merit as measured_merit
from .search.tuning import merit_words as merit_words
from .search.tuning import tuned_settings as tuned_settings
from .search.tuning import SURE as SURE
from .search.tuning import WITHIN as WITHIN
from .search.tuning import TunedRun as TunedRun
from .search.tuning import TuningState as TuningState
from .search.tuning import read_state as read_state

# Somebody's own line
from .search.check import LineRequest as LineRequest
from .search.check import LineVerdict as LineVerdict
from .search.check import Served as Served
from .serving import asked_by as asked_by
from .search.check import check_line as check_line
from .serving import launched_line as launched_line
from .serving import redeploy as redeploy

# intervals
from .uncertainty import LEVEL as LEVEL
