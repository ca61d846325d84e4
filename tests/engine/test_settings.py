"""One table of settings: whoever names an option of vLLM takes it from there."""

import inspect
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.engine.command import serve_argv
from planner.engine.flags import flag_status, table_versions
from planner.engine.parse import read_line
from planner.engine.resolution import resolve
from planner.engine.settings import NOT_SIMULATED, SETTINGS, EngineArgs, EngineConfig, Tag
from planner.engine.version import parse_version
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model

LLAMA = resolve_model("meta-llama/Llama-3.1-8B-Instruct", network=False).model
NEWEST = parse_version(table_versions()[-1])
#: Of no use without --enable-lora, or gone with V0.
VALUES: dict[str, Any] = {
    "tensor_parallel_size": 2, "pipeline_parallel_size": 2, "data_parallel_size": 2, "quantization": "fp8",
    "max_model_len": 4096, "max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 2**34, "block_size": 32, "cpu_offload_gb": 4.0, "kv_offloading_size": 8.0,
    "enable_prefix_caching": False, "enable_chunked_prefill": False, "async_scheduling": False, "dtype": "float16",
    "kv_cache_dtype": "fp8", "enforce_eager": True,
}  # fmt: skip


def test_a_setting_is_declared_once() -> None:
    """What EngineConfig names again only says that there always is a value."""
    asked, named = get_type_hints(EngineArgs), set(EngineConfig.__annotations__)
    again = named & asked.keys()
    assert {asked[name] for name in again} <= {get_type_hints(EngineConfig)[name] | None for name in again}
    assert all(set(row.tags.split()) <= set(get_args(Tag)) for row in SETTINGS.values())


def test_rows_are_options_of_some_version() -> None:
    versions = [parse_version(text) for text in table_versions()]
    for row in SETTINGS.values():
        if row.ours:
            continue
        spellings = {row.flag, row.short} - {""}
        assert all(any(flag_status(version, flag) for version in versions) for flag in spellings), row.name
        assert row.flag not in NOT_SIMULATED - {"--enable-eplb"}  # its memory is counted, its speed is not
        assert row.help.endswith((".", "..."))


def test_every_option_says_what_it_is_by_default() -> None:
    assert EngineArgs() == EngineArgs(**{field.name: SETTINGS[field.name].default for field in fields(EngineArgs)})
    assert str(inspect.signature(EngineArgs)).count("=") == len(fields(EngineArgs))


@pytest.mark.parametrize("name", VALUES)
def test_what_a_line_says_is_read_back(name: str) -> None:
    asked = replace(EngineArgs(max_model_len=2048), **{name: VALUES[name]})
    config = resolve(asked, LLAMA, load_profile("h100"), NEWEST)
    line = read_line(serve_argv(config, "m"), NEWEST)
    assert not line.problems
    assert getattr(line.args, name) == VALUES[name]
    again = resolve(line.args, LLAMA, load_profile("h100"), NEWEST)
    assert replace(again, defaults_taken=()) == replace(config, defaults_taken=())


@given(st.sampled_from([row for row in SETTINGS.values() if row.least is not None or row.above is not None]))
def test_bounds_are_kept_and_named(row: Any) -> None:
    edge = row.least if row.least is not None else row.above
    row.check(None)
    row.check(row.most if row.most is not None else edge + 1)
    for value in (edge - 1, float("inf"), float("nan"), 1e16, *([row.most + 1] if row.most is not None else [])):
        with pytest.raises(InputError, match=f"{row.flag} must be") as error:
            row.check(value)
        assert error.value.hint
