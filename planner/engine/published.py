"""Published images, options of their containers, and recipes with known issues.

A tag is pinned where a source names it, else it follows the vLLM project's release images. ``recipes.toml`` holds the
recipes in layers; what a version does not have is left out, and the answer says so. Known issues: AMD, vLLM FP8 latency
and throughput benchmarks on MI300X, vLLM 0.9.1.

>>> from planner.hardware import load_profile
>>> from planner.engine.version import parse_version
>>> image_for(load_profile("mi300x"), parse_version("0.27.1")).name
'vllm/vllm-openai-rocm:v0.27.1'
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any

from planner.engine.features import default_engine, takes_aiter_attention, uses_latent_attention
from planner.engine.flags import AITER, FlagProblem, VllmCommand, env_status, flag_status, is_on, key_list, value_status
from planner.engine.settings import Engine, EngineConfig
from planner.engine.version import READ_ON, RELEASES, EngineVersion, Release, known_version, release_of, release_text
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.model import Model
from planner.resources import package_dir, tables_of


@dataclass(frozen=True, slots=True)
class ImageBuild:
    name: str
    repository: str
    commit: str
    dockerfile: str
    image: str
    version: str = ""  #: of vLLM, whose options the commit takes; empty where the caller chooses what is built
    stands_for: str = ""  #: the version that its document calls it, where no registry has an image of that
    args: dict[str, str] = field(default_factory=dict)
    target: str = ""
    jobs_arg: str = ""  #: the build argument that says how many files are compiled at the same time
    max_jobs: int = 0
    corrections: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        return f"built at commit {self.commit[:12]} by build_image.sh" if self.commit else "built by build_engine.sh"


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    version: EngineVersion
    platform: str
    pinned: bool  #: a source names this tag; else it follows the naming of releases
    source: str
    gpus: tuple[str, ...] = ()  #: profiles that the source ran it on
    note: str = ""


def image_for(profile: GpuProfile, version: EngineVersion) -> Image:
    """The image of ``version``: one that a source ran on this GPU, one that it ran on another, or one by its name;
    empty on a CPU. Raises IllegalPlanError where none is known for the platform, or none runs on the GPU."""
    if profile.platform == "cpu":
        return Image("", version, "cpu", pinned=False, source="no container: vLLM as it is installed on the machine")
    if version.build != "vllm":
        cause = f"no image of vLLM with the ATOM plugin ({version.text}) is known"
        raise IllegalPlanError(cause, hint=f"plan for a release of vLLM: --engine-version {default_version(profile)}")
    for problem in without_kernels(profile, version):
        raise IllegalPlanError(problem.cause, hint=problem.hint)
    same = [i for i in _images() if i.platform == profile.platform and i.version.release == version.release]
    if matched := next((i for i in same if profile.whole in i.gpus), None):
        return matched
    if same:
        where = ", ".join(same[0].gpus)
        return replace(same[0], note=f"its source ran it on {where}, not on {profile.id}")
    if build := _commit_of(version, profile.platform):
        note = f"no registry has an image of vLLM {version}: its document's commit takes the options of {build.version}"
        return Image(build.image, version, profile.platform, pinned=True, source=build.source, note=note)
    rule = _table("images")["naming"][profile.platform]
    if version.release < release_of(rule["since"]) or version.release not in RELEASES:
        images = {i.version for i in _images() if i.platform == profile.platform}
        others = ", ".join(str(other) for other in sorted(images) if not without_kernels(profile, other))
        hint = f"choose --engine-version from: {others}, or a release from {rule['since']} on"
        raise IllegalPlanError(f"no image of vLLM {version} is known for {profile.name}", hint=hint)
    unusual = version.release != default_version(profile).release
    note = "follows the naming of vLLM's release images; no source was seen running it on this GPU" if unusual else ""
    name, source = rule["name"].format(version=version), "the naming rule of releases"
    return Image(name, version, profile.platform, pinned=False, source=source, note=note)


def without_kernels(profile: GpuProfile, version: EngineVersion) -> tuple[FlagProblem, ...]:
    """The problem of a release whose images are older than the GPU; empty for others."""
    oldest = _table("images")["oldest"].get(profile.architecture.rstrip("a"), {}).get("version", "0.0")
    cause = f"no image of vLLM {version} runs on {profile.name}: {profile.architecture} came with {oldest}"
    hint = f"choose --engine-version {oldest} or later, or leave it out"
    return (FlagProblem(f"vLLM {version}", cause, hint, fatal=False),) * (version.release < release_of(oldest))


def options_version(version: EngineVersion, platform: str, image: str = "") -> EngineVersion:
    """The version whose options are taken: that of the commit that stands for it, unless another ``image`` runs."""
    build = _commit_of(version, platform)
    return known_version(build.version) if build and image in ("", build.image) else version


def _commit_of(version: EngineVersion, platform: str) -> ImageBuild | None:
    return next((b for b in builds().values() if b.stands_for == str(version) and b.name.startswith(platform)), None)


@lru_cache(maxsize=1)
def builds() -> dict[str, ImageBuild]:
    entries: list[dict[str, Any]] = _table("images")["build"]
    return {e["name"]: ImageBuild(**{**e, "corrections": tuple(e.get("corrections", ()))}) for e in entries}


def default_version(profile: GpuProfile) -> EngineVersion:
    """The newest release that is ``SETTLED_DAYS`` old at the date of the facts and has an image by its name."""
    since = release_of(_table("images")["naming"].get(profile.platform, {}).get("since", "0.0"))
    settled = (release for release, day in RELEASES.items() if (READ_ON - day).days >= SETTLED_DAYS)
    return known_version(release_text(max(release for release in settled if release >= since)))


def docker_args(profile: GpuProfile, num_gpus: int) -> list[str]:
    """Options of ``docker run`` that give a container the GPUs, and nothing else of the host. An AMD container sees
    every GPU of the node (``/dev/kfd``, ``/dev/dri``)."""
    rocm = "--device /dev/kfd --device /dev/dri --group-add video --security-opt seccomp=unconfined"
    gpus = {"rocm": rocm.split(), "cuda": ["--gpus", str(num_gpus)], "cpu": []}[profile.platform]
    return [*gpus, "--ipc", "host"]


def visible_devices(profile: GpuProfile, num_gpus: int) -> dict[str, str]:
    """The variable that restricts an AMD container to the first ``num_gpus`` logical GPUs; NVIDIA needs none."""
    if profile.platform != "rocm" or num_gpus >= profile.gpus_per_node:
        return {}
    return {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus)))}


@lru_cache(maxsize=1)
def _images() -> tuple[Image, ...]:
    sources = _table("images")["sources"]
    return tuple(
        Image(e["name"], known_version(e["version"]), e["platform"], True, sources[e["source"]], tuple(e["gpus"]))
        for e in _table("images")["image"]
    )


@cache
def _table(name: str) -> dict[str, Any]:
    return tables_of(package_dir("engine") / f"{name}.toml")


#: Older names of keys in ``--compilation-config``.
_OLDER_KEYS = {
    "fuse_allreduce_rms": "enable_fi_allreduce_fusion", "eliminate_noops": "enable_noop",
    "fuse_attn_quant": "enable_attn_fusion", "mode": "level",
}  # fmt: skip
_NEWER_KEYS = {older: newer for newer, older in _OLDER_KEYS.items()}
#: Variables, and keys of ``--compilation-config``, that change sums over several GPUs only.
_OF_SUMS = frozenset({"VLLM_ROCM_QUICK_REDUCE_QUANTIZATION", "fuse_allreduce_rms"})
#: Options whose values are parsers of a version.
PARSERS = {"tool-call-parser": "tool_call_parser", "reasoning-parser": "reasoning_parser"}
PARSERS_SINCE = (0, 10)  #: first release whose parsers ``flags.json`` lists
SETTLED_DAYS = 30  #: age of a release before it is the default
#: The most of the memory that V1 finds free when it starts, from 0.9.1 on, and the documents' advice with graphs.
MOST_UTILIZATION, ADVISED_UTILIZATION = 0.97, 0.95
DEEPSEEK_MAX_MODEL_LEN = 32768  #: tokens
HOPPER_ISSUES_UNTIL = (0, 12)
#: Releases whose AMD images had AITER before vLLM had it: first, and first without.
AITER_IMAGES_SINCE, AITER_IMAGES_UNTIL = (0, 8, 4), (0, 10)


@dataclass(frozen=True, slots=True)
class Recipe:
    env: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)  #: for ``extra`` of ``serve_argv``
    settings: dict[str, Any] = field(default_factory=dict)  #: names of EngineArgs
    sources: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  #: what the sources set and the version does not have
    asides: tuple[str, ...] = ()  #: what users may add, in words: files, and choices that are theirs


def recipe_for(
    model: Model, profile: GpuProfile, version: EngineVersion, *, kv_cache_dtype: str = "auto",
    engine: Engine | None = None, tensor_parallel_size: int | None = None, cuts_blocks: bool = False,
) -> Recipe:  # fmt: skip
    """The layers that match, merged, in the version's names; at TP 1 without options of sums over GPUs."""
    given = {"fp8_kv": kv_cache_dtype.startswith("fp8"), "cuts_blocks": cuts_blocks}
    env: dict[str, str] = {}
    flags: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    sources: dict[str, None] = {}
    early = version.release < recipe_release(model)
    for layer in _table("recipes")["recipe"]:
        if early and layer["source"] == "recipes" and "models" in layer:
            continue
        if _matches(layer, model, profile, version) and all(layer.get(key, on) is on for key, on in given.items()):
            env |= layer.get("env", {})
            flags |= layer.get("flags", {})
            settings |= layer.get("settings", {})
            sources[_table("recipes")["sources"][layer["source"]]] = None
    if serving := _serving_flags(model.id) if version.release >= PARSERS_SINCE else {}:
        flags |= serving
        sources[_table("recipes")["sources"]["recipes"]] = None
    if model.requires_remote_code:
        flags["trust-remote-code"] = True
    if version.release >= (0, 8):
        env["VLLM_USE_V1"] = "1" if (engine or default_engine(version, profile)) == "V1" else "0"
    if tensor_parallel_size == 1:
        env, flags = without_sums(env), without_sums(flags)
    known = {name for name in env if env_status(version, name, platform=profile.platform)}
    left_out = [f"{name}={value}" for name, value in sorted(env.items()) if name not in known | {"VLLM_USE_V1"}]
    flags = dict(_known_flags(flags, version, left_out))
    if "tool-call-parser" in flags:
        flags["enable-auto-tool-choice"] = True
    env = {name: value for name, value in sorted(env.items()) if name in known}
    return Recipe(env, flags, settings, tuple(sources), tuple(left_out), tuple(_of_model("aside", model.id)))


