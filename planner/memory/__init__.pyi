# what is left for the KV cache
from .budget import SHIPPED_BASIS as SHIPPED_BASIS
from .budget import Basis as Basis
from .budget import MemoryBudget as MemoryBudget
from .budget import StageBudget as StageBudget
from .budget import memory_budget as memory_budget
from .budget import unset_kv_cache_space as unset_kv_cache_space
from .budget import with_kv_cache_space as with_kv_cache_space

# adapters, drafts and host memory
from .weights import adapted as adapted
from .weights import host_kv_tokens as host_kv_tokens
from .weights import known_draft as known_draft
from .weights import module_mixer as module_mixer
from .weights import offloaded_bytes as offloaded_bytes

# facts that need no GPU
from .cache import attention_kinds as attention_kinds
from .cache import kv_bytes_per_token as kv_bytes_per_token
from .cache import stored_weight_bytes as stored_weight_bytes

# the cache
from .cache import element_bytes as element_bytes

# constants from a start-up log of the user
from .startup_log import ROUNDING_BYTES as ROUNDING_BYTES
from .startup_log import learn_constants as learn_constants

# fitted constants, each with its interval
from .overheads import SHIPPED as SHIPPED
from .overheads import Constants as Constants
from .overheads import FittedConstant as FittedConstant
from .overheads import parse_constants as parse_constants
from .overheads import shipped as shipped

# what vLLM printed when it started
from .startup_log import StartupLog as StartupLog
from .startup_log import read_startup_log as read_startup_log

# weights on each rank
from .overheads import CUT_TOWERS as CUT_TOWERS
from .overheads import leaves_tower_out as leaves_tower_out
from .overheads import media_of as media_of
from .weights import stage_weights as stage_weights
