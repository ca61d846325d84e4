# Profiles of GPUs and partitions: by name, all, the whole GPUs among them
from .profiles import load_profile as load_profile
from .profiles import load_all as load_all
from .profiles import load_whole as load_whole
from .profiles import profile_ids as profile_ids
from .profiles import aliases as aliases
from .local import local_profile as local_profile

# What a profile says
from .profile import GpuProfile as GpuProfile
from .profile import Quantity as Quantity
from .profile import PartitionRule as PartitionRule
from .profile import AllReduceCurve as AllReduceCurve

# Constants that no run determines, with their basis
from .constants import constant as constant
from .constants import constant_of as constant_of
