"""The link between a GPU and its host: weights and KV blocks that are kept in host memory.

::

    time = bytes / (share x peak of the link, one direction)

A rank reads every weight that ``--cpu-offload-gb`` leaves in host memory once in each step, whatever is computed
(zero-copy access of ``model_executor/offloader/uva.py``, vLLM 0.27). This is the least: kernels that read a tile
again, and ranks that share a switch, take longer.
"""

from __future__ import annotations

from planner.engine.config import EngineConfig
from planner.engine.features import features_of
from planner.errors import InputError
from planner.hardware.schema import GpuProfile
from planner.memory.extras import offloaded_bytes
from planner.memory.weights import stage_weights
from planner.model.architecture import Model
from planner.parallelism import Layout

#: Share of a PCIe link that payload gets: packets carry 128 bytes, and 20 to 24 more of headers and checks.
PAYLOAD_SHARE = 0.85


def host_bytes_per_s(profile: GpuProfile, what: str) -> float:
    """What a GPU reads from its host. Raises InputError, naming ``what`` asks for it, where nobody says how fast."""
    link = profile.interconnect.host_bandwidth
    if link is None:
        raise InputError(
            f"{what}: how fast {profile.name} reads from its host is not in its profile",
            hint="name another --gpu, or a profile of your own with interconnect.host_bandwidth",
        )
    return link.base * PAYLOAD_SHARE


def host_reads(model: Model, profile: GpuProfile, config: EngineConfig) -> tuple[int, float]:
    """Bytes that one pass through all stages reads from host memory, and the seconds it takes; none without offload.

    Raises InputError where the speed of the link is not known.
    """
    if not config.cpu_offload_gb:
        return 0, 0.0
    stages = stage_weights(
        model,
        Layout.of(config),
        config.dtype,
        architecture=profile.architecture,
        remainder_last=features_of(config, profile).pipeline_remainder_last,
    )
    read_bytes = offloaded_bytes(stages, config)
    return read_bytes, read_bytes / host_bytes_per_s(profile, "--cpu-offload-gb")
