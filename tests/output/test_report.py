"""``planner report``: all of the plans is on the page, nothing comes from elsewhere, nothing breaks out of it."""

import json
import re
import resource
import shlex
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from command_line import error_of, run
from hypothesis import given, settings
from hypothesis import strategies as st
from script_plans import GOLDEN

from planner.evidence.folder import read_plan_folders
from planner.evidence.validation import validate
from planner.output.report import _setting_words, command_text, page, size_of
from planner.planning.plan import PlanFile, PlannedWorkload
from planner.planning.sweep import sweep_loads
from planner.workload.load import Load

pytestmark = pytest.mark.usefixtures("small_searches")

VOID = {"meta", "link", "br", "hr", "img", "input"}
MEMORY = ("--format", "svg", "--chart", "memory")
FIGURES = ("output_throughput_per_gpu", "output_throughput_per_user", "mean_ttft_ms", "mean_tpot_ms")


class Page(HTMLParser):
    """Elements with their attributes, ids, and text; fails where a tag is left open or closed twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders ``one`` and ``two``: plans for one GPU and for two. Nobody may write into them."""
    folder = tmp_path_factory.mktemp("made")
    small = ("meta-llama/Llama-2-7b-hf", "--input-len", "64", "--output-len", "16", "--max-concurrency", "8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        assert run("recommend", *small, "--gpu", "h100", "-o", str(folder / "one")).status == 0
        assert run("recommend", *small, "--gpu", "h100", "--gpu", "mi300x", "-o", str(folder / "two")).status == 0
    yield folder


@pytest.fixture(scope="module")
def pages(made: Path) -> dict[str, str]:
    """The page of each, as the command writes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        for name in ("one", "two"):
            assert run("report", str(made / name), "-o", str(made / f"{name}.html")).err.startswith("wrote ")
    return {name: (made / f"{name}.html").read_text() for name in ("one", "two")}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan written by hand, with hardly a figure in it."""
    folder = tmp_path_factory.mktemp("by_hand")
    (folder / "plan.json").write_text(GOLDEN["mi355x"].file.to_json())
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test reads the words alone: drawing takes most of the time."""
    monkeypatch.setattr("planner.output.charts.svg", lambda *_, **__: "")


@pytest.fixture
def one(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "one", tmp_path / "one"))


@pytest.fixture
def two(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "two", tmp_path / "two"))


def plan_of(folder: Path) -> PlanFile:
    return PlanFile.from_json((folder / "plan.json").read_text())


def measure(folder: Path, *, times: float = 1.25) -> dict[str, object]:
    """A result of this very plan, slower than predicted by ``times``."""
    file = plan_of(folder)
    result = {k: v for k, v in file.plan.predicted.items() if not k.endswith(("_lo", "_hi"))}
    result |= {k: v * times for k, v in result.items() if k.endswith("_ms")}
    result |= {k: v / times for k, v in result.items() if k.endswith("throughput")}
    (folder / "results").mkdir()
    (folder / f"results/serve-{file.plan.digest}.json").write_text(json.dumps(result))
    return result


# --- the page ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_page_stands_alone(pages: dict[str, str], name: str) -> None:
    text = pages[name]
    found = Page(text)
    names = [tag for tag, _ in found.elements]
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    assert found.attributes("src") == []
    assert all(link.startswith("#") for link in found.attributes("href"))
    assert not re.search(r"@import|url\((?!#)|expression\(", text)
    assert not [attribute for _, attributes in found.elements for attribute in attributes if attribute.startswith("on")]
    ids = found.attributes("id")
    assert len(ids) == len(set(ids))
    assert {link.removeprefix("#") for link in found.attributes("href")} <= set(ids)


def test_a_page_can_be_used_without_eyes_mouse_or_light(pages: dict[str, str]) -> None:
    text = pages["two"]
    found = Page(text)
    first_link = next(attributes["href"] for tag, attributes in found.elements if tag == "a")
    assert first_link == "#content" and ("main", {"id": "content"}) in found.elements
    assert ("html", {"lang": "en"}) in found.elements
    assert any(a.get("name") == "viewport" and "width=device-width" in a["content"] for _, a in found.elements)
    assert "prefers-color-scheme: dark" in text and ":focus-visible" in text
    ids = set(found.attributes("id"))
    drawings = [a for tag, a in found.elements if tag == "svg"]
    assert drawings and all(set(a["aria-labelledby"].split()) <= ids for a in drawings)
    assert all(a.get("tabindex") == "0" and a.get("aria-label") for t, a in found.elements if t == "pre")
    scrolled = [a for _, a in found.elements if a.get("class") == "scroll"]
    assert scrolled and all(a.get("tabindex") == "0" and a.get("aria-label") for a in scrolled)
    levels = [int(tag[1]) for tag, _ in found.elements if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    figures = [tag for tag, _ in found.elements].count("figure")
    assert text.count("As a table") == figures == 2 + 2 * 2  # memory, Pareto; latency, operators of each


def test_a_page_begins_with_the_verdict(made: Path, pages: dict[str, str]) -> None:
    plan, text = plan_of(made / "one").plan, Page(pages["one"]).text
    verdict = f"Serve {plan.model} on {plan.num_gpus} x H100, "
    assert verdict in text[: text.index("Figures are predictions")]


def test_every_figure_of_every_plan_is_there(made: Path, pages: dict[str, str]) -> None:
    folder = made / "two"
    text = Page(pages["two"]).text
    for gpu in ("h100-sxm", "mi300x"):
        file = plan_of(folder / gpu)
        plan = file.plan
        for key in FIGURES:
            for name in (key, f"{key}_lo", f"{key}_hi"):
                assert spelled(plan.predicted[name]) in text, name
        for value in (plan.model, plan.image, plan.image_source, plan.engine_version, plan.digest, plan.calibration):
            assert " ".join(value.split()) in text
        for value in (*plan.why, *plan.warnings, *plan.serve_argv[5:], file.command):
            assert " ".join(value.split()) in text
        for key in ("weights_bytes", "kv_cache_bytes", "activation_bytes", "cuda_graph_bytes", "non_torch_bytes"):
            assert f"{plan.memory[key] / 2**30:,.2f} GiB" in text
        for script in ("launch.sh", "benchmark.sh", "preflight.sh", "validate.sh"):
            assert " ".join((folder / gpu / script).read_text().split()) in text
    recommendation = json.loads((folder / "recommendation.json").read_text())
    assert recommendation["rejected"] and recommendation["pareto"]
    for row in recommendation["rejected"]:
        assert " ".join(row["reason"].split()) in text
    for row in recommendation["pareto"]:
        assert spelled(row["output_throughput_per_gpu"]) in text


def test_settings_and_sizes_name_what_sets_them_apart(one: Path) -> None:
    drafts = {"method": "mtp", "num_speculative_tokens": 2}
    row = {"tensor_parallel_size": 4, "max_num_seqs": 178, "enable_expert_parallel": True, "speculative_config": drafts}
    assert _setting_words(row) == "TP 4, batch 178, EP, MTP 2"
    plan = plan_of(one).plan.model_copy(
        update={"service": None, "num_gpus": 2, "packages": 2 / 7}
    )  # of a H100 in seven
    assert size_of(plan).startswith("2 partitions: ")


def spelled(value: float) -> str:
    """Three digits that count, thousands separated."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}" if value >= 1 else f"{value:.3g}"


def test_a_slow_measurement_has_the_causes_and_next_steps_of_validate(one: Path, undrawn: None) -> None:
    measure(one, times=4.0)
    assert run("report", str(one)).status == 0
    text, (first, *_) = Page((one / "report.html").read_text()).text, validate(one).findings
    assert f"Likeliest cause: {first.cause}, because {first.evidence}. Next: {first.next_step}." in text
    assert "+300.0% slower" in text


def test_a_measurement_stands_beside_the_prediction(one: Path, undrawn: None) -> None:
    result = measure(one)
    assert run("report", str(one)).status == 0
    text = Page((one / "report.html").read_text()).text
    assert "Nothing was measured yet" not in text
    assert f"median_ttft_ms ms {spelled(plan_of(one).plan.predicted['median_ttft_ms'])}" in text
    assert f"{spelled(float(str(result['median_ttft_ms'])))} +25.0%" in text
    assert "h100-sxm measured" in text
    path = next((one / "results").iterdir())
    for broken in (10**60, 1e308, float("nan"), "25"):
        path.write_text(json.dumps({**result, "median_ttft_ms": broken}))
        assert error_of(run("report", str(one)))[0].startswith("the result is broken: median_ttft_ms is ")


def test_a_measurement_of_another_load_is_left_out_and_said_so(one: Path, undrawn: None) -> None:
    result = measure(one)
    path = next((one / "results").iterdir())
    path.write_text(json.dumps({**result, "max_concurrency": 7}))
    text = Page(page(read_plan_folders(one))).text
    assert "The measurement is left out" in text and "max_concurrency is 7, but the plan sends 8" in text


def test_the_page_says_what_it_does_not_know(one: Path, undrawn: None) -> None:
    (one / "recommendation.json").unlink()
    text = Page(page(read_plan_folders(one))).text
    assert "recommendation.json does not exist: write the folder again with planner recommend -o" in text
    assert "Each point is the planned server at another load" in text
    assert "Rejected settings are unknown." in text


def test_a_server_that_cannot_be_replayed_here_has_a_page_without_curves(one: Path, undrawn: None) -> None:
    file = PlanFile.from_json((one / "plan.json").read_text())
    elsewhere = file.plan.model_copy(update={"gpu": "h1000"})
    (one / "plan.json").write_text(file.model_copy(update={"plan": elsewhere}).to_json())
    (one / "recommendation.json").unlink()
    text = Page(page(read_plan_folders(one))).text
    assert "this server cannot be replayed here: unknown GPU 'h1000'" in text
    assert "Latency against load:" not in text and "Memory of each GPU" in text
    cause, _ = error_of(run("report", str(one), "--format", "svg", "--chart", "latency"))
    assert cause.startswith("--chart latency: unknown GPU 'h1000'")


def test_plans_without_predictions_have_a_page_too(by_hand: Path) -> None:
    Page(page(read_plan_folders(by_hand)))


@given(st.text(min_size=1, max_size=30).filter(lambda text: text.strip()), st.text(max_size=30))
@settings(max_examples=5, deadline=None)
def test_names_cannot_break_out_of_the_page(by_hand: Path, name: str, reason: str) -> None:
    """Whatever stands in a plan is text: the page has the same elements as with a harmless plan."""
    hostile = f"{name}</pre></svg><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    dossier = read_plan_folders(by_hand)
    entry = dossier.entries[0]
    plan = entry.plan.model_copy(
        update={"requested_model": hostile, "model": hostile, "gpu": hostile, "why": (reason, hostile)}
    )
    file = entry.file.model_copy(update={"plan": plan, "command": hostile})
    fields = {"gpu": hostile, "model": hostile, "reason": reason, "tensor_parallel_size": 1}
    told = {"pareto": [], "rejected": [fields], "plans": [{"gpu": hostile}]}
    changed = type(dossier)(
        dossier.directory, (type(entry)(entry.directory, file, {hostile: reason + hostile}),), told, (hostile,)
    )
    found = Page(page(changed))
    assert not {"script", "img"} & {tag for tag, _ in found.elements}
    assert "alert(1)" in found.text
    assert not [attribute for _, attributes in found.elements for attribute in attributes if attribute.startswith("on")]


def test_the_launch_command_is_what_is_launched(made: Path) -> None:
    """Joined as a shell joins lines, it is the plan's command, on 127.0.0.1."""
    plan = plan_of(made / "one").plan
    words = shlex.split(command_text(plan).replace("\\\n", ""))
    settings_ = [f"{name}={value}" for name, value in plan.env.items()]
    assert words == [*settings_, *(word.replace("0.0.0.0", "127.0.0.1") for word in plan.serve_argv)]


# --- what is replayed --------------------------------------------------------------------------------------------


def test_the_replay_at_the_plans_own_load_is_the_plan(made: Path) -> None:
    plan = plan_of(made / "one").plan
    swept = sweep_loads(plan)
    (own,) = [point for point in swept.points if point.planned]
    assert swept.notes == () and own.load == plan.workload.max_concurrency
    for key in (*FIGURES, "p99_ttft_ms", "mean_tpot_ms_lo", "mean_tpot_ms_hi"):
        assert own.figures[key] == pytest.approx(plan.predicted[key], rel=1e-9), key
    busiest = [point.figures["output_throughput"] for point in swept.points if point.load <= own.load]
    assert busiest == sorted(busiest)  # a closed loop never serves less with more in flight, up to the batch


def test_the_replay_of_classes_is_the_plan_and_scales_every_class(tmp_path: Path) -> None:
    """Their mixture is sent, not requests of its mean lengths."""
    classes = ("--class", "chat=6:1024:256,ttft=1000", "--class", "rag=1:8000:100,ttft=5000")
    words = ("recommend", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--max-num-batched-tokens", "8192")
    assert run(*words, *classes, "-o", str(tmp_path / "classes")).status == 0
    plan = plan_of(tmp_path / "classes").plan
    swept = sweep_loads(plan)
    (own,) = [point for point in swept.points if point.planned]
    assert swept.notes == () and own.load == 7
    for key in ("output_throughput", "p99_ttft_ms", "mean_tpot_ms_lo"):
        assert own.figures[key] == pytest.approx(plan.predicted[key], rel=1e-9), key
    for point in swept.points:
        tokens = point.figures["total_input_tokens"], point.figures["total_output_tokens"]
        assert tokens == (own.figures["total_input_tokens"], own.figures["total_output_tokens"])
        assert point.figures["duration"] == pytest.approx(own.figures["duration"] * 7 / point.load, rel=0.1)


def test_what_is_replayed_is_the_planned_load_to_the_last_field(made: Path) -> None:
    sent = {"input_len": 100, "output_len": 20, "num_prompts": 40, "seed": 7, "burstiness": 0.5, "range_ratio": 0.25}
    load = PlannedWorkload(**sent, prefix_len=512)
    plan = plan_of(made / "one").plan.model_copy(update={"workload": load})
    assert plan.workload.sent == Load(**sent, prefix_len=512, request_rate=float("inf"))
    paced = load.model_copy(update={"request_rate": 2.5, "max_concurrency": 8})
    plan = plan.model_copy(update={"workload": paced})
    assert plan.workload.sent == Load(**sent, prefix_len=512, request_rate=2.5, max_concurrency=8)


def test_another_replay_than_the_plans_is_said(one: Path, undrawn: None) -> None:
    data = json.loads((one / "plan.json").read_text())
    data["predicted"]["output_throughput"] *= 1.2
    (one / "plan.json").write_text(json.dumps(data))
    assert "a replay of the plan's own load gives" in Page(page(read_plan_folders(one))).text


def test_recommendation_json_is_what_format_json_prints() -> None:
    words = ("recommend", "meta-llama/Llama-2-7b-hf", "--gpu", "h100", "--max-concurrency", "4", "--output-len", "16")
    printed = run(*words, "-o", "made", "--format", "json")
    assert json.loads(printed.out) == json.loads(Path("made/recommendation.json").read_text())


# --- single charts -----------------------------------------------------------------------------------------------


def test_single_charts_are_files(one: Path) -> None:
    assert run("report", str(one), "--format", "svg", "--chart", "latency").status == 0
    assert (one / "latency.svg").read_text().startswith('<?xml version="1.0" encoding="utf-8"?>\n<svg ')
    assert run("report", str(one), *MEMORY, "-o", "m.svg", "--width", "400").status == 0
    assert 'viewBox="0 0 400 ' in Path("m.svg").read_text()


# --- what a user can get wrong -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("nowhere",), "nowhere/plan.json: no such file"),
        (("two", "--format", "svg"), "--format svg makes one chart"),
        (("two", "--chart", "memory"), "--chart: the page has all charts"),
        (("two", "--width", "500"), "--width is of svg charts"),
        (("two", "--format", "svg", "--chart", "latency"), "--chart latency is of one plan, and two holds 2"),
        (("two", *MEMORY, "-o", "two"), "-o two is a folder"),
        (("two", *MEMORY, "-o", ""), "-o . is a folder"),
        (("two", *MEMORY, "-o", "/dev/null"), "-o /dev/null is not a regular file"),  # as root it would be replaced
        (
            ("two", *MEMORY, "-o", "no/such/folder.html"),
            "-o no/such/folder.html cannot be written: No such file or directory",
        ),
        (("two", *MEMORY, "-o", "/dev/null/page.html"), "-o /dev/null/page.html cannot be written: Not a directory"),
        (("two", "--calibration", "nowhere.toml"), "nowhere.toml: No such file or directory"),
    ],
)
def test_bad_flags_have_a_cause_and_a_hint(two: Path, words: tuple[str, ...], cause: str) -> None:
    outcome = run("report", *words)
    assert outcome.status == 2
    found, hint = error_of(outcome)
    assert found == cause and hint
    assert not list(two.rglob("report.html"))


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("plan.json", "{", "one/plan.json is not a plan of this planner: "),
        ("plan.json", "[1]", "one/plan.json is not a plan of this planner: "),
        ("plan.json", '{"schema_version": 0}', "one/plan.json is not a plan of this planner: its schema_version is 0"),
        ("plan.json", '{"schema_version": 1}', "one/plan.json is not a plan of this planner: "),
        ("recommendation.json", "{", "one/recommendation.json is broken: "),
        ("recommendation.json", "[]", "one/recommendation.json is broken: it is [], not an object"),
        ("recommendation.json", '{"pareto": [1], "rejected": []}', "one/recommendation.json is broken: pareto.0 is 1"),
        (
            "recommendation.json",
            '{"pareto": [{"gpu": "h100-sxm", "output_throughput_per_gpu": "*"}], "rejected": []}',
            "one/recommendation.json is broken: pareto.0.output_throughput_per_gpu is '*'",
        ),
        (
            "recommendation.json",
            '{"pareto": [], "rejected": [], "plans": 5}',
            "one/recommendation.json is broken: plans",
        ),
    ],
)
def test_broken_files_are_named(one: Path, file: str, content: str, cause: str) -> None:
    (one / file).write_text(content)
    outcome = run("report", "one")
    assert outcome.status == 2
    assert error_of(outcome)[0].startswith(cause)


