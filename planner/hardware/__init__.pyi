# Profiles of GPUs and partitions: by name, or all
from .profiles import load_profile as load_profile
from .profiles import load_all as load_all
from .profiles import profile_ids as profile_ids
from .profiles import aliases as aliases
from .profiles import tool_names as tool_names
from .profiles import counted_name as counted_name
from .local import local_profile as local_profile

# What a profile says
from .profiles import GpuProfile as GpuProfile
from .profiles import Quantity as Quantity
from .profiles import PartitionRule as PartitionRule
from .profiles import AllReduceCurve as AllReduceCurve

# Constants that no run determines, with their basis
from .profiles import constant as constant
from .profiles import constant_of as constant_of