def recipe_release(model: Model) -> Release:
    """The release that the model's recipe demands; (0,) where every one that knows the model has it."""
    return max(map(release_of, _of_model("needs", model.id)), default=(0,))


def _of_model(table: str, model: str) -> list[str]:
    """The texts of the patterns that begin a word of the model's id."""
    name = model.rstrip("/").lower()
    return [text for pattern, text in _table("recipes")[table].items() if re.search(rf"(?:^|[-/]){pattern}", name)]


def stated_words(checkpoints: Sequence[str], profile: GpuProfile) -> tuple[list[str], dict[str, str]]:
    """Options and variables of the recipe of the first of ``checkpoints`` that has one, for this GPU; later ones win.

    An entry of ``stated.json`` has its words by platform, architecture or whole GPU; ``of`` names the recipe's model.
    """
    lines: dict[str, dict[str, str]] = tables_of(package_dir("engine") / "stated.json")
    own = next((lines[name] for name in checkpoints if name in lines), {})
    where = {"all", profile.platform, profile.architecture.rstrip("a"), profile.whole}
    entries = (lines.get(own.get("of", ""), {}), own)
    words = [w for one in entries for key, text in one.items() if where & {*key.split()} for w in shlex.split(text)]
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z]\w*=", word))
    return [word for word in words if word.partition("=")[0] not in variables], variables


