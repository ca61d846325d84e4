"""The container image to run, and how to start a container on each platform.

A tag is pinned where a source names it. For a version without such a tag, the name follows the vLLM project's release
images, and the answer says that no source ran it.

>>> from planner.hardware import load_profile
>>> from planner.engine.version import parse_version
>>> image_for(load_profile("mi300x"), parse_version("0.27.1")).name
'vllm/vllm-openai-rocm:v0.27.1'
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from planner.engine.version import EngineVersion, known_version, release_of
from planner.errors import IllegalPlanError
from planner.hardware import GpuProfile
from planner.resources import package_dir


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """How an image is made from source. ``args`` are build arguments that its Dockerfile declares."""

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
        """What a plan says of its image."""
        return f"built at commit {self.commit[:12]} by build_image.sh" if self.commit else "built by build_engine.sh"


@dataclass(frozen=True, slots=True)
class Image:
    """A container image, by exact tag."""

    name: str
    version: EngineVersion
    platform: str
    pinned: bool  #: a source names this tag; else it follows the naming of releases
    source: str
    gpus: tuple[str, ...] = ()  #: profiles that the source ran it on
    note: str = ""


def image_for(profile: GpuProfile, version: EngineVersion) -> Image:
    """The image of ``version``: one that a source ran on this GPU, one that it ran on another, or one by its name.

    A partition runs the image of its whole GPU. On a CPU the name is empty: the server runs without a container.
    Raises IllegalPlanError where no image of that version is known for the platform, or none of them runs on the GPU.
    """
    if profile.platform == "cpu":
        return Image("", version, "cpu", pinned=False, source="no container: vLLM as it is installed on the machine")
    if version.build != "vllm":
        raise IllegalPlanError(
            f"no image of vLLM with the ATOM plugin ({version.text}) is known",
            hint="plan for a release of vLLM: --engine-version 0.27.1",
        )
    _check_architecture(profile, version)
    same = [i for i in _images() if i.platform == profile.platform and i.version.release == version.release]
    found = next((i for i in same if profile.whole in i.gpus), None)
    if found:
        return found
    if same:
        where = ", ".join(same[0].gpus)
        return replace(same[0], note=f"its source ran it on {where}, not on {profile.id}")
    if own := _commit_of(version, profile.platform):
        note = f"no registry has an image of vLLM {version}: its document's commit takes the options of {own.version}"
        return Image(
            own.image,
            version,
            profile.platform,
            pinned=True,
            source=own.source,
            note=note,
        )
    return _by_name(profile, version)


def options_version(version: EngineVersion, platform: str, image: str = "") -> EngineVersion:
    """The version whose options are taken: that of the commit, where a document calls a commit ``version``.

    Another ``image`` than that of the commit takes those of ``version``.
    """
    own = _commit_of(version, platform)
    return known_version(own.version) if own and image in ("", own.image) else version


def _commit_of(version: EngineVersion, platform: str) -> ImageBuild | None:
    """The commit that stands for ``version`` on GPUs of ``platform``, where no registry has an image of it."""
    named = (b for b in builds().values() if b.stands_for == str(version) and b.name.startswith(platform))
    return next(named, None)


@lru_cache(maxsize=1)
def builds() -> dict[str, ImageBuild]:
    """How images are made, by the names under which workflows ask for them."""
    entries: list[dict[str, Any]] = _data()["build"]
    lists = ("corrections",)
    return {e["name"]: ImageBuild(**{**e, **{name: tuple(e[name]) for name in lists if name in e}}) for e in entries}


def default_version(profile: GpuProfile) -> EngineVersion:
    """The newest version with a pinned image that a source ran on this GPU, else on another GPU of its platform."""
    images = [i for i in _images() if i.platform == profile.platform]
    own = [i for i in images if profile.whole in i.gpus]
    return max(i.version for i in own or images or _images())


def docker_args(profile: GpuProfile, num_gpus: int, *, privileged: bool = False, ptrace: bool = False) -> list[str]:
    """Options of ``docker run`` that give a container the GPUs, and nothing else of the host.

    An AMD container sees every GPU of the node (``/dev/kfd``, ``/dev/dri``); ``visible_devices`` restricts it.
    ``privileged`` and ``ptrace`` are for debugging.
    """
    words: list[str] = []
    if profile.platform == "rocm":
        words += ["--device", "/dev/kfd", "--device", "/dev/dri", "--group-add", "video"]
        words += ["--security-opt", "seccomp=unconfined"]
    elif profile.platform == "cuda":
        words += ["--gpus", str(num_gpus)]
    words += ["--ipc", "host"]
    words += ["--privileged"] if privileged else []
    return [*words, "--cap-add", "SYS_PTRACE"] if ptrace else words


def visible_devices(profile: GpuProfile, num_gpus: int) -> dict[str, str]:
    """The variable that restricts an AMD container to the first ``num_gpus`` logical GPUs; NVIDIA needs none."""
    if profile.platform != "rocm" or num_gpus >= profile.gpus_per_node:
        return {}
    return {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(num_gpus)))}


def _check_architecture(profile: GpuProfile, version: EngineVersion) -> None:
    oldest = _data()["oldest"].get(profile.architecture.rstrip("a"))
    if oldest and version.release < release_of(oldest["version"]):
        raise IllegalPlanError(
            f"no image of vLLM {version} runs on {profile.name}: kernels for {profile.architecture} came with "
            f"{oldest['version']}",
            hint=f"choose --engine-version {oldest['version']} or later, or leave it out",
        )


def _by_name(profile: GpuProfile, version: EngineVersion) -> Image:
    rule = _data()["naming"][profile.platform]
    if version.release < release_of(rule["since"]):
        known = sorted({i.version for i in _images() if i.platform == profile.platform})
        raise IllegalPlanError(
            f"no image of vLLM {version} is known for {profile.name}",
            hint=f"choose --engine-version from: {', '.join(map(str, known))}, or {rule['since']} and later",
        )
    name = rule["name"].format(version=version)
    note = "follows the naming of vLLM's release images; no source was seen running it on this GPU"
    return Image(name, version, profile.platform, pinned=False, source="naming of release images", note=note)


@lru_cache(maxsize=1)
def _images() -> tuple[Image, ...]:
    sources = _data()["sources"]
    return tuple(
        Image(
            name=entry["name"],
            version=known_version(entry["version"]),
            platform=entry["platform"],
            pinned=True,
            source=sources[entry["source"]],
            gpus=tuple(entry["gpus"]),
        )
        for entry in _data()["image"]
    )


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    return tomllib.loads((package_dir("engine") / "images.toml").read_text(encoding="utf-8"))
