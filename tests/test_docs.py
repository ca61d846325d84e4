"""The documentation cannot drift: outputs are what commands print now, and what a page names exists."""

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from command_line import run

from planner.commands.main import COMMANDS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))  # scripts, and no package

import reference  # noqa: E402
import refresh  # noqa: E402

PAGES = [*refresh.pages(), ROOT / "CONTRIBUTING.md"]
MOST_WORDS = 12_000  #: of all pages together, outside of code blocks


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", refresh.pages(), ids=name_of)
def test_outputs_are_those_of_today(page: Path) -> None:
    """Run ``make docs`` when this fails, and look at what changed."""
    text = page.read_text(encoding="utf-8")
    assert refresh.refreshed(text).splitlines() == text.splitlines()


def test_figures_of_accuracy_are_those_of_the_results() -> None:
    results = (ROOT / "benchmarks" / "results" / "accuracy.md").read_text(encoding="utf-8")
    never_seen = results.partition("## A source never seen")[2]
    _, _, error, within, *_ = next(line.split("|") for line in never_seen.splitlines() if "| TPOT, stock |" in line)[1:]
    error, within = f"{float(error.strip(' %')):.0f} %", within.replace("%", " %").strip()
    page = "{0}<!-- source: TPOT, stock --> of 7 %; {0}, {1}<!-- source: TPOT, stock -->\n"
    assert refresh.refreshed(page.format("99 %", "1 %")) == page.format(error, within)
    for section, title in (("load", "## A new load"), ("combination", "## A known GPU and model in a new combination")):
        line = next(line for line in results.partition(title)[2].splitlines() if "| TTFT, closed-loop |" in line)
        page = f"{{}} %<!-- {section}: TTFT, closed-loop -->\n"
        assert refresh.refreshed(page.format(99)) == page.format(round(float(line.split("|")[3].strip(" %"))))


def test_outputs_are_written_below_what_is_typed() -> None:
    page = """
```console
$ planner hardware show h10
stale
$ echo $?
$ planner hardware list \\
    --format csv | head -n 1
$ make coffee
is not ours
```

```toml planner.toml
[hardware.list]
format = "csv"
```

```console
$ planner hardware list | head -n 1
```

    $ planner --version
"""
    head = "id,memory_gib,"
    lines = refresh.refreshed(page).splitlines()
    assert "stale" not in lines
    assert lines[2:6] == [
        "$ planner hardware show h10",
        "error: unknown GPU 'h10'",
        "hint: nearest: h100, h20, a10; see `planner hardware list`, or give the path of a .toml file",
        "$ echo $?",
    ]
    assert lines[6:9] == ["2", "$ planner hardware list \\", "    --format csv | head -n 1"]
    assert lines[9].startswith(head)
    assert lines[10:12] == ["$ make coffee", "is not ours"]
    assert sum(line.startswith(head) for line in lines) == 2  # the second without --format: the file was written
    assert lines[-1] == "    $ planner --version"
    assert not Path("planner.toml").exists()  # it lay in a folder of the page's own


def test_a_page_may_leave_lines_out() -> None:
    page = "```console\n$ planner hardware list --format csv\nstale\nstale\n...\nstale\n```"
    lines = refresh.refreshed(page).splitlines()
    whole = refresh.refreshed("```console\n$ planner hardware list --format csv\n```").splitlines()
    assert lines == [*whole[:4], "...", *whole[-2:]]


@pytest.mark.parametrize(
    ("shown", "fresh"),
    [
        ("5.610 ms", "5.609 ms"),
        ("1,176 (727-1,542)", "1179 (727.4-1540)"),
        ("tok/s   TTFT\n-----  -----\n  1.0", "tok/s  TTFT\n----  -----\n 1.0"),
        ("████████ 7,942", "███████ 7,950"),
        ("plan 2fb167303bca;", "plan 0123456789ab;"),
    ],
)
def test_a_page_is_kept_while_it_says_the_same(shown: str, fresh: str) -> None:
    assert refresh.same(shown, fresh)


@pytest.mark.parametrize(
    ("shown", "fresh"),
    [
        ("5.61 ms", "5.66 ms"),
        ("8 GPUs", "7 GPUs"),
        ("vLLM 0.27.1", "vLLM 0.27.2"),
        ("Llama-3.1-8B", "Llama-3.1-7B"),
        ("1.99 (2026-05)", "1.99 (2027-05)"),
        ("bound by memory", "bound by compute"),
        ("2.0", "-2.0"),
    ],
)
def test_a_page_is_written_when_it_says_something_else(shown: str, fresh: str) -> None:
    assert not refresh.same(shown, fresh)


