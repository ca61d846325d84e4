"""Tokens are known by their form, or by the name of their variable; what stands for a value is none."""

from pathlib import Path

import pytest
from script_plans import emission, plan

from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.hosts import render_deployable
from planner.output.scripts.emission import render_scripts
from planner.secrets import is_secret, masked

HUB = "hf_" + "a" * 34


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", HUB), ("X", f"Bearer {HUB}"), ("HF_TOKEN", "anything"), ("--api-key", "anything"), ("my_password", "x"),
        ("", "sk-proj-" + "a" * 40), ("", "ghp_" + "a" * 36), ("", "AKIA" + "A" * 16), ("X", "nvapi-" + "a" * 60),
        ("", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)  # fmt: skip
def test_secrets_are_known(name: str, value: str) -> None:
    assert is_secret(value, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", ""), ("HF_TOKEN", "$HF_TOKEN"), ("HF_TOKEN", "${HF_TOKEN}"), ("TOKENIZERS_PARALLELISM", "x"),
        ("HF_TOKEN_PATH", "/root/token"), ("--max-num-batched-tokens", "8192"), ("", "meta-llama/Llama-3.1-8B"),
        ("", "hf_quant_config.json"), ("VLLM_USE_V1", "1"), ("", "sk-learn"),
        ("", "disk-with-a-name-that-is-very-long-indeed"),
    ],
)  # fmt: skip
def test_other_values_are_not(name: str, value: str) -> None:
    assert not is_secret(value, name)


def test_a_token_is_masked_in_a_command() -> None:
    assert masked(f"planner check -- docker run -e HF_TOKEN={HUB} vllm") == (
        "planner check -- docker run -e HF_TOKEN=*** vllm"
    )


@pytest.mark.parametrize(
    "given",
    [
        {"docker_args": ("--env", f"HF_TOKEN={HUB}")},
        {"docker_args": (f"--env=HF_TOKEN={HUB}",)},
        {"docker_args": ("-e", "MY_SECRET=x")},
        {"env": {"HF_TOKEN": HUB}},
        {"serve_argv": ("vllm", "serve", "a/b", "--api-key", "x")},
    ],
)
def test_no_plan_with_a_secret_is_written(given: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="looks like a secret") as error:
        render_scripts(emission(plan(**given)))
    assert "by name" in error.value.hint
    assert HUB not in error.value.cause


@pytest.mark.parametrize("target", ["compose", "kubernetes", "slurm"])
@pytest.mark.parametrize("asked", [("--privileged",), ("--cap-add", "SYS_PTRACE"), ("--cap-add=SYS_ADMIN",)])
def test_no_privileged_container_is_deployed(target: str, asked: tuple[str, ...]) -> None:
    made = plan()
    render_deployable(emission(made), target)
    with pytest.raises(IllegalPlanError, match=asked[0].partition("=")[0]):
        render_deployable(emission(made.model_copy(update={"docker_args": (*made.docker_args, *asked)})), target)


def test_a_variable_given_by_name_is_no_secret() -> None:
    assert "HF_TOKEN" in render_scripts(emission(plan(docker_args=("--env", "HF_TOKEN"))))["plan.json"]
