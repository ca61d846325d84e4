"""The answer of a command fits one screen, its verdict first; ``--explain`` loses nothing of what was said before."""

import re
from pathlib import Path

import pytest
from command_line import run

pytestmark = pytest.mark.usefixtures("small_searches")

LINES, COLUMNS, NOTES = 40, 100, 5
#: Contexts, which are values of a flag, and bytes of the KV cache for each token.
EXACT = {"131072", "163840", "262144", "327680"}
LLAMA, LLAMA_70B, DEEPSEEK = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct",
    "deepseek-ai/DeepSeek-R1",
)
QWEN, QWEN_MOE, GPT_OSS = "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b"
TARGETS = "--ttft 2000 --tpot 50 --request-rate 4"
SHORT = "--random-input-len 256 --random-output-len 64"
PINNED = "--max-num-batched-tokens 8192 --max-num-seqs 128 --kv-cache-dtype fp8"  # what costs time and changes no form
MET = (*TARGETS.split(), *SHORT.split())

#: How a verdict begins, or what is in it, by command.
VERDICTS = {
    "fit": r"^\S+ (on .+: (fits|does not fit|too close to call)|fits (on|with) )",
    "recommend": r"^(Serve \S+( \(asked: \w+\))? on [\d,]+ x |No (plan meets|setting of) )",
    "compare": r"^(Most tokens/s per GPU of \S+: |\S+ serves \S+ at |No GPU holds )",
    "fleet": r"^(Serve \S+( \(asked: \w+\))? on [\d,]+ x |No fleet carries )",
    "check": r"^\S+ on (\d+ x )?\S+(, vLLM \S+)?: ",
}
ASKED = f"""
fit {LLAMA} --gpu h200
fit {LLAMA_70B} --gpu h100
fit {LLAMA_70B} --gpu mi300x
fit {DEEPSEEK} --gpu mi355x -tp 8
fit {LLAMA_70B} --gpu l4,a10g,l40s,a100,h100,h200,mi300x,b200
fit {LLAMA} --gpu all -tp 2
fit Qwen/Qwen3-Next-80B-A3B-Instruct --gpu h200 -tp 2
fit {GPT_OSS} --gpu h100 --gpu mi300x --gpu b200 --gpu l40s
fit {LLAMA} --gpu h200 --sweep
fit {LLAMA} --gpu h200 --gpu mi300x --gpu l4 --sweep
fit {LLAMA} --gpu mi300x-cpx-nps4 --max-model-len 8192
fit meta-llama/Llama-3.2-1B --gpu cpu --max-model-len 8192 --env VLLM_CPU_KVCACHE_SPACE=4
recommend
recommend --goal min-latency
recommend --goal max-throughput --gpu h200
recommend {DEEPSEEK} --gpu l4
recommend {QWEN_MOE} --gpu mi300x --gpu h100 --goal min-latency
recommend {GPT_OSS} --gpu mi355x --goal min-latency
recommend {LLAMA} --gpu mi300x-cpx-nps4 --gpu h100-mig-3g.40gb
recommend {LLAMA} --gpu h100 {TARGETS} {SHORT}
recommend {LLAMA} --gpu h100 --gpu mi300x --ttft 500 --max-concurrency 16 {SHORT}
recommend {LLAMA} --gpu l40s --ttft 1 --request-rate 1 {SHORT}
recommend {LLAMA_70B} --gpu mi300x --gpu l4 --request-rate 2 --ttft 20 --tpot 5 {PINNED}
recommend {QWEN} --gpu h20 {TARGETS} {SHORT} --confidence 0.95 {PINNED} --no-speculation
compare
compare {LLAMA} --gpu h100 --request-rate 1,5 {SHORT}
compare {LLAMA} --gpu all -tp 1 --max-concurrency 2 --random-input-len 64 --random-output-len 16 {PINNED}
compare {LLAMA} --random-input-len 128,512,1024 --random-output-len 64 --max-concurrency 4,32
compare meta-llama/Llama-3.2-3B-Instruct --gpu mi300x --gpu mi300x-cpx --max-concurrency 64
compare {DEEPSEEK} --gpu l4 --gpu a10g
compare {DEEPSEEK} --gpu b200 --gpu mi355x --per node --max-concurrency 32 {SHORT}
fleet {LLAMA} {TARGETS} {SHORT} {PINNED}
fleet {LLAMA} --gpu mi300x --gpu h100 --class chat=10:500:200 --class rag=3:4000:100 {PINNED}
fleet {LLAMA} --gpu h100 --gpu l40s --class chat=5:300:100 --class long=1:2000:150 --class code=2:600:50 \
  --ttft 3000 --stock h100=2 {PINNED} --no-speculation
fleet {LLAMA} --gpu mi300x --workload rag --request-rate 5 --ttft 5000 --tpot 60 --disaggregated
fleet {LLAMA} --gpu l4 --request-rate 5 --ttft 1 {SHORT}
fleet {DEEPSEEK} --gpu l4 --gpu h100 --request-rate 5 {SHORT} {PINNED}
fleet {QWEN_MOE} --gpu h200 --request-rate 50 --tpot 40 {SHORT} {PINNED}
check --gpu mi300x -- vllm serve {LLAMA} --max-num-seqs 512 --max-model-len 8192
check --gpu h100 -- vllm serve {LLAMA_70B}
check --gpu h100 -- vllm serve {LLAMA} --no-such 1 --swap-space 4 --other --more
check --gpu h100 -- vllm serve {LLAMA} -tp 3
check --gpu h200 -- vllm serve {DEEPSEEK} -tp 8 --enable-expert-parallel
check --gpu h100 -- vllm bench latency --model {LLAMA}
"""
#: What a folder of AMD's kind may hold: three switches, read as bash reads unset variables.
SCRIPT = f"""#!/bin/bash
if [ "$MODE" = fast ]; then EXTRA="--max-num-seqs 512"; else EXTRA="--max-model-len 999999"; fi
if [ -n "$BIG" ]; then TP=8; else TP=1; fi
if [ "$KV" = fp8 ]; then CACHE=fp8; else CACHE=auto; fi
vllm serve {LLAMA} -tp $TP --kv-cache-dtype $CACHE $EXTRA
"""


