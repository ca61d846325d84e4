"""Several classes of requests on one server: what is sent, what each gets, and what is refused."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import run

from planner import Serving
from planner.errors import InputError
from planner.planning import read_plan
from planner.workload import Slo
from planner.workload.load import MIXED_PROMPTS, Load, benchmarks, check_classes, mixed

pytestmark = pytest.mark.usefixtures("best_plans", "small_searches")

CHAT, BATCH = "chat=3:1024:256,ttft=500,tpot=40", "batch=1:4096:512,e2el=60000,priority=5"
COMMAND = ("predict", "serve", "Qwen/Qwen3-8B", "--gpu", "h100", "--format", "json")


def predicted(*words: str) -> dict:
    status, out, err = run(*COMMAND, *words)
    assert status == 0, err
    return json.loads(out)


def test_a_class_as_it_is_typed() -> None:
    one = Load.parse(BATCH)
    assert (one.name, one.request_rate, one.input_len, one.output_len) == ("batch", 1, 4096, 512)
    assert (one.limits_ms, one.priority) == ({"e2el": 60000}, 5)
    assert Load.parse("code=2:code").limits_ms == {}


@pytest.mark.parametrize("text", [BATCH, "chat=6:chat", "a=0.5:rag,ttft=3000", "b=1:1024:256"])
def test_a_class_is_written_as_it_was_typed(text: str) -> None:
    # chat is 1024:256 with lengths that vary by half: its numbers alone would be another load
    assert Load.parse(text).word == text
    assert Load.parse(Load.parse(text).word) == Load.parse(text)


def test_classes_are_sent_as_their_own_benchmarks_would() -> None:
    # vllm bench serve draws the arrivals of a class from its own seed; 300 of 400 requests are of the first class
    sent = mixed([Load.of_class("a", 3, 100, 10), Load.of_class("b", 1, 200, 20, priority=2)], 400, seed=7)
    assert (np.diff(sent.arrival_s) >= 0).all()
    assert np.bincount(sent.group).tolist() == [300, 100]
    for number, (name, priority, input_len, rate) in enumerate([("a", 0, 100, 3), ("b", 2, 200, 1)]):
        of = sent.chosen(sent.group == number)
        assert sent.groups[number] == name
        assert set(of.priority) == {priority}
        assert set(of.input_len) == {input_len}
        count = len(of.arrival_s)
        gaps_s = np.random.RandomState(7 + number).gamma(1.0, 1 / rate, size=count)  # as in ``get_request``
        expected_s = gaps_s.cumsum()
        np.testing.assert_allclose(of.arrival_s, expected_s * (count / rate / expected_s[-1]))


def test_two_equal_classes_are_one_of_their_sum() -> None:
    two = predicted("--class", "a=2:1024:128", "--class", "b=2:1024:128", "--num-prompts", "2000")
    one = predicted("--class", "all=4:1024:128", "--num-prompts", "2000")
    single = predicted("--request-rate", "4", "--num-prompts", "2000")
    for key in ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms"):
        assert one[key] == single[key]  # a single class is the load itself
        assert two[key] == pytest.approx(one[key], rel=0.03)  # other draws of the same load
        a, b = (part[key] for part in two["classes"])
        assert a == pytest.approx(b, rel=0.05)
        assert (a + b) / 2 == pytest.approx(two[key])


def test_each_class_has_its_figures_its_goodput_and_their_intervals() -> None:
    found = predicted("--class", CHAT, "--class", BATCH, "--scheduling-policy", "priority")
    chat, batch = found["classes"]
    assert (chat["name"], chat["priority"], chat["targets_ms"]) == ("chat", 0, {"ttft": 500, "tpot": 40})
    assert chat["completed"] + batch["completed"] == found["completed"]
    assert chat["request_goodput"] + batch["request_goodput"] == pytest.approx(found["request_goodput"])
    for part in (chat, batch, found):
        assert part["request_goodput_lo"] <= part["request_goodput"] <= part["request_goodput_hi"]
        for key in ("p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "request_throughput"):
            assert part[f"{key}_lo"] < part[key] < part[f"{key}_hi"]
    assert chat["request_goodput"] <= chat["request_throughput"]


def test_priority_helps_the_first_class_and_costs_the_others() -> None:
    # an engine of few places, so that requests wait for one
    load = ("--class", "chat=3:512:64", "--class", "batch=3:512:256", "--max-num-seqs", "8")
    fcfs = predicted(*load)["classes"]
    load = ("--class", "chat=3:512:64", "--class", "batch=3:512:256,priority=1", "--max-num-seqs", "8")
    first, last = predicted(*load, "--scheduling-policy", "priority")["classes"]
    assert first["mean_ttft_ms"] < 0.8 * fcfs[0]["mean_ttft_ms"]
    assert last["mean_ttft_ms"] > fcfs[1]["mean_ttft_ms"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("chat=:1024:256", "has no rate"),
        ("chat=rag", "has no rate"),
        ("chat=1024:256", "is not NAME=RATE"),
        ("chat=1:-5:256", "must be positive"),
        ("chat=1:5:256,ttft=-1", "ttft=-1 is not a target in ms"),
        ("chat=1:5:256,tpot=1e300", "tpot=1e.300 is not a target in ms"),
        ("chat=1:5:256,priority=10000000", "a priority is from -1,000,000 to 1,000,000"),
        ("chat=1:5:256,ttft=fast", "targets are in ms"),
        ("chat=1:5:256,itl=3", "gaps between tokens are those of all requests"),
        ("chat=1:5:256,tpt=3", "no target of a class"),
        ("chat=1:5:256,ttft=3,ttft=4", "gives a target twice"),
        ("chat=1:5:256,priority=high", "a priority is a whole number"),
    ],
)
def test_what_is_no_class(words: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        Load.parse(words)
    assert caught.value.hint


def test_what_does_not_go_together() -> None:
    with pytest.raises(InputError, match="chat is given twice"):
        check_classes([Load.parse(CHAT), Load.parse(CHAT)], None)
    with pytest.raises(InputError, match="batch has a priority") as caught:
        check_classes([Load.parse(CHAT), Load.parse(BATCH)], None)
    assert caught.value.hint == "add --scheduling-policy priority"
    check_classes([Load.parse(CHAT), Load.parse(BATCH)], "priority")
    status, _, err = run(*COMMAND, "--class", CHAT, "--request-rate", "3")
    assert status == 2
    assert "--class and --request-rate are both given" in err
    status, _, err = run(*COMMAND, "--class", CHAT, "--scheduling-policy", "fair")
    assert status == 2
    assert "use fcfs or priority" in err


FIXED = ("--max-num-batched-tokens", "4096", "--kv-cache-dtype", "auto")


def fleet(*words: str) -> dict:
    command = ("fleet", "Qwen/Qwen3-8B", "--gpu", "h100", "--n-plus", "0", "--headroom", "0", "--format", "json")
    status, out, err = run(*command, *FIXED, *words)
    assert status == 0, err
    return json.loads(out)


def test_equal_classes_with_equal_targets_take_what_one_of_their_sum_takes() -> None:
    limits = "tpot=30,ttft=1000"
    two = fleet("--class", f"a=12:512:128,{limits}", "--class", f"b=12:512:128,{limits}")
    one = fleet("--request-rate", "24", "--random-input-len", "512", "--random-output-len", "128",
                "--ttft", "1000", "--tpot", "30")  # fmt: skip
    assert abs(two["fleets"][0]["gpus"] - one["fleets"][0]["gpus"]) <= 1
    assert [target.get("class") for target in two["targets"]] == ["a", "a", "b", "b"]


def test_a_class_without_targets_of_its_own_has_those_of_all() -> None:
    found = fleet("--class", "a=2:512:128,ttft=900", "--class", "b=2:512:128", "--ttft", "5000", "--tpot", "60")
    held = [(target["class"], target["metric"], target["limit_ms"]) for target in found["targets"]]
    assert held == [("a", "p95_ttft_ms", 900), ("b", "p95_ttft_ms", 5000), ("b", "p95_tpot_ms", 60)]


def test_good_requests_of_a_class_are_a_share_of_its_rate() -> None:
    """The replay goes on until the last answer ends: its requests per second are fewer than arrive."""
    words = ("--class", "a=2:512:128,ttft=900", "--class", "b=2:512:512", "--ttft", "5000", "--tpot", "60")
    status, out, err = run(*RECOMMEND, *words)
    assert status == 0, err
    assert re.findall(r"good requests/s +([\d.]+)", out) == ["2.0", "2.0"]
    assert "note: class a has targets of its own, without --tpot: add tpot=MS to it" in err


def test_a_target_of_one_class_is_read_of_its_own_requests() -> None:
    # the long answers of the second class would never keep the 2 s of the first
    classes = [Load.of_class("a", 4, 256, 16), Load.of_class("b", 1, 256, 1024)]
    served = Serving("Qwen/Qwen3-8B", gpu="h100").predict(Load.classes_of(classes, 200), percentiles=(95,))
    targets = [Slo("e2el", 2000, group="a"), Slo("e2el", 60000, group="b")]
    readings = served.readings(targets, 0.95)  # the upper end of a 90 % interval
    assert [reading.met for reading in readings] == [True, True]
    for reading, own in zip(readings, served.classes, strict=True):
        assert reading.predicted_ms == pytest.approx(own.result["p95_e2el_ms"])
        assert reading.expected_ms == pytest.approx(own.result["p95_e2el_ms_hi"])


def test_a_class_of_which_no_request_is_sent_is_refused() -> None:
    demands = [Load.of_class("chat", 999, 100, 10), Load.of_class("rare", 1, 100, 10)]
    assert np.bincount(mixed(demands, 1000).group).tolist() == [999, 1]
    with pytest.raises(InputError, match="rare sends one request in 1,000, and 999 are sent"):
        mixed(demands, 999)


RECOMMEND = ("recommend", "Qwen/Qwen3-8B", "--gpu", "h100", "--gpus", "1", *FIXED)


def recommended(*words: str) -> dict:
    status, out, err = run(*RECOMMEND, "--format", "json", *words)
    assert status == 0, err
    return json.loads(out)


def test_a_plan_keeps_the_targets_of_each_class_as_a_single_class_of_their_sum_would() -> None:
    limits = "tpot=30,ttft=1000"
    two = recommended("--class", f"a=12:512:128,{limits}", "--class", f"b=12:512:128,{limits}")["plans"][0]
    one = recommended(
        "--request-rate", "24", "--random-input-len", "512", "--random-output-len", "128",
        "--ttft", "1000", "--tpot", "30", "--router", "random",  # as classes are sized
    )["plans"][0]  # fmt: skip
    assert two["service"]["replicas"] == one["service"]["replicas"]
    held = [(target["of_class"], target["metric"], target["limit_ms"]) for target in two["service"]["targets"]]
    assert held == [(name, f"p95_{key}_ms", ms) for name in "ab" for key, ms in (("ttft", 1000), ("tpot", 30))]
    single = recommended("--class", f"all=24:512:128,{limits}")["plans"][0]  # the very same requests
    for key in ("mean_ttft_ms", "p99_tpot_ms", "output_throughput"):
        assert single["predicted"][key] == one["predicted"][key]
        assert two["predicted"][key] == pytest.approx(one["predicted"][key], rel=0.25)  # other draws
    for mine, its in zip(single["service"]["targets"], one["service"]["targets"], strict=True):
        assert (mine["predicted_ms"], mine["expected_ms"]) == (its["predicted_ms"], its["expected_ms"])


def test_a_class_without_requests_to_speak_of_changes_nothing() -> None:
    limits = "ttft=400,tpot=20"
    # a short request in 50 s: the plan is that of the first class alone
    both = recommended("--class", f"a=20:512:128,{limits}", "--class", "b=0.02:16:2")["plans"][0]
    assert [one["workload"]["num_prompts"] for one in both["classes"]] == [1001, 1]  # enough for one of the second
    alone = recommended("--class", f"a=20:512:128,{limits}")["plans"][0]
    assert both["service"]["replicas"] == alone["service"]["replicas"]
    assert both["service"]["goodput"] == pytest.approx(alone["service"]["goodput"], rel=0.02)


def test_gaps_between_tokens_are_a_target_of_all_classes() -> None:
    two = recommended("--class", "a=4:512:128,ttft=900", "--class", "b=1:512:64", "--itl", "80", "--ttft", "5000")
    held = [(one["of_class"], one["metric"], one["limit_ms"]) for one in two["plans"][0]["service"]["targets"]]
    assert held == [("", "p95_itl_ms", 80), ("a", "p95_ttft_ms", 900), ("b", "p95_ttft_ms", 5000)]
    first, second = two["plans"][0]["classes"]
    assert (first["targets_ms"], second["targets_ms"]) == ({"ttft": 900}, {"ttft": 5000})
    good = [one["predicted"]["request_goodput"] for one in (first, second)]
    assert sum(good) == pytest.approx(two["plans"][0]["predicted"]["request_goodput"])


def test_the_last_seed_is_followed_by_the_first() -> None:
    # RandomState takes 0 to 2^32 - 1
    sent = benchmarks([Load.of_class("a", 1, 100, 10), Load.of_class("b", 1, 100, 10)], 20, seed=2**32 - 1)
    assert [one.seed for one in sent] == [2**32 - 1, 0]


def test_a_plan_of_classes_is_read_again_and_checked(tmp_path: Path) -> None:
    words = ("--class", CHAT, "--class", BATCH, "--scheduling-policy", "priority", "--seed", "5")
    status, _, err = run(*RECOMMEND, *words, "-o", str(tmp_path / "plan"))
    assert status == 0, err
    file = read_plan(tmp_path / "plan")
    plan = file.plan
    assert "--class chat=3:1024:256,ttft=500,tpot=40 --class batch=1:4096:512,e2el=60000,priority=5" in file.command
    assert [one.workload.seed for one in plan.classes] == [5, 6]
    assert plan.service is not None
    servers = plan.service.replicas
    assert [one.workload.request_rate for one in plan.classes] == [3 / servers, 1 / servers]
    assert [one.bench_argv[one.bench_argv.index("--num-prompts") + 1] for one in plan.classes] == [
        str(one.workload.num_prompts) for one in plan.classes
    ]
    assert "--extra-body" not in plan.classes[0].bench_argv
    later = plan.classes[1].bench_argv
    assert json.loads(later[later.index("--extra-body") + 1]) == {"priority": 5}

    # what the clients send of it gives what is predicted
    status, out, err = run("check", str(tmp_path / "plan"), "--format", "json")
    assert status == 0, err
    for key in ("mean_ttft_ms", "p99_tpot_ms", "output_throughput"):
        assert json.loads(out)["delivers"][key] == pytest.approx(plan.predicted[key], rel=1e-6)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--class", CHAT, "--class", CHAT), "chat is given twice"),
        (("--class", CHAT, "--class", BATCH), "batch has a priority"),
        (("--class", "chat=rag"), "has no rate"),
        (("--class", CHAT, "--request-rate", "3"), "--class and --request-rate are both given"),
        (("--class", CHAT, "--random-input-len", "3"), "--class and --random-input-len are both given"),
        (("--class", CHAT, "--random-prefix-len", "3"), "--class and --random-prefix-len are both given"),
        (("--trace", "t.csv", "--random-prefix-len", "3"), "--trace and --random-prefix-len are both given"),
        (
            ("--workload", "multi-turn-chat", "--request-rate", "1", "--random-prefix-len", "3"),
            "--workload and --random-prefix-len are both given",
        ),
        (("--class", CHAT, "--max-concurrency", "3"), "--class and --max-concurrency are both given"),
        (("--class", CHAT, "--trace", "t.csv"), "--class and --trace are both given"),
        (("--class", "a=1:16:1,tpot=30"), "at least two tokens"),
        (("--class", "a=1:16:900000,ttft=30"), "more than the"),
        (("--class", "a=1e9:16:9,ttft=30"), "--class a must be a positive number"),
        (("--class", "a=100:16:9", "--class", "b=1:16:9", "--num-prompts", "40"), "b sends one request in 101"),
    ],
)
def test_what_recommend_does_not_take(words: tuple[str, ...], said: str) -> None:
    status, _, err = run(*RECOMMEND, *words)
    assert status == 2
    assert said in err and "hint:" in err


def test_the_command_that_a_fleet_of_one_pool_names_plans_its_classes() -> None:
    command = ("fleet", "Qwen/Qwen3-8B", "--gpu", "h100", "--class", "a=1:512:64,ttft=900", "--class", "b=1:512:64")
    status, out, err = run(*command, "--ttft", "5000", "--tpot", "60")
    assert status == 0, err
    line = " ".join(out[out.index("$ planner") + 2 :].replace("\\\n", "").split())
    assert line.startswith(
        "planner recommend Qwen/Qwen3-8B --gpu h100-sxm --class a=1:512:64,ttft=900 --class b=1:512:64 --ttft 5000 "
        "--tpot 60 -o plans"
    )


def test_a_load_may_take_more_servers_than_requests_are_drawn() -> None:
    # thousands of servers, for all of which 4,000 requests stand
    words = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--gpus", "1", "--format", "json",
             *FIXED)  # fmt: skip
    long, short = "long=30000:8192:512,ttft=4000,tpot=40", "short=30000:4096:512,ttft=4000,tpot=40"
    status, out, err = run(*words, "--class", long, "--class", short)
    assert status == 0, err
    assert json.loads(out)["plans"][0]["service"]["replicas"] > MIXED_PROMPTS


def test_a_server_has_no_room_for_what_fewer_servers_would_each_have_to_carry() -> None:
    # the load of each is drawn anew, and a draw has kept the targets that another has broken
    words = ("recommend", "Qwen/Qwen3-8B", "--gpu", "l40s", "--gpus", "1", "--max-num-batched-tokens", "2048")
    short, long = "short=8:512:128,ttft=300", "long=0.5:8000:500,tpot=50"
    status, out, err = run(*words, "--format", "json", "--class", short, "--class", long)
    assert status == 0, err
    service = json.loads(out)["plans"][0]["service"]
    assert service["largest_load"] * (service["replicas"] - 1) < service["request_rate"] == 8.5
    assert service["largest_load"] * service["replicas"] >= 8.5