def reason_beside_recipe(word: str, *, added: bool) -> str:
    """Return why plans lack an option or a variable of their recipe, or set it otherwise, or why they add one."""
    reasons: dict[str, str] = _table("recipes")["added" if added else "reason"]
    return reasons.get(word, reasons["other"])


def parsers_of(model: str, version: EngineVersion) -> dict[str, str]:
    """Return the parsers of the model's recipe that ``version`` has, by option."""
    given = _serving_flags(model)
    return {name: given[name] for name, kind in PARSERS.items() if value_status(version, kind, given.get(name, ""))}


def _serving_flags(model: str) -> dict[str, Any]:
    matched = _of_model("serving", model)
    words = (option.split() for option in re.split(r"\s*--", matched[-1]) if option) if matched else ()
    return {flag: value[0] if value else True for flag, *value in words}


def _matches(layer: dict[str, Any], model: Model, profile: GpuProfile, version: EngineVersion) -> bool:
    name = model.id.rstrip("/").rsplit("/", 1)[-1].lower()
    tests: dict[str, Callable[[Any], bool]] = {
        "platform": lambda asked: asked == profile.platform,
        "arch": lambda asked: profile.architecture.rstrip("a") in asked,
        "models": lambda asked: any(re.search(rf"(?:^|-){pattern}", name) for pattern in asked),
        "publisher": lambda asked: model.id.startswith(f"{asked}/"),
        "weight_dtype": lambda asked: model.quantization.weight_dtype in asked,
        "moe": lambda asked: model.is_moe is asked,
        "latent": lambda asked: uses_latent_attention(model) is asked,
        "aiter_attention": lambda asked: takes_aiter_attention(model) is asked,
        "since": lambda asked: version.release >= release_of(asked),
        "until": lambda asked: version.release < release_of(asked),
    }
    return all(test(layer[key]) for key, test in tests.items() if key in layer)


