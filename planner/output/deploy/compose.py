"""Docker compose: the planned server, or several behind a balancer where a node has room for them.

Values are interpolated by compose, so every ``$`` of a value is doubled. The token and its kin are passed through by
name: compose takes them from the environment that it is started in.
"""

from __future__ import annotations

from typing import Any

from planner.errors import IllegalPlanError, InputError
from planner.output.deploy.deployable import PASSED_BY_NAME, Deployable
from planner.output.deploy.yaml_text import commented, dump
from planner.output.scripts.emission import MODEL_CACHE
from planner.output.scripts.render import jinja_environment
from planner.resources import data_dir

Json = dict[str, Any]

BALANCER_IMAGE = "nginx:1.28.0"
BALANCER_PORT = 8000
_HEALTH = (
    "import urllib.request as r;r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{port}/health', timeout=5)"
)
_MODELS = "${HF_HOME:-${HOME}/.cache/huggingface}"  # as launch.sh has it
_NGINX = "/tmp/nginx"  # noqa: S108  (in the balancer's own container)


def compose(made: Deployable) -> dict[str, str]:
    """``compose.yaml``, and ``nginx.conf`` where there are several servers.

    Raises InputError for more servers than the node has GPUs for, IllegalPlanError for one over several nodes.
    """
    _check(made)
    names = _service_names(made)
    services = {name: _server(made, copy) for copy, name in enumerate(names)}
    if len(names) > 1:
        services["balancer"] = _balancer(made, names)
    title = "Docker compose: the planned server."
    if len(names) > 1:
        title = f"Docker compose: {len(names)} servers like the planned one, behind nginx."
    remarks = (
        "docker compose up --detach --wait starts it, docker compose down stops it.",
        f"HF_TOKEN and HF_HOME are taken from the environment. Reached at http://{made.site.host}:{made.site.port}/v1",
        *_device_remarks(made, names),
    )
    document = {"name": made.name, "services": services}
    files = {"compose.yaml": commented(made.header(title, *remarks)) + dump(document)}
    if len(names) > 1:
        files["nginx.conf"] = _nginx(made, names)
    return files


def escape_dollar(text: str) -> str:
    """Compose replaces ``$NAME`` and ``${NAME}``; ``$$`` is a plain ``$``."""
    return text.replace("$", "$$")


def _check(made: Deployable) -> None:
    if made.nodes > 1:
        raise IllegalPlanError(
            f"compose runs on one machine, and this server is spread over {made.nodes}",
            hint="deploy it with --target lws, slurm or ray",
        )
    room = made.plan.gpus_per_node // made.plan.num_gpus
    if made.site.replicas > room:
        raise InputError(
            f"--replicas {made.site.replicas}: a node with {made.plan.gpus_per_node} GPUs has room for {room} such "
            f"server{'s' if room != 1 else ''}",
            hint="ask for fewer, or deploy them on several machines with --target kubernetes",
        )


def _service_names(made: Deployable) -> list[str]:
    if made.site.replicas == 1:
        return ["vllm"]
    return [f"vllm-{copy}" for copy in range(made.site.replicas)]


def _server(made: Deployable, copy: int) -> Json:
    plan, needs, alone = made.plan, made.needs, made.site.replicas == 1
    service: Json = {
        "image": plan.image,
        "entrypoint": [escape_dollar(plan.serve_argv[0])],
        "command": [escape_dollar(word) for word in plan.serve_argv[1:]],
        "environment": _environment(made, copy),
        "volumes": _volumes(made),
        **_privileges(made),
        **({"shm_size": needs.shm_size} if needs.shm_size else {}),
        "healthcheck": _healthcheck(made),
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        **({"deploy": {"resources": _nvidia(made, copy)}} if plan.platform == "cuda" else {}),
    }
    if alone:
        service["ports"] = [_published(made, made.container_port)]
    elif copy:
        service["depends_on"] = {"vllm-0": {"condition": "service_healthy"}}  # it downloads the model for all
    return service


def _environment(made: Deployable, copy: int) -> dict[str, str | None]:
    """Null: taken from the environment by its name."""
    plan = made.plan
    given = {**plan.env, "HF_HOME": MODEL_CACHE}
    if made.site.replicas > 1:
        given = made.given_env
        if plan.platform == "rocm":
            given = {**given, "HIP_VISIBLE_DEVICES": ",".join(_devices(made, copy))}
    elif made.emission.profile.partition and plan.platform == "cuda":
        given = made.given_env  # one MIG instance is handed over, whatever its number
    variables: dict[str, str | None] = {name: escape_dollar(value) for name, value in given.items()}
    return variables | {name: None for name in PASSED_BY_NAME if name not in given}


