"""Whatever a user can get wrong: an exit status, one cause line and one hint line, and nothing half-written."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import error_of, refused, run
from hub_server import HubServer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planner.resources import data_dir

LLAMA_7B = "meta-llama/Llama-2-7b-hf"
LLAMA_70B = "meta-llama/Llama-3.3-70B-Instruct"  # 64 query heads, 131,072 tokens of context
FIT = ("fit", LLAMA_70B, "--gpu", "h100")
SERVE = ("predict", "serve", LLAMA_7B, "--gpu", "h100", "--num-prompts", "4")
LATENCY = ("predict", "latency", LLAMA_7B, "--gpu", "h100")
RECOMMEND = ("recommend", LLAMA_7B, "--gpu", "h100")

DIGITS = "9" * 5000  #: more than Python reads as a number

#: words, what the cause names, what the hint offers
WRONG: dict[str, tuple[tuple[str, ...], str, str]] = {
    "unknown GPU": (("fit", LLAMA_7B, "--gpu", "h10"), "unknown GPU 'h10'", "nearest: h100"),
    "unknown GPU of a group": (("hardware", "show", "mi300x-cpxx"), "unknown GPU", "mi300x-cpx"),
    "two GPUs where one is meant": ((*LATENCY, "--gpu", "l40s"), "--gpu is given 2 times", "planner compare"),
    "two GPUs after one flag": ((*LATENCY[:-1], "h100,l40s"), "'h100,l40s' is more than one GPU", "planner compare"),
    "two GPUs of a line": (
        ("check", "--gpu", "h100", "--gpu", "l40s", "--", "vllm", "serve", LLAMA_7B), "--gpu is given 2 times", "once",
    ),
    "two spellings of an option": ((*LATENCY, "-tp", "1", "--tensor-parallel-size", "2"), "is given 2 times", "once"),
    "two rates": (
        ("fleet", LLAMA_7B, "--gpu", "h100", "--request-rate", "5", "--request-rate", "9"),
        "--request-rate is given 2 times", "give it once",
    ),
    "no GPU": (("fit", LLAMA_7B), "--gpu", "planner fit --help"),
    "profile that is not there": (("hardware", "show", "my.toml"), "my.toml", "check the path"),
    "unknown model": (("fit", "Llama-2-7b-h", "--gpu", "h100"), "unknown model", "nearest: meta-llama/Llama-2-7b-hf"),
    "empty model": (("fit", "", "--gpu", "h100"), "name is empty", "hub id"),
    "shell in a model": (("fit", "a/b; rm -rf ~", "--gpu", "h100"), "'a/b; rm -rf ~'", "organisation/name"),
    "substitution in a model": (("fit", "$(id)", "--gpu", "h100"), "'$(id)'", "organisation/name"),
    "path out of the cache": (("fit", "../../etc/passwd", "--gpu", "h100"), "no such file", "check the path"),
    "two organisations": (("fit", "a/b/c", "--gpu", "h100"), "'a/b/c'", "organisation/name"),
    "revision with a path": ((*FIT, "--revision", "../x"), "--revision", "a branch"),
    "heads that do not divide": ((*FIT, "-tp", "3"), "--tensor-parallel-size 3: the 64 attention heads", "64"),
    "heads that do not divide, predicted": ((*LATENCY, "-tp", "3"), "--tensor-parallel-size 3: the 32", "32"),
    "partitions that cannot share a model": (
        ("predict", "latency", LLAMA_7B, "--gpu", "mi300x-cpx", "-tp", "2"), "tensor parallel size 1 only", "mi300x",
    ),
    "more stages than layers": ((*LATENCY, "-pp", "33"), "--pipeline-parallel-size 33", "fewer"),
    "more replicas than any rack": ((*LATENCY, "-dp", "10000000000"), "--data-parallel-size", "leave"),
    "zero ranks": ((*FIT, "-tp", "0"), "--tensor-parallel-size must be at least 1", "default"),
    "half a rank": ((*FIT, "-tp", "0.5"), "must be an integer, from 1 to 1,024, got '0.5'", "leave"),
    "negative context": ((*FIT, "--max-model-len", "-2"), "--max-model-len must be at least 1, got -2", "default"),
    "context beyond the model": ((*FIT, "--max-model-len", "131073"), "--max-model-len 131073", "131072"),
    "all memory and more": ((*FIT, "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization", "default"),
    "share in percent": ((*FIT, "--gpu-memory-utilization", "90"), "at most 1, got 90", "0.9"),
    "confidence in percent": ((*RECOMMEND, "--confidence", "80"), "from 0.05 to 0.99, got 80", "is --confidence 0.8"),
    "headroom with its sign": ((*RECOMMEND, "--headroom", "20%"), "must be a number", "20 % is --headroom 0.2"),
    "seconds for ms": ((*RECOMMEND, "--ttft", "2.5s"), "--ttft must be a number of ms, got '2.5s'", "is --ttft 2500"),
    "context in words": ((*FIT, "--max-model-len", "long"), "must be an integer, at least 1, got 'long'", "leave"),
    "short option that is searched": ((*RECOMMEND, "-tp", "2"), "No such option: -tp", "planner predict and planner"),
    "option that is mistyped": ((*FIT, "--tensor-paralel-size", "2"), "(Possible options: --tensor-parallel-size)", ""),
    "option of memory alone": ((*LATENCY, "--used-gib", "3"), "No such option: --used-gib", "planner fit takes"),
    "option of others": (("compare", "--use-case", "chat"), "No such option: --use-case", "--workload NAME is its"),
    "option of many": (("deploy", "plans", "--explain"), "No such option: --explain", "and others take --explain"),
    "option of another": ((*FIT, "--stock", "h100=1"), "No such option: --stock", "planner fleet takes --stock"),
    "option of other programs": ((*FIT, "--json"), "No such option: --json", "use --format json"),
    "check of other programs": (("check", "--json", "--", "vllm", "serve", "m"), "option: --json", "use --format json"),
    "mistyped for check": (("check", "--num-promts", "9", "vllm", "serve", "m"), "--num-promts", "use --num-prompts"),
    "rate by another name": ((*RECOMMEND, "--rps", "1"), "No such option: --rps", "use --request-rate"),
    "rate of others": ((*FIT, "--rps", "1"), "No such option: --rps", "and others take --request-rate"),
    "link to a model": (("fit", "https://hf.co/Qwen/Qwen3-8B", "--gpu", "h100"), "is a link", "give Qwen/Qwen3-8B"),
    "form of another": (("fit", "qwen3-8b-instruct", "--gpu", "h100"), "any of 2 models", "one of: Qwen/Qwen3-8B"),
    "none of a GPU": ((*RECOMMEND, "--have", "h100=0"), "--have 'h100=0' is not", "leave it out of --gpu"),
    "option like none": ((*RECOMMEND, "--num-gpus", "2"), "No such option: --num-gpus", "planner recommend --help"),
    "no number": ((*FIT, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization", "default"),
    "unknown dtype": ((*FIT, "--dtype", "int4"), "--dtype int4", "bfloat16"),
    "unknown KV dtype": ((*FIT, "--kv-cache-dtype", "fp2"), "--kv-cache-dtype fp2", ""),
    "unknown method": ((*FIT, "--quantization", "magic"), "--quantization magic", ""),
    "unknown precision": ((*FIT, "--weight-dtype", "fp3"), "fp3", ""),
    "unknown version": ((*FIT, "--engine-version", "newest"), "--engine-version 'newest'", "0.11.0"),
    "version with more digits than a number": ((*FIT, "--engine-version", f"0.{DIGITS}"), "--engine-version", "0.11.0"),
    "requests of classes beyond any float": (
        ("predict", "serve", LLAMA_7B, "--gpu", "h100", "--class", "a=4:512:128", "--class", "b=1:9:9", "--num-prompts",
         "9" * 400),
        "--num-prompts must be at most 1,000,000", "fewer",
    ),
    "GPUs with more digits than a number": (
        ("fleet", LLAMA_7B, "--gpu", "h100", "--request-rate", "1", "--stock", f"h100={DIGITS}"), "--stock", "h100=16",
    ),
    "experts of a dense model": ((*FIT, "--enable-expert-parallel"), "--enable-expert-parallel", "leave it out"),
    "batch without tokens": (
        (*FIT, "--max-num-seqs", "4096", "--max-num-batched-tokens", "64"), "--max-num-batched-tokens 64", "at least",
    ),
    "unknown flag": ((*FIT, "--max-model-length", "5"), "--max-model-length", "planner fit --help"),
    "unknown format": ((*FIT, "--format", "xml"), "--format", "planner fit --help"),
    "unknown command": (("fits", LLAMA_7B), "'fits'", "planner --help"),
    "negative prompt": ((*SERVE, "--random-input-len", "-5"), "--random-input-len", "positive"),
    "no output": ((*LATENCY, "--output-len", "0"), "--output-len", "positive"),
    "no prompts": ((*SERVE[:-1], "0"), "--num-prompts must be at least 1, got 0", "leave"),
    "more prompts than a replay holds": ((*SERVE[:-1], "1000000000"), "--num-prompts", "send fewer"),
    "prompt beyond the context": ((*SERVE, "--random-input-len", "4000"), "--random-input-len 4000", "--max-model-len"),
    "prompt beyond the context asked for": (
        (*LATENCY, "--input-len", "100", "--max-model-len", "128"), "--input-len 100", "--max-model-len",
    ),
    "rate of nothing": ((*SERVE, "--request-rate", "0"), "--request-rate", "inf"),
    "rate of no number": ((*SERVE, "--request-rate", "nan"), "--request-rate", "inf"),
    "a century of arrivals": ((*SERVE, "--request-rate", "1e-9"), "--request-rate 1e-09", "raise the rate"),
    "negative burstiness": ((*SERVE, "--burstiness", "-1"), "--burstiness", "Poisson"),
    "lengths that vary by all": ((*SERVE, "--random-range-ratio", "1"), "--random-range-ratio", "equal length"),
    "percentile of words": ((*SERVE, "--metric-percentiles", "p99"), "--metric-percentiles 'p99'", "50,90,99"),
    "percentile above 100": ((*SERVE, "--metric-percentiles", "101"), "--metric-percentiles", "50,90,99"),
    "target of words": ((*SERVE, "--goodput", "ttft"), "--goodput 'ttft'", "ttft:500"),
    "target of another metric": ((*SERVE, "--goodput", "speed:5"), "'speed'", "ttft, tpot or e2el"),
    "no concurrency": ((*SERVE, "--max-concurrency", "0"), "--max-concurrency", ""),
    "recommend without a prompt": ((*RECOMMEND, "--random-input-len", "0"), "--random-input-len", "positive"),
    "recommend beyond the context": ((*RECOMMEND, "--random-input-len", "4096"), "--random-input-len 4096", "context"),
    "recommend for no GPUs": ((*RECOMMEND, "--gpus", "0"), "--gpus must be", "leave --gpus out"),
    "a plan that is not there": ((*RECOMMEND, "--pick", "100000"), "--pick 100000", "smaller"),
    "unknown goal": ((*RECOMMEND, "--goal", "fast"), "--goal", "--help"),
    "runs that are not there": (("evaluate", "runs.csv"), "runs.csv", ""),
}  # fmt: skip


@pytest.mark.parametrize(("words", "cause", "hint"), WRONG.values(), ids=WRONG.keys())
def test_bad_input_is_named_and_answered_with_a_hint(words: tuple[str, ...], cause: str, hint: str) -> None:
    outcome = run(*words)
    assert outcome.status == 2
    told, offered = error_of(outcome)
    assert cause in told
    assert hint in offered


@pytest.mark.parametrize("words", [FIT, SERVE, RECOMMEND, ("fleet", LLAMA_7B), ("compare",), ("deploy", "plan")])
@pytest.mark.parametrize("flag", ["--banana", "--quiet", "--verbose", "--formt"])
def test_only_flags_of_like_names_are_offered_for_an_unknown_one(words: tuple[str, ...], flag: str) -> None:
    told, _ = error_of(run(*words, flag, "json"))
    near = flag == "--formt" and words[0] != "deploy"  # which prints no answer in a format
    assert told == f"No such option: {flag}" + (" (Possible options: --format)" if near else "")


# --- config.json -----------------------------------------------------------------------------------------------------

LLAMA_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}  # fmt: skip

BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not valid JSON"),
    "truncated": (json.dumps(LLAMA_CONFIG).encode()[:100], "not valid JSON"),
    "no JSON": (b"<html>please log in</html>", "not valid JSON"),
    "no UTF-8": (b'{"a": "\xff"}', "not valid JSON"),
    "a list": (b"[]", "JSON object"),
    "nested without end": (b"[" * 100_000, "not valid JSON"),
    "no architecture": (b"{}", "architectures"),
    "unknown architecture": (b'{"architectures": ["NopeForCausalLM"]}', "NopeForCausalLM"),
    "a key missing": (json.dumps({**LLAMA_CONFIG, "hidden_size": None}).encode(), "'hidden_size'"),
    "a word for a number": (json.dumps({**LLAMA_CONFIG, "num_hidden_layers": "many"}).encode(), "num_hidden_layers"),
    "a negative size": (json.dumps({**LLAMA_CONFIG, "vocab_size": -1}).encode(), "vocab_size"),
    "heads that do not divide": (json.dumps({**LLAMA_CONFIG, "num_key_value_heads": 5}).encode(), "KV heads"),
    "unknown quantisation": (
        json.dumps({**LLAMA_CONFIG, "quantization_config": {"quant_method": "magic"}}).encode(), "magic",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        ["--max-model-len", f"{DIGITS}k"],
        ["--max-num-seqs", DIGITS],
        ["--num-scheduler-steps", DIGITS],
        ["--speculative-model", "a/b", "--num-speculative-tokens", DIGITS],
        ["-tp", "$((N + 1))", ";", "shift", DIGITS],
    ],
)
@pytest.mark.parametrize("version", ["0.6.4", "0.27.1"])
def test_a_line_with_more_digits_than_a_number_is_judged(line: list[str], version: str) -> None:
    script = " ".join(["vllm serve", LLAMA_7B, *line])
    outcome = run("check", "--gpu", "h100", "--engine-version", version, "--", script)
    assert outcome.status in (0, 1), outcome.err


def test_an_image_with_more_digits_than_a_number_says_no_version() -> None:
    outcome = run("check", "--gpu", "h100", "--", f"docker run vllm/vllm-openai:v0.{DIGITS}.0 {LLAMA_7B}")
    assert outcome.status == 0 and "vLLM 0.32.0" in outcome.out


@pytest.mark.parametrize("flag", ["--random-input-len", "--num-prompts", "--max-concurrency", "--seed"])
def test_a_client_with_an_endless_number_is_refused(flag: str) -> None:
    outcome = run("check", "--gpu", "h100", "--", f"vllm serve {LLAMA_7B} & vllm bench serve {flag} {'9' * 400}")
    assert outcome.status == 2 and "bug" not in outcome.err, outcome.err


@pytest.mark.parametrize(("content", "cause"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_config_is_refused_by_name(content: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    for words in (("fit", ".", "--gpu", "h100"), ("models", "show", "config.json")):
        outcome = run(*words)
        assert outcome.status == 2
        assert cause in error_of(outcome)[0]


def test_a_sound_config_is_read() -> None:
    """The same file, unbroken: the errors above are about what was broken."""
    Path("config.json").write_text(json.dumps(LLAMA_CONFIG))
    assert run("fit", ".", "--gpu", "h100").status == 0


def test_folders_without_a_model_say_what_is_missing(tmp_path: Path) -> None:
    for name in ("empty", "gguf", "adapter"):
        (tmp_path / name).mkdir()
    (tmp_path / "gguf/model.gguf").touch()
    (tmp_path / "adapter/adapter_config.json").touch()
    for folder, cause in (("empty", "no config.json"), ("gguf", "GGUF"), ("adapter", "adapter")):
        assert cause in error_of(run("fit", folder, "--gpu", "h100"))[0]


def test_a_broken_profile_is_refused_by_field(tmp_path: Path) -> None:
    sound = (data_dir("hardware") / "mi300x.toml").read_text()
    broken = re.sub(r"(?m)^engine_visible = .*$", "engine_visible = 24", sound)
    for content, cause in ((broken, "memory.engine_visible"), ("[", "mine.toml"), ("name = 1", "mine.toml")):
        (tmp_path / "mine.toml").write_text(content)
        for words in (("hardware", "show", "mine.toml"), ("fit", LLAMA_7B, "--gpu", "mine.toml")):
            outcome = run(*words)
            assert outcome.status == 2
            assert cause in error_of(outcome)[0]


# --- the hub ---------------------------------------------------------------------------------------------------------


def test_what_the_hub_refuses_ends_with_3(server: HubServer) -> None:
    server.gate("meta/gated")
    server.add("someone/gguf", {"model.gguf": b""})
    for repo, cause in (("meta/gated", "gated"), ("nobody/nothing", "no repository"), ("someone/gguf", "config.json")):
        outcome = run("fit", repo, "--gpu", "h100")
        assert outcome.status == 3
        told, offered = error_of(outcome)
        assert cause in told and repo in told
        assert offered


def test_no_network_ends_with_3(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nobody listens
    outcome = run("fit", "someone/something", "--gpu", "h100")
    assert outcome.status == 3
    assert "could not be reached" in error_of(outcome)[0]


def test_an_answer_of_the_hub_that_is_no_json_ends_with_3(server: HubServer) -> None:
    server.add("someone/broken", {"config.json": b'{"architectures": ["Llama'})
    outcome = run("fit", "someone/broken", "--gpu", "h100")
    assert outcome.status == 3
    assert "config.json is not a JSON object" in error_of(outcome)[0]


# --- output folders --------------------------------------------------------------------------------------------------


def test_a_folder_that_exists_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan/notes.txt").write_text("mine")
    outcome = run(*RECOMMEND, "-o", "plan")
    assert outcome.status == 2
    told, offered = error_of(outcome)
    assert "-o plan already exists" in told
    assert "--force" in offered
    assert [file.name for file in (tmp_path / "plan").iterdir()] == ["notes.txt"]
    assert run(*RECOMMEND, "-o", "plan", "--force").status == 0
    assert (tmp_path / "plan/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ("recommend", "no/such-model", "--gpu", "h100"),
        ("fleet", "no/such-model", "--disaggregated", "--request-rate", "1"),
        ("workflow", "latency", "no/such-model"),
        ("deploy", "no-plan", "--target", "compose"),
    ],
    ids=lambda words: words[0],
)
def test_a_folder_that_exists_is_refused_before_anything_is_planned(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    assert "-o taken already exists" in refused(*words, "-o", "taken")
    assert "already exists" not in run(*words, "-o", "taken", "--force").err


@pytest.mark.parametrize("several", [(), ("--gpu", "mi300x")], ids=["one GPU", "two GPUs"])
def test_a_folder_that_cannot_be_written_leaves_nothing_behind(several: tuple[str, ...], tmp_path: Path) -> None:
    """A file stands where a folder would have to be: that holds for the administrator too."""
    (tmp_path / "file").write_text("mine")
    for target in ("file/plan", "file"):
        outcome = run(*RECOMMEND, *several, "-o", target)
        assert outcome.status == 2
        assert "file" in error_of(outcome)[0]
    assert run(*RECOMMEND, *several, "-o", "file", "--force").status == 2
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_names_too_long_for_a_file_system_are_refused() -> None:
    for words in (("fit", "x" * 5000, "--gpu", "h100"), ("hardware", "show", "x" * 5000 + ".toml")):
        outcome = run(*words)
        assert outcome.status == 2
        error_of(outcome)
    assert run(*RECOMMEND, "-o", "x" * 5000).status == 2


# --- anything at all -------------------------------------------------------------------------------------------------

INTEGERS = st.one_of(st.integers(-2, 40), st.integers(), st.sampled_from([0, 2**31, 2**63, 10**30]))
NUMBERS = st.one_of(st.floats(), st.floats(0, 2), INTEGERS)
WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "auto", "fp8", "none", "NaN", "../..", "$(id)", "a/b; rm -rf ~", "\x00", "\udcff", "--", "-1"]
    ),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "--tensor-parallel-size": INTEGERS, "--pipeline-parallel-size": INTEGERS, "--data-parallel-size": INTEGERS,
    "--max-model-len": INTEGERS, "--max-num-seqs": INTEGERS, "--max-num-batched-tokens": INTEGERS,
    "--block-size": INTEGERS, "--gpu-memory-utilization": NUMBERS, "--dtype": WORDS, "--kv-cache-dtype": WORDS,
    "--quantization": WORDS, "--weight-dtype": WORDS, "--engine-version": WORDS, "--revision": WORDS,
}  # fmt: skip
LOADS: dict[str, st.SearchStrategy[Any]] = {
    "--random-input-len": INTEGERS, "--random-output-len": INTEGERS, "--max-concurrency": INTEGERS,
    "--request-rate": NUMBERS, "--burstiness": NUMBERS, "--random-range-ratio": NUMBERS, "--seed": INTEGERS,
    "--metric-percentiles": WORDS, "--goodput": WORDS, "--num-prompts": st.integers(-2, 40),
}  # fmt: skip
PLANS: dict[str, st.SearchStrategy[Any]] = {
    "--random-input-len": INTEGERS, "--random-output-len": INTEGERS, "--gpus": INTEGERS, "--pick": INTEGERS,
    "--max-concurrency": INTEGERS, "--max-model-len": INTEGERS, "--max-num-seqs": INTEGERS,
    "--max-num-batched-tokens": INTEGERS, "--gpu-memory-utilization": NUMBERS, "--kv-cache-dtype": WORDS,
    "--num-prompts": st.integers(-2, 40), "--engine-version": WORDS, "--goal": WORDS,
    "--ttft": NUMBERS, "--tpot": NUMBERS, "--e2el": NUMBERS, "--percentile": WORDS, "--request-rate": NUMBERS,
    "--random-range-ratio": NUMBERS, "--burstiness": NUMBERS, "--trace": WORDS, "--workload": WORDS,
}  # fmt: skip


def flags(values: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[list[str]]:
    """Up to three flags with values that may or may not make sense."""
    one = st.sampled_from(sorted(values)).flatmap(lambda name: st.tuples(st.just(name), values[name]))
    return st.lists(one, max_size=3).map(lambda chosen: [str(word) for pair in chosen for word in pair])


def check(*words: str) -> None:
    """An answer, or an error in two lines; never a bug."""
    outcome = run(*words)
    assert outcome.status in {0, 1, 2, 3}, outcome.err
    assert "Traceback" not in outcome.out + outcome.err
    if outcome.status >= 2:
        error_of(outcome)
    else:
        assert outcome.out
        assert "error:" not in outcome.err


anything = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@anything
@given(words=flags(VALUES))
@example(words=["--max-model-len", "1"])
def test_fit_survives_any_flag(words: list[str]) -> None:
    check("fit", LLAMA_7B, "--gpu", "h100", "--format", "json", *words)


@settings(anything, max_examples=60)
@given(words=flags(VALUES | LOADS))
@example(words=["--request-rate", "1e-5"])
@example(words=["--seed", "4294967296"])
def test_predict_survives_any_flag(words: list[str]) -> None:
    check(*SERVE, *words)


@settings(anything, max_examples=25)
@given(words=flags(PLANS))
def test_recommend_survives_any_flag(words: list[str]) -> None:
    check("recommend", LLAMA_7B, "--gpu", "mi300x-cpx", "--goal", "min-latency", *words)


@settings(anything, max_examples=60)
@given(name=WORDS, group=st.sampled_from(["models", "hardware"]))
def test_show_survives_any_name(name: str, group: str) -> None:
    check(group, "show", name)


@settings(anything, max_examples=60)
@given(
    values=st.dictionaries(
        st.sampled_from(sorted(LLAMA_CONFIG)),
        st.one_of(st.none(), INTEGERS, NUMBERS, WORDS, st.lists(WORDS, max_size=2), st.dictionaries(WORDS, INTEGERS)),
    )
)
def test_fit_survives_any_config(values: dict[str, Any]) -> None:
    Path("config.json").write_text(json.dumps({**LLAMA_CONFIG, **values}))
    check("fit", ".", "--gpu", "h100")


@pytest.mark.parametrize("rate", ["0", "0.0", "-1", "-inf", "nan"])
def test_a_trace_is_not_replayed_at_a_rate_that_is_none(rate: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,40,4\n2023-11-16 18:17:04,9,2\n")
    cause, hint = error_of(
        run("predict", "serve", LLAMA_7B, "--gpu", "h100", "--trace", str(trace), "--request-rate", rate)
    )
    assert cause.startswith(f"--request-rate must be {'a number' if rate == 'nan' else 'positive'}")
    assert hint == "use inf to send everything at once"