def test_the_reference_is_that_of_the_declarations() -> None:
    """Run ``make docs`` when this fails."""
    page = (ROOT / "docs/reference/commands.md").read_text(encoding="utf-8")
    assert reference.MARK in page
    assert reference.with_reference(page) == page
    assert {name.split()[0] for name in re.findall(r"^## planner (.+)$", page, re.MULTILINE)} == set(COMMANDS)


def test_the_two_commands_of_the_readme_are_enough() -> None:
    """One installs and plans, one tests; the names in them are those of the project."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^\$ (.*)$", readme, re.MULTILINE)
    assert commands == ["pip install . && planner recommend --goal min-latency", "make test"]
    output = readme.partition(f"$ {commands[0]}\n")[2].partition("```")[0]
    assert 1 < output.count("\n") <= 25
    assert re.search(r"^test:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"`{project['name']}`" in readme
    assert list(project["scripts"]) == ["planner", project["name"]]  # the second for pipx run and uvx


#: What a reader puts for the words in capitals.
PUT = {
    "MODEL": "meta-llama/Llama-3.2-1B-Instruct", "GPU": "h200", "GPUS": "h200", "N": "8", "MS": "2000", "R": "2",
    "DIR": "plan", "FILE": "trace.csv", "LINE": "vllm serve meta-llama/Llama-3.1-8B-Instruct", "HOST": "127.0.0.1",
}  # fmt: skip
#: These need an engine that runs, or a measurement, or never end: their options are looked up.
NOT_HERE = ("tune", "ui", "evaluate", "validate", "calibrate")


def test_the_commands_of_the_readme_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the table of questions, from top to bottom, in one folder."""
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| question | command |")[2].partition("\n\n")[0]
    commands = re.findall(r"`planner ([^`]+)`", table)
    assert len(commands) >= 15
    (tmp_path / "trace.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,512,64\n1,300,50\n")
    for command in commands:
        words = re.sub(r"[A-Z]{1,5}\b", lambda found: PUT.get(found[0], found[0]), command.replace("...", "")).split()
        if command.startswith(NOT_HERE):
            usage = run(*words[:1], "--help").out
            assert all(word in usage for word in words if word.startswith("--")), command
            continue
        outcome = run(*words)
        assert outcome.status == 0, f"{command}: {outcome.err}"


def test_commands_that_are_not_run_have_their_options() -> None:
    """Commands in plain blocks need a GPU, a server or minutes."""
    text = "".join(page.read_text(encoding="utf-8") for page in refresh.pages() if page.name != "commands.md")
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    plain = "".join(body for kind, body in blocks if not kind).replace("\\\n", " ")
    lines = re.findall(r"^planner (.+?)(?: +#.*| \|.*| -- .*)?$", plain, re.MULTILINE)
    assert len(lines) >= 8
    for line in lines:
        words = line.split()
        usage = run(*words[: 2 if words[0] in ("predict", "hardware", "models") else 1], "--help").out
        assert all(re.search(rf"{word}\b", usage) for word in words if word.startswith("--")), line


def test_the_documentation_stays_short() -> None:
    """What a page adds has to be worth what it pushes out."""
    texts = (re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in PAGES)
    assert sum(bool(re.search(r"\w", word)) for text in texts for word in text.split()) <= MOST_WORDS


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#:]+)\)", index)}
    assert set(PAGES) - {ROOT / "README.md", ROOT / "docs/index.md"} <= listed


def test_the_script_of_the_pictures_can_be_read() -> None:
    """It needs Chromium to run, so only what it imports is tried."""
    for name in ("PIL", "playwright"):
        pytest.importorskip(name)
    pictures = import_module("pictures")
    for line in pictures.TYPED.values():
        assert run(*line.split()[1:2], "--help").status == 0


def test_every_picture_is_shown() -> None:
    """No picture lies about that no page shows."""
    shown = set(re.findall(r"images/([\w-]+\.(?:svg|png))", "".join(p.read_text(encoding="utf-8") for p in PAGES)))
    assert {path.name for path in (ROOT / "docs/images").iterdir()} == shown


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{target}#{anchor}"


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(
        r"`((?:planner|tests|docs|benchmarks|hardware|templates)/[\w./-]*)`", page.read_text(encoding="utf-8")
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_of_the_code_exists(page: Path) -> None:
    """``planner.timing.step.StepModel.time`` and similar names."""
    for name in sorted(set(re.findall(r"`planner((?:\.\w+)+)(?:\(\))?`", page.read_text(encoding="utf-8")))):
        if name != ".toml":
            find("planner" + name)


def find(name: str) -> object:
    """The module, class, function or attribute of that name."""
    parts = name.split(".")
    found: object = import_module(parts[0])
    for index, part in enumerate(parts[1:], start=2):
        try:
            found = import_module(".".join(parts[:index]))
        except ModuleNotFoundError:
            fields = getattr(found, "__dataclass_fields__", {}) | getattr(found, "model_fields", {})
            found = fields[part] if part in fields else getattr(found, part)
    return found
