"""``--env NAME=VALUE``: which variables a plan may have, and what they change."""

from typing import Any

import pytest
from command_line import refused, run

from planner.engine.features import features_of
from planner.engine.flags import VARIABLES, Environment, env_status
from planner.engine.resolution import resolve
from planner.engine.settings import EngineArgs, EngineConfig
from planner.engine.version import parse_version
from planner.errors import IllegalPlanError, InputError
from planner.hardware.profiles import load_profile
from planner.model.resolve import resolve_model

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def config(gpu: str, version: str, **env: str) -> EngineConfig:
    model = resolve_model(LLAMA, network=False).model
    args = EngineArgs(max_model_len=4096, env=Environment.read(env))
    return resolve(args, model, load_profile(gpu), parse_version(version))


def test_words_and_mappings_are_one() -> None:
    words = Environment.read(["VLLM_USE_V1=1", "OMP_NUM_THREADS=8", "EMPTY="])
    assert words == Environment.read({"VLLM_USE_V1": True, "OMP_NUM_THREADS": 8, "EMPTY": ""})
    assert hash(words) == hash(Environment(words)) and words.switch("VLLM_USE_V1") is True
    assert words["OMP_NUM_THREADS"] == "8" and words.switch("EMPTY") is None
    assert EngineArgs(env=words).changed(env="EMPTY=no").env == {**words, "EMPTY": "no"}


@pytest.mark.parametrize(
    ("given", "cause", "hint"),
    [
        ({"VLLM_USE_FLASHINFER_SAMPLR": "1"}, "unknown variable of vLLM", "VLLM_USE_FLASHINFER_SAMPLER"),
        ({"VLLM_API_KEY": "x" * 8}, "looks like a secret", "by name: export VLLM_API_KEY where"),
        ({"ANY": "hf_" + "x" * 20}, "looks like a secret", "HF_TOKEN and VLLM_API_KEY by name, and no other"),
        (["HF_TOKEN"], "has no value", "export HF_TOKEN"),
        (["FOO"], "has no value", "NAME=VALUE"),
        (["1FOO=2"], "not the name of a variable", "NAME=VALUE"),
        ({"FOO": "a\nb"}, "not printable", "one line"),
        ({"VLLM_USE_V1": "2"}, "none of 0, 1", "use one of"),
        ({"VLLM_CPU_KVCACHE_SPACE": "half"}, "not a whole number", "GiB"),
        ({"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT3"}, "none of FP", "INT4"),
    ],
)
def test_what_is_refused(given: Any, cause: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        Environment.read(given)
    assert cause in error.value.cause and hint in error.value.hint


def test_variables_of_other_versions_are_refused() -> None:
    with pytest.raises(IllegalPlanError, match=r"VLLM_USE_V1: vLLM 0.20.0 does not read it \(gone in 0.11.1\)"):
        config("h100", "0.20.0", VLLM_USE_V1="1")
    with pytest.raises(
        IllegalPlanError, match=r"VLLM_MXFP4_USE_MARLIN: vLLM 0.24.0 does not read it \(gone in 0.24.0\)"
    ):
        config("h100", "0.24.0", VLLM_MXFP4_USE_MARLIN="1")
    with pytest.raises(IllegalPlanError, match=r"not before 0\.8\.2"):
        config("mi300x", "0.8.0", VLLM_ROCM_USE_AITER="1")


@pytest.mark.parametrize(
    ("given", "hint"),
    [("VLLM_ATTENTION_BACKEND=FLASHINFER", "leave it out: no speed here depends on its successor --attention-backend"),
     ("VLLM_ALL2ALL_BACKEND=naive", "use --all2all-backend"),
     ("VLLM_USE_V1=1", "leave it out: V1 is the only engine")],
)  # fmt: skip
def test_the_hint_is_one_that_the_commands_take(given: str, hint: str) -> None:
    """``use --attention-backend`` was followed by ``No such option``."""
    with pytest.raises(IllegalPlanError) as error:
        config("h100", "0.32.0", **dict([given.split("=")]))
    assert error.value.hint.startswith(hint)


def test_variables_with_a_meaning_are_those_of_vllm() -> None:
    assert all(env_status(parse_version("0.33.0"), name).state != "unknown" for name in VARIABLES)


@pytest.mark.parametrize("use_v1", ["0", "1"])
def test_a_variable_chooses_the_engine(use_v1: str) -> None:
    """As ``planner check -- env VLLM_USE_V1=0 vllm serve ...`` does."""
    chosen = config("h100", "0.9.1", VLLM_USE_V1=use_v1)
    assert chosen.engine == f"V{use_v1}" and chosen.env == {"VLLM_USE_V1": use_v1}
    with pytest.raises(IllegalPlanError, match="asks for the V0 engine"):
        config("h100", "0.11.0", VLLM_USE_V1="0")


def test_what_samples_is_said_by_a_variable() -> None:
    profile = load_profile("h100")
    assert features_of(config("h100", "0.10.0"), profile).sampler == "unknown"
    chosen = {value: config("h100", "0.10.0", VLLM_USE_FLASHINFER_SAMPLER=value) for value in "01"}
    assert [features_of(chosen[value], profile).sampler for value in "01"] == ["sorting", "flashinfer"]
    with pytest.raises(IllegalPlanError, match="FlashInfer is for NVIDIA GPUs"):
        config("mi300x", "0.10.0", VLLM_USE_FLASHINFER_SAMPLER="1")


def test_a_variable_of_another_device_is_left_out() -> None:
    chosen = config("h100", "0.20.0", VLLM_CPU_KVCACHE_SPACE="4", OMP_NUM_THREADS="8")
    assert chosen.env == {"OMP_NUM_THREADS": "8"} and chosen.given_kv_cache_bytes is None
    assert "VLLM_CPU_KVCACHE_SPACE has no effect on a GPU" in chosen.defaults_taken


def test_variables_reach_commands_and_scripts(tmp_path: Any) -> None:
    said = ("--env", "NCCL_DEBUG=WARN", "--env", "VLLM_LOGGING_LEVEL=DEBUG")
    out = run("recommend", LLAMA, "--gpu", "h100", *said, "-o", str(tmp_path / "plan"))
    assert out.status == 0, out.err
    script = (tmp_path / "plan" / "launch.sh").read_text(encoding="utf-8")
    assert "NCCL_DEBUG=WARN" in script and "VLLM_LOGGING_LEVEL=DEBUG" in script
    assert "VLLM_LOGGING_LEVEL" in refused("fit", LLAMA, "--gpu", "h100", "--env", "VLLM_LOGING_LEVEL=DEBUG")