def without_sums(entries: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables or options without those of sums over GPUs."""
    others = {key: value for key, value in entries.items() if key not in _OF_SUMS}
    return {key: without_sums(value) if isinstance(value, Mapping) else value for key, value in others.items()}


def _known_flags(
    flags: dict[str, Any], version: EngineVersion, left_out: list[str], command: VllmCommand = "serve"
) -> Iterator[tuple[str, Any]]:
    for name, value in flags.items():
        plugin = f"{name.replace('-call', '')}-plugin"
        if not flag_status(version, f"--{name}" if value is not False else f"--no-{name}", command):
            left_out.append(f"--{name}")
        elif name in PARSERS and plugin not in flags and not value_status(version, PARSERS[name], value):
            left_out.append(f"--{name} {value}")
        elif isinstance(value, Mapping) and key_list(name):
            if config := _known_keys(value, version, left_out, name):
                yield name, config
        else:
            yield name, value


def spelled_options(
    options: Mapping[str, str], version: EngineVersion, command: VllmCommand = "serve"
) -> dict[str, Any]:
    """Options of ``command`` as text, those that ``version`` has, in its words. An empty value is that of a switch."""
    flags: dict[str, Any] = {}
    for flag, text in options.items():
        name = flag.removeprefix("--")
        switch_off = not text and name.startswith("no-")
        value = json.loads(text) if key_list(name) and text.startswith("{") and text != "{}" else text
        flags[name.removeprefix("no-") if switch_off else name] = value or not switch_off
    return dict(_known_flags(flags, version, [], command))


def _known_keys(config: Mapping[str, Any], version: EngineVersion, left_out: list[str], option: str) -> dict[str, Any]:
    """Keys in the spelling of the version; ``full_cuda_graph`` was the switch before modes. With FlashInfer and
    similar backends ``FULL`` becomes ``FULL_AND_PIECEWISE`` when the engine starts (``gpu_model_runner.py``)."""
    matched: dict[str, Any] = {}
    kind = key_list(option)
    for key, value in config.items():
        names = (key, _OLDER_KEYS.get(key, ""), _NEWER_KEYS.get(key, ""))
        if isinstance(value, Mapping) and key_list(key):
            inner = _known_keys(value, version, left_out, key)
            matched |= {key: inner} if inner else {}
        elif known := next((name for name in names if name and value_status(version, kind, name)), None):
            matched[known] = list(value) if isinstance(value, list) else value
        elif key == "full_cuda_graph" and value_status(version, kind, "cudagraph_mode"):
            matched["cudagraph_mode"] = "FULL_AND_PIECEWISE"
        elif key == "cudagraph_mode" and value_status(version, kind, "full_cuda_graph"):
            matched["full_cuda_graph"] = True
        else:
            left_out.append(f"--{option} {key}")
    return matched


def served_context(model: Model, profile: GpuProfile, version: EngineVersion) -> int:
    """Return the longest context of a model: its own, or what AMD's images serve DeepSeek-V3 and R1 with."""
    own, images = model.max_position_embeddings, AITER_IMAGES_SINCE <= version.release < AITER_IMAGES_UNTIL
    limited = images and profile.architecture == "gfx942" and model.architecture == "DeepseekV3ForCausalLM"
    return min(own, DEEPSEEK_MAX_MODEL_LEN) if limited else own


def known_issues(
    config: EngineConfig, env: Mapping[str, str], model: Model, profile: GpuProfile, *, compilation: str = ""
) -> Iterator[FlagProblem]:
    """Settings that vLLM ignores, or a vendor reports broken. ``compilation``: ``--compilation-config``."""
    for word, _, cause in (note.partition(": ") for note in config.ignored):
        yield FlagProblem(word, cause, fatal=False)
    yield from without_kernels(profile, config.version)
    # NVIDIA's recipe of 0.10.1: neither is supported on Hopper; vLLM's recipes set both there from 0.12 on
    if (profile.compute_capability or (0, 0))[0] == 9 and config.version.release < HOPPER_ISSUES_UNTIL:
        cause = f"NVIDIA's recipe says that it is not supported on Hopper yet, with vLLM {config.version}"
        if config.async_scheduling:
            yield FlagProblem("--async-scheduling", cause, "leave it out", fatal=False)
        if (key := "enable_fi_allreduce_fusion") in compilation:
            yield FlagProblem(f"--compilation-config {key}", cause, "leave it out", fatal=False)
    aiter = is_on(env, AITER) and profile.architecture in ("gfx942", "gfx950")
    gpt_oss = model.architecture == "GptOssForCausalLM" and (0, 10, 1) <= config.version.release < (0, 11, 1)
    if aiter and gpt_oss and env.get(f"{AITER}_MHA") not in ("0", "false", "False"):  # rocm_aiter_fa.py: no ``sinks``
        yield FlagProblem(AITER, "its attention does not take the model's sinks", f"add {AITER}_MHA=0")
    if profile.architecture != "gfx942" or not AITER_IMAGES_SINCE <= config.version.release < AITER_IMAGES_UNTIL:
        return
    image = f"AMD's image of vLLM {config.version} for this GPU"
    if aiter and config.kv_cache_dtype == "fp8":
        hint = "set it to 0, or leave --kv-cache-dtype out"
        yield FlagProblem(AITER, f"has no fp8 KV cache in {image}", hint, fatal=False)
    if served_context(model, profile, config.version) < min(config.max_model_len, model.max_position_embeddings):
        cause = f"{config.max_model_len:,} tokens are more than {image} serves this model with"
        yield FlagProblem("--max-model-len", cause, f"give {DEEPSEEK_MAX_MODEL_LEN}", fatal=False)
