"""Whatever a model, a path, an option or a variable holds, it reaches ``vllm`` unchanged on every platform."""

import tempfile
from pathlib import Path

import pytest
import yaml
from deployed import Host, composed, container_of, documents, expanded, over_two_nodes, run_container, workload_of
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from script_plans import emission, plan
from test_scripts_hostile import CANARY, HOSTILE

from planner.errors import PlannerError
from planner.output.deploy.hosts import render_deployable
from planner.output.deploy.yaml_text import commented, dump

WORDS = st.one_of(
    HOSTILE,
    st.sampled_from((
        "$(HF_TOKEN)", "$$(HF_TOKEN)", "$${HF_TOKEN}", "${HF_TOKEN:-x}", "{{ .Values.x }}", "{{.Name}}", "1e3", "no",
        "y", "null", "- a", "a: b", "a #b", "|", ">", "%YAML", "---", "...", "&a", "*a", "!!python/object:os.system",
        "'", '"', "@", "`", "0x10", "\x85", "\ufeff", "\U0001f600", "planner", "vllm serve",
    )),
)  # fmt: skip


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(model=WORDS, value=WORDS, options=st.lists(WORDS, max_size=3), said=WORDS)
@example(model="org/$(HF_TOKEN)", value="$(HF_TOKEN)", options=["${HF_TOKEN}", "$"], said="a\nkind: Evil")
@example(model="{{ evil }}", value=f"\ntouch {CANARY}\n", options=["1e3", "no"], said=f"x\n$(touch {CANARY})")
def test_every_word_arrives_unchanged(model: str, value: str, options: list[str], said: str) -> None:
    model = model.replace(":", ";") if model.startswith("/") else model
    made = plan(
        model=model, requested_model=model, env={"NAME": value, "OTHER": "on"}, engine_version="0.14.0",
        serve_argv=("vllm", "serve", model, "--host", "0.0.0.0", "--tensor-parallel-size", "1", *options),
    )  # fmt: skip
    planned = list(made.serve_argv)
    one, two = emission(made, command="planner " + said, predicted_lines=(said,)), over_two_nodes(made)
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), programs=("vllm", "srun"))
        for target in ("compose", "kubernetes"):
            (text,) = render_deployable(one, target, command="planner deploy " + said).values()
            assert list(YAML(typ="safe", pure=True).load_all(text)) == documents(text)
            if target == "compose":
                (service,) = documents(text)[0]["services"].values()
                assert [composed(word) for word in (*service["entrypoint"], *service["command"])] == planned
                assert composed(service["environment"]["NAME"]) == value
            else:
                container = container_of(workload_of(text))
                assert run_container(host, container, HF_TOKEN="secret") == planned
                assert expanded(environment(container)["NAME"], {"HF_TOKEN": "secret"}) == value
        (text,) = render_deployable(two, "lws", command=said).values()
        env = {"LWS_WORKER_INDEX": "0", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "head", "HF_TOKEN": "secret"}
        started = run_container(host, container_of(workload_of(text)), **env)
        argv = list(two.file.plan.serve_argv)
        assert started[: len(argv)] == argv
        if not any(sign in model for sign in ",:") or not model.startswith("/"):
            for executor in (one, two):
                script = Path(folder) / "server.sbatch"
                script.write_text(render_deployable(executor, "slurm", command=said)["server.sbatch"])
                host.clean()
                done = host.run("bash", str(script))
                assert done.returncode == 0, done.stderr
                (step,) = host.calls("srun")
                assert f"NAME={value}" in step
                words = list(executor.file.plan.serve_argv)
                expected = [*words[:3], *words[5:], "--host", "127.0.0.1", "--port", "8000"]
                assert step[-len(expected) :] == expected
        assert not list(Path(folder).rglob(CANARY))


def environment(container: dict[str, list[dict[str, str]]]) -> dict[str, str]:
    return {v["name"]: v["value"] for v in container["env"] if "value" in v}


@given(
    st.lists(st.one_of(WORDS, st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))), max_size=3)
)
def test_yaml_says_the_same_to_two_readers(words: list[str]) -> None:
    """PyYAML reads YAML 1.1, ruamel 1.2; Kubernetes and compose are somewhere between."""
    written = [words, {"key": words}]
    text = dump(written)
    assert text.isascii()
    assert yaml.safe_load(text) == written
    assert YAML(typ="safe", pure=True).load(text) == written


@given(st.text())
def test_comments_stay_comments(said: str) -> None:
    assert all(line.startswith("#") for line in commented([said, said]).splitlines())


@pytest.mark.parametrize("word", ["\0", "a\0b", "\udc80"])
def test_what_no_command_line_holds_is_refused(word: str) -> None:
    with pytest.raises(PlannerError, match="cannot be written"):
        dump([word])
