# the figures of vllm bench
from .metrics import LATENCIES as LATENCIES
from .metrics import METRICS as METRICS
from .metrics import OF_A_REQUEST as OF_A_REQUEST
from .metrics import Latency as Latency

# loads, by their numbers or by name
from .requests import NAMED as NAMED
from .requests import NAMED_DISTRIBUTIONS as NAMED_DISTRIBUTIONS
from .requests import Requests as Requests
from .requests import SEEDS as SEEDS
from .requests import Workload as Workload
from .requests import check_rate as check_rate

# which server gets which of them
from .routing import Router as Router
from .routing import share as share

# loads of several turns, by name
from .sessions import named_sessions as named_sessions

# latency targets
from .targets import DEFAULT_PERCENTILE as DEFAULT_PERCENTILE
from .targets import Slo as Slo
from .targets import parse_percentile as parse_percentile
from .targets import parse_slos as parse_slos
from .targets import refuse_gaps_of_one_token as refuse_gaps_of_one_token
from .targets import targets_in_words as targets_in_words

# recorded loads
from .trace import Trace as Trace
from .trace import read_trace as read_trace
