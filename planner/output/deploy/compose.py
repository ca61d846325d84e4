"""Docker compose: the planned server, or several behind a balancer where a node has room for them.

Compose interpolates values, so every ``$`` of a value is doubled. Variables without a value are passed by name: compose
takes them from the environment that it is started in.
"""

from __future__ import annotations

from planner.engine import EVERYWHERE
from planner.errors import InputError
from planner.output.deploy.deployable import Deployable
from planner.output.deploy.yaml_text import Json, commented, dump, escape_dollars, escape_words
from planner.output.scripts.emission import MODEL_CACHE, PORT, gpus_of_server
from planner.output.scripts.text import render_template
from planner.units import whole_number

PASSED_BY_NAME = ("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
BALANCER_IMAGE = "nginx:1.28.0"
_HEALTH = (
    "import urllib.request as r;r.build_opener(r.ProxyHandler({{}})).open('http://127.0.0.1:{port}/health', timeout=5)"
)
_MODELS = "${HF_HOME:-${HOME}/.cache/huggingface}"  # as launch.sh has it
_NGINX = "/tmp/nginx"  # in the balancer's own container


def compose(made: Deployable) -> dict[str, str]:
    """``compose.yaml``, and ``nginx.conf`` where there are several servers.

    Raises InputError for more servers than the node has GPUs for, IllegalPlanError for one over several nodes.
    """
    made.require_one_node("compose")
    room, several = made.servers_per_node, made.site.replicas > 1
    if made.site.replicas > room:
        raise InputError(
            f"--replicas {made.site.replicas}: a node with {made.plan.gpus_per_node} GPUs has room for {room} such "
            f"server{'s' if room != 1 else ''}",
            hint="ask for fewer, or deploy them on several nodes with --target kubernetes",
        )
    names = [f"vllm-{index}" for index in range(made.site.replicas)] if several else ["vllm"]
    services = {name: _server(made, index) for index, name in enumerate(names)}
    title = "Docker compose: the planned server."
    if several:
        services["balancer"] = _balancer(made, names)
        title = f"Docker compose: {len(names)} servers like the planned one, behind nginx."
    remarks = (
        "Start it with docker compose up --detach --wait, stop it with docker compose down.",
        "Compose takes HF_TOKEN and HF_HOME from the environment.",
        f"The server answers at http://{made.site.host}:{made.site.port}/v1",
        *_device_remarks(made),
    )
    document = {"name": made.name, "services": services}
    files = {"compose.yaml": commented(made.header(title, *remarks)) + dump(document)}
    if several:
        files["nginx.conf"] = _nginx(made, names)
    return files


def _server(made: Deployable, index: int) -> Json:
    plan, needs = made.plan, made.needs
    service: Json = {
        "image": plan.image,
        "entrypoint": escape_words(plan.serve_argv[:1]),
        "command": escape_words(plan.serve_argv[1:]),
        "environment": _environment(made, index),
        "volumes": _volumes(made),
        **_privileges(made),
        **({"shm_size": needs.shm_size} if needs.shm_size else {}),
        "healthcheck": _healthcheck(made),
        "restart": "unless-stopped",
        "stop_grace_period": "60s",
        **({"deploy": {"resources": _nvidia(made, index)}} if plan.platform == "cuda" else {}),
    }
    if made.site.replicas == 1:
        service["ports"] = [_published(made, made.container_port)]
    elif index:
        service["depends_on"] = {"vllm-0": {"condition": "service_healthy"}}  # it downloads the model for all
    return service


def _environment(made: Deployable, index: int) -> dict[str, str | None]:
    """Null: taken from the environment by its name."""
    plan = made.plan
    given = {**plan.env, "HF_HOME": MODEL_CACHE}
    if made.site.replicas > 1:
        given = made.given_env
        if plan.platform == "rocm":
            given = {**given, "HIP_VISIBLE_DEVICES": gpus_of_server(plan, index)}
    elif made.emission.profile.partition and plan.platform == "cuda":
        given = made.given_env  # one MIG instance is handed over, whatever its number
    variables: dict[str, str | None] = {name: escape_dollars(value) for name, value in given.items()}
    return variables | {name: None for name in PASSED_BY_NAME if name not in given}


def _volumes(made: Deployable) -> list[Json]:
    found: list[Json] = [{"type": "bind", "source": _MODELS, "target": MODEL_CACHE, "bind": {"create_host_path": True}}]
    if made.local_model:
        folder = escape_dollars(made.local_model)
        found.append({"type": "bind", "source": folder, "target": folder, "read_only": True})
    return found


def _privileges(made: Deployable) -> Json:
    """What the plan asks of docker, in compose's words."""
    needs = made.needs
    found: Json = {
        "devices": escape_words([device if ":" in device else f"{device}:{device}" for device in needs.devices]),
        "group_add": escape_words(needs.groups),
        "security_opt": escape_words(needs.security_opt),
        "cap_add": escape_words(needs.capabilities),
        "ipc": escape_dollars(needs.ipc),
        "privileged": needs.privileged,
    }
    return {name: value for name, value in found.items() if value}


def _nvidia(made: Deployable, index: int) -> Json:
    """The GPUs by number where there are several servers, a MIG instance by its UUID, else just how many."""
    wanted: Json = {"driver": "nvidia", "capabilities": ["gpu"]}
    if made.emission.profile.partition:
        wanted["device_ids"] = [f"${{{_mig_variable(index, gpu)}:?UUID of a MIG instance, see nvidia-smi -L}}"
                                for gpu in range(made.plan.num_gpus)]  # fmt: skip
    elif made.site.replicas > 1:
        wanted["device_ids"] = gpus_of_server(made.plan, index).split(",")
    else:
        count = whole_number(made.needs.gpus)
        wanted["count"] = made.plan.num_gpus if count is None else count
    return {"reservations": {"devices": [wanted]}}


def _mig_variable(server: int, gpu: int) -> str:
    return f"MIG_{server}_{gpu}"


def _device_remarks(made: Deployable) -> list[str]:
    if not (made.emission.profile.partition and made.plan.platform == "cuda"):
        return []
    pairs = ((server, gpu) for server in range(made.site.replicas) for gpu in range(made.plan.num_gpus))
    variables = ", ".join(_mig_variable(*pair) for pair in pairs)
    return [f"Set {variables} to the UUIDs of the MIG instances to use; nvidia-smi -L prints them."]


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
        "ports": [_published(made, PORT)],
        "volumes": [{"type": "bind", "source": "./nginx.conf", "target": "/etc/nginx/planner.conf", "read_only": True}],
        "tmpfs": [_NGINX],
        # nginx looks the servers up when it starts: it starts again when one of them is made anew
        "depends_on": {name: {"condition": "service_healthy", "restart": True} for name in names},
        "restart": "unless-stopped",
    }


def _nginx(made: Deployable, names: list[str]) -> str:
    balanced = {
        "balancer_of": "compose.yaml",
        "balanced_addresses": [f"{name}:{made.container_port}" for name in names],
        "balancer_address": f"{EVERYWHERE}:{PORT}",
    }
    return render_template("nginx.conf.j2", balanced, ("workflows",))
