"""Whatever a name, a path, a variable or the command line holds, it reaches docker unchanged and runs nothing."""

import json
import subprocess
import tempfile
from pathlib import Path

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from script_machine import Machine, variables_of
from script_plans import emission, plan

CANARY = "canary"  # a payload that is run makes this file, in the folder where the scripts run
PAYLOADS = (
    f"$(touch {CANARY})", f"`touch {CANARY}`", f"; touch {CANARY} #", f"\ntouch {CANARY}\n", f"' touch {CANARY} '",
    f'"; touch {CANARY}; "', f"\\\ntouch {CANARY}", f"a\r\ntouch {CANARY}", f"&& touch {CANARY}", f"| touch {CANARY}",
    f"x\u2028touch {CANARY}", f"}}}}{{% raw %}} $(touch {CANARY})", "{{ plan }}", "{# gone #}", "{// gone //}", "~",
    "*", "a b", "'", '"', "\\", "-n", "--", "#", "", "! !!", "%s%n", "\x1b[2J", "\u202egpj", "```\n# title", "a|b",
    "ü €", "a,b=c,trust_remote_code=True", "=", "$HOME", "${HF_TOKEN}", "\t",
)  # fmt: skip
HOSTILE = st.one_of(
    st.sampled_from(PAYLOADS),
    st.builds(str.__add__, st.sampled_from(PAYLOADS), st.sampled_from(PAYLOADS)),
    st.text(st.sampled_from("$`'\"\\\n\t ;&|<>(){}[]*?!#~-=%,.:/aZ0é\u2028"), max_size=20),
)


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.generate))  # an example takes a second
@given(
    model=HOSTILE,
    value=HOSTILE,
    options=st.lists(HOSTILE, max_size=3),
    docker=st.lists(HOSTILE.filter(lambda word: not word.startswith("-")), max_size=2),
    said=st.lists(HOSTILE, min_size=1, max_size=2),
    task=HOSTILE,
    token=HOSTILE,
)
@example(
    model=f"org/name$(touch {CANARY})", value=f"\ntouch {CANARY}\n", options=[f"' `touch {CANARY}`"], docker=["a b"],
    said=[f"\ntouch {CANARY}", f"line\\\ntouch {CANARY}"], task=f"gsm8k; touch {CANARY}", token=f"$(touch {CANARY})",
)  # fmt: skip
def test_no_value_changes_a_command_or_leaves_its_comment(
    model: str, value: str, options: list[str], docker: list[str], said: list[str], task: str, token: str
) -> None:
    made = plan(
        model=model, requested_model=model, gated=True, image_source=said[0], why=tuple(said), warnings=tuple(said),
        env={"NAME": value}, docker_args=("--label", *docker) if docker else (), accuracy_task=task,
        serve_argv=("vllm", "serve", model, "--host", "0.0.0.0", *options),
        bench_argv=("vllm", "bench", "serve", "--model", model, *options),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        emitted = emission(made, command="planner " + said[-1], predicted_lines=tuple(said), expected_accuracy=(value,))
        machine = Machine(Path(folder), emitted)
        for script in machine.plan.glob("*.sh"):
            assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        variables = {"HF_TOKEN": token.replace("\0", ""), "HF_HOME": f"{machine.home}/hf {CANARY}$(x)"}
        for script in ("preflight.sh", "validate.sh", "launch.sh", "benchmark.sh", "accuracy.sh"):
            done = machine.run(script, **variables)
            # only preflight may say no: a path may have a colon, a local model may be missing
            assert done.returncode == 0 or script in {"preflight.sh", "validate.sh"}, (script, done.stderr)
        machine.run("benchmark.sh", FORCE="1")

        (run, *_) = machine.docker("run")
        at = run.index(made.image)
        assert ("vllm", *run[at + 1 :]) == made.serve_argv
        assert f"NAME={value}" in variables_of(run)
        if docker:
            assert run[run.index("--label") + 1 :][: len(docker)] == docker
        for sent in machine.docker("exec"):
            start = sent.index("sh") + 5
            assert tuple(sent[start : start + len(made.bench_argv)]) == made.bench_argv
        called = machine.calls("lm_eval")[-1]
        assert called[called.index("--tasks") + 1] == task
        assert json.loads(called[called.index("--model_args") + 1])["model"] == model
        assert not list(Path(folder).rglob(CANARY))
        assert {p.name for p in machine.home.iterdir()} <= {f"hf {CANARY}$(x)"}