def test_a_write_that_breaks_off_leaves_the_old_page(one: Path) -> None:
    (one / "report.html").write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the system stops it there, as a full disk does
    try:
        outcome = run("report", "one", *MEMORY, "-o", "one/report.html")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error_of(outcome)[0] == "-o one/report.html cannot be written: File too large"
    assert (one / "report.html").read_text() == "old"
    assert [path.name for path in one.iterdir() if path.name.startswith(".")] == []


# --- evaluate --chart --------------------------------------------------------------------------------------------

RUNS = """run_id,bench,gpu,num_gpus,model,weight_dtype,tensor_parallel_size,engine_version,input_len,output_len,\
max_concurrency,num_prompts,arrival,length_distribution,output_throughput,median_tpot_ms
a,serve,h100-sxm,1,meta-llama/Llama-3.1-8B-Instruct,bf16,1,0.10.0,128,16,4,20,closed-loop,fixed,400,7
b,serve,mi300x,1,meta-llama/Llama-3.1-8B-Instruct,bf16,1,0.10.0,128,16,4,20,closed-loop,fixed,500,6
"""


def test_evaluate_draws_predicted_against_measured() -> None:
    Path("runs.csv").write_text(RUNS)
    outcome = run("evaluate", "runs.csv", "--chart", "chart.svg")
    assert outcome.status == 0 and "wrote chart.svg" in outcome.err
    text = Path("chart.svg").read_text()
    for words in ("Predicted against measured", "h100-sxm", "mi300x", "TPOT", "in the interval", "2 runs, 0 refused"):
        assert words in text
    assert run("evaluate", "runs.csv").out == outcome.out


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("chart.pdf", "--chart chart.pdf does not end in .svg"),
        ("no/chart.svg", "--chart no/chart.svg cannot be written: No such file or directory"),
    ],
)
def test_a_chart_that_cannot_be_written_is_refused(name: str, cause: str) -> None:
    Path("runs.csv").write_text(RUNS)
    outcome = run("evaluate", "runs.csv", "--chart", name)
    assert outcome.status == 2 and error_of(outcome)[0] == cause
