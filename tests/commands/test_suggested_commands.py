"""A suggested ``planner recommend`` repeats every option of its question that changes the answer."""

import re
import shlex
from typing import Any, Literal, get_args, get_origin

import pytest

from planner.commands.declare import COMMANDS, Parameter
from planner.commands.main import main
from planner.commands.recommend import LOAD_AND_STOCK, repeated
from planner.commands.recommend import STATED as STATED_BY_COMPARE

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
OF_OUTPUT = ("partitions", "output", "force", "explain")
#: Values of options that have a form of their own.
VALUES: dict[str, Any] = {
    "classes": ["a=1:64:64"], "env": ["VLLM_USE_V1=0"], "price": ["h100=2"], "have": ["h100=4"],
    "speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}',
    "random_range_ratio": 0.25, "gpu": "h100",
}  # fmt: skip
#: Options of which the line states its own part, and those about the output.
STATED = {"compare": STATED_BY_COMPARE, "fleet": ("gpu", "model", *OF_OUTPUT, *LOAD_AND_STOCK)}


def value_of(one: Parameter) -> Any:
    """Some value that is not the default."""
    kind = next((part for part in (get_args(one.type) or (one.type,)) if part is not type(None)), one.type)
    if one.name in VALUES:
        return VALUES[one.name]
    if kind is bool or isinstance(one.default, bool):
        return not one.default
    if get_origin(kind) is Literal:
        return next(word for word in get_args(kind) if word != one.default)
    return {int: 7, float: 0.7}.get(kind, "word")


@pytest.mark.parametrize("command", STATED)
def test_every_option_of_the_signature_is_repeated_or_stated(command: str) -> None:
    of_recommend = COMMANDS["recommend"].parameters
    shared = {name: one for name, one in COMMANDS[command].parameters.items() if name in of_recommend}
    assert len(shared) > 20
    for name, one in shared.items():
        words = repeated({name: value_of(one)}, STATED[command])
        flag = one.flag.partition("/")[0]
        flags = {flag, flag.replace("--", "--no-", 1)}
        assert bool(flags & set(words)) or name in STATED[command], name


def test_a_default_is_not_repeated() -> None:
    settings = {"burstiness": 1.0, "seed": 0, "random_range_ratio": 0.0, "price": (), "confidence": None}
    assert repeated(settings) == ()


def suggested(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    main(list(words))
    text = capsys.readouterr().out.replace("\\\n", " ")
    return shlex.split(re.search(r"\$ (planner recommend .*)", text)[1])  # type: ignore[index]


@pytest.mark.parametrize("gpu", ["h100-sxm", "mi300x-cpx"])
def test_both_commands_repeat_the_price(capsys: pytest.CaptureFixture[str], gpu: str) -> None:
    whole = gpu.removesuffix("-cpx")
    asked = (MODEL, "--gpu", gpu, "--price", f"{whole}=2.5")
    for more in (("fleet", "--request-rate", "2", "--tpot", "90"), ("compare", "--max-concurrency", "4")):
        words = suggested(capsys, more[0], *asked, *more[1:])
        assert words[words.index("--price") + 1] == f"{whole}=2.5"


def test_fleet_repeats_the_rate_of_a_trace(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(
        f'{{"timestamp": {500 * at}, "input_length": 1024, "output_length": 64, "hash_ids": [1, {at + 2}]}}\n'
        for at in range(200)
    ))  # fmt: skip
    asked = ("fleet", MODEL, "--gpu", "h100", "--trace", str(trace), "--tpot", "90")
    for rate in (5, 0.5):
        words = suggested(capsys, *asked, "--request-rate", str(rate))
        assert float(words[words.index("--request-rate") + 1]) == pytest.approx(rate)