def _devices(made: Deployable, copy: int) -> list[str]:
    size = made.plan.num_gpus
    return [str(copy * size + index) for index in range(size)]


def _volumes(made: Deployable) -> list[Json]:
    found: list[Json] = [{"type": "bind", "source": _MODELS, "target": MODEL_CACHE, "bind": {"create_host_path": True}}]
    if made.local_model:
        folder = escape_dollar(made.local_model)
        found.append({"type": "bind", "source": folder, "target": folder, "read_only": True})
    return found


def _privileges(made: Deployable) -> Json:
    """What the plan asks of docker, in compose's words."""
    needs = made.needs
    found: Json = {
        "devices": [escape_dollar(f"{device}:{device}" if ":" not in device else device) for device in needs.devices],
        "group_add": [escape_dollar(group) for group in needs.groups],
        "security_opt": [escape_dollar(option) for option in needs.security_opt],
        "cap_add": [escape_dollar(name) for name in needs.capabilities],
        "ipc": escape_dollar(needs.ipc),
        "privileged": needs.privileged,
    }
    return {name: value for name, value in found.items() if value}


def _nvidia(made: Deployable, copy: int) -> Json:
    """The GPUs by number where there are several servers, a MIG instance by its UUID, else just how many."""
    wanted: Json = {"driver": "nvidia", "capabilities": ["gpu"]}
    if made.emission.profile.partition:
        wanted["device_ids"] = [f"${{{_mig_variable(copy, index)}:?UUID of a MIG instance, see nvidia-smi -L}}"
                                for index in range(made.plan.num_gpus)]  # fmt: skip
    elif made.site.replicas > 1:
        wanted["device_ids"] = _devices(made, copy)
    else:
        gpus = made.needs.gpus
        wanted["count"] = int(gpus) if gpus.isdecimal() else made.plan.num_gpus
    return {"reservations": {"devices": [wanted]}}


def _mig_variable(copy: int, index: int) -> str:
    return f"MIG_{copy}_{index}"


def _device_remarks(made: Deployable, names: list[str]) -> list[str]:
    if not (made.emission.profile.partition and made.plan.platform == "cuda"):
        return []
    variables = [_mig_variable(copy, index) for copy in range(len(names)) for index in range(made.plan.num_gpus)]
    return [f"{', '.join(variables)}: the MIG instances to use, by the UUID that nvidia-smi -L prints."]


def _healthcheck(made: Deployable) -> Json:
    return {
        "test": ["CMD", "python3", "-c", _HEALTH.format(port=made.container_port)],
        "interval": "15s",
        "timeout": "10s",
        "retries": 4,
        "start_period": f"{made.start_timeout_s}s",
    }


def _published(made: Deployable, port: int) -> Json:
    return {"target": port, "published": str(made.site.port), "host_ip": made.site.host, "protocol": "tcp"}


def _balancer(made: Deployable, names: list[str]) -> Json:
    return {
        "image": BALANCER_IMAGE,
        "entrypoint": ["nginx"],
        "command": ["-p", f"{_NGINX}/", "-e", "/dev/stderr", "-c", "/etc/nginx/planner.conf", "-g", "daemon off;"],
        "ports": [_published(made, BALANCER_PORT)],
        "volumes": [{"type": "bind", "source": "./nginx.conf", "target": "/etc/nginx/planner.conf", "read_only": True}],
        "tmpfs": [_NGINX],
        # nginx looks the servers up when it starts: it starts again when one of them is made anew
        "depends_on": {name: {"condition": "service_healthy", "restart": True} for name in names},
        "restart": "unless-stopped",
    }


def _nginx(made: Deployable, names: list[str]) -> str:
    templates = jinja_environment([data_dir("templates") / "workflows"])
    return templates.get_template("nginx.conf.j2").render(
        balancer_of="compose.yaml",
        balanced_addresses=[f"{name}:{made.container_port}" for name in names],
        balancer_address=f"0.0.0.0:{BALANCER_PORT}",
    )
