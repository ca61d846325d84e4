# the figures of vllm bench
from .targets import LATENCIES as LATENCIES
from .targets import METRICS as METRICS
from .targets import OF_A_REQUEST as OF_A_REQUEST
from .targets import Latency as Latency

# loads
from .load import Demand as Demand
from .load import Load as Load
from .load import MIXED_PROMPTS as MIXED_PROMPTS
from .load import NAMED as NAMED
from .load import NAMED_DISTRIBUTIONS as NAMED_DISTRIBUTIONS
from .load import benchmarks as benchmarks
from .load import check_classes as check_classes
from .load import check_workload as check_workload
from .load import too_rare as too_rare

# what is sent, and to which server
from .requests import Requests as Requests
from .requests import joined as joined
from .targets import Router as Router

# loads of several turns, by name
from .requests import named_sessions as named_sessions

# latency targets
from .targets import CONFIDENCE as CONFIDENCE
from .targets import By as By
from .targets import Targets as Targets
from .targets import DEFAULT_PERCENTILE as DEFAULT_PERCENTILE
from .targets import Slo as Slo
from .targets import parse_percentile as parse_percentile
from .targets import parse_slos as parse_slos
from .targets import refuse_gaps_of_one_token as refuse_gaps_of_one_token
from .targets import targets_in_words as targets_in_words
from .targets import use_cases as use_cases