def assert_fits(*words: str) -> str:
    """What is printed: one screen, the verdict in its first line."""
    outcome = run(*words)
    assert outcome.status in (0, 1), outcome.err
    lines = (outcome.out + outcome.err).splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    for line in lines:
        assert len(line) <= COLUMNS, line
    assert re.search(VERDICTS[words[0]], outcome.out), lines[0]
    plan = outcome.out.partition("\n  x ")[0]  # with the ways out of a refusal, which are answers
    assert "\n  x " in outcome.out or len(re.findall(r"^  [-!i] ", plan, re.MULTILINE)) <= NOTES, outcome.out
    text = " ".join(outcome.out.split())
    counts = {number.replace(",", "") for number in re.findall(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?![\d.])", text)}
    raw = {count for count in counts - EXACT if len(count) > 5 and not count.endswith("000")}
    assert not raw, outcome.out
    return outcome.out


@pytest.mark.parametrize("line", ASKED.strip().splitlines())
def test_an_answer_fits_one_screen(line: str) -> None:
    assert_fits(*line.split())


def test_a_script_with_switches_fits_one_screen(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(SCRIPT)
    said = assert_fits("check", "--gpu", "h100", str(tmp_path / "serve.sh"))
    assert said.startswith(f"{LLAMA} on 1 x h100-sxm, vLLM 0.32.0: planner does not model 3 options")


def test_the_folder_of_a_plan_fits_one_screen(tmp_path: Path) -> None:
    assert run("recommend", LLAMA, "--gpu", "h100", *MET, *PINNED.split(), "-o", str(tmp_path / "plan")).status == 0
    assert_fits("check", str(tmp_path / "plan"))
    assert_fits("check", str(tmp_path / "plan" / "benchmark.sh"))


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "serve", LLAMA, "--gpu", "h100", "--max-concurrency", "8", "--num-prompts", "40"),
        ("predict", "throughput", LLAMA, "--gpu", "l40s", "--input-len", "64", "--output-len", "16"),
        ("predict", "latency", DEEPSEEK, "--gpu", "mi355x", "-tp", "8"),
    ],
    ids=" ".join,
)
def test_a_prediction_is_the_table_of_the_bench_and_fits_too(words: tuple[str, ...]) -> None:
    outcome = run(*words)
    lines = (outcome.out + outcome.err).splitlines()
    assert len(lines) <= LINES and max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize(
    ("words", "behind"),
    [
        (("recommend", LLAMA, "--gpu", "h100", "--gpu", "mi300x"), ("AMD Instinct MI300X: ", "write the scripts with")),
        (
            ("compare", LLAMA, "--gpu", "h100", "--gpu", "mi300x", *SHORT.split()),
            ("limited by", "with the range of prices", "joules assume"),
        ),
        (("fleet", LLAMA, "--gpu", "h100", *MET, *PINNED.split()), ("USD per GPU and hour, on demand", "kW assume")),
        (("fit", LLAMA, "--gpu", "h100"), ("rule of thumb",)),
        (("fit", LLAMA, "--gpu", "all"), ("a10g",)),
        (("check", "--gpu", "h100", "vllm", "serve", LLAMA, "--enforce-eager"), ("-> ", "defaults: ")),
    ],
    ids=lambda value: value[0],
)
def test_what_a_screen_has_no_room_for_is_explained(words: tuple[str, ...], behind: tuple[str, ...]) -> None:
    brief, whole = run(*words), run(words[0], "--explain", *words[1:])
    assert brief.status == whole.status
    assert brief.out.splitlines()[0] == whole.out.splitlines()[0]  # the verdict leads both
    said = " ".join((whole.out + whole.err).split())
    assert all(words in said for words in behind)
    assert len(whole.out + whole.err) > len(brief.out + brief.err)
    assert "see --explain for details" in " ".join(brief.err.split()) or words[:2] == ("fit", LLAMA)


def test_a_load_with_turns_names_the_share_of_the_prefix_cache() -> None:
    """It sizes the plan. That benchmark.sh cannot send turns stands in the runbook, not among the five notes."""
    load = ("--workload", "multi-turn-chat", "--request-rate", "2", "--ttft", "3000", "--tpot", "40")
    text = assert_fits("recommend", QWEN_MOE, "--gpu", "mi355x", *load, *PINNED.split())
    assert "% of the prompt tokens come from the prefix cache" in text and "benchmark.sh" not in text
