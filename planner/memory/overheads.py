"""The part of vLLM's memory that no formula gives: constants fitted to start-up logs, each with its 90 % interval.

``hardware/calibration/memory.toml`` has ours; those of a user's logs take precedence. Independent parts add in
quadrature. The profile run's peak is the largest of::

    sampler  = copies x rows x vocabulary x 4 bytes + hidden states     logits are gathered: TP does not shrink them
    forward  = tokens x 2 bytes x (residuals x hidden + widest part of a layer on the rank)
    encoder  = patches of a full budget of images x 2 bytes x (3 x hidden + 5 x widest matrix on the rank)

Encoder outputs and workspaces of sparse attention come on top of the first two; MLA also up-projects the latents of a
long context. The widest part is the MLP (gate, up and their product), attention (q, k, v, output) or the buffers of the
routed experts. These are ``top_k`` rows of max(2 x intermediate, hidden) and of intermediate per token. Copies of the
logits and the ratios of measured peaks to these formulas are fitted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from math import hypot, isfinite, log2
from typing import Any

from planner.engine import BUFFER, CHUNK, EngineConfig, Layout, held_heads, held_piece, json_object, media_limits
from planner.errors import IllegalPlanError, InputError
from planner.model import Component, CompressedAttention, LatentAttention, Layer, Model, PerModel, Shard, Weight
from planner.resources import calibration_tables, package_dir, tables_of
from planner.units import GIB, MIB, Interval, to_base, whole_number

SHIPPED = "shipped"


def total(parts: Iterable[Interval]) -> Interval:
    """Sum of independent parts: errors add in quadrature."""
    parts = tuple(parts)
    mid = sum(part.mid for part in parts)
    below = hypot(*(part.mid - part.low for part in parts))
    above = hypot(*(part.high - part.mid for part in parts))
    return Interval(mid, mid - below, mid + above)


_ALWAYS, _NEVER = (0,), (10**6,)


@dataclass(frozen=True, slots=True)
class FittedConstant:
    name: str
    interval: Interval  #: in the unit used inside
    logs: tuple[str, ...]
    where: Mapping[str, Any] = field(default_factory=dict)  #: vendor, gpu, tensor_parallel_size, ...
    since: tuple[int, ...] = _ALWAYS  #: first release that it holds for
    until: tuple[int, ...] = _NEVER  #: first release that it no longer holds for
    note: str = ""
    origin: str = SHIPPED  #: the file it was read from, where that is not ours

    def holds(self, release: tuple[int, ...], where: Mapping[str, Any]) -> bool:
        return self.since <= release < self.until and all(where.get(key) == value for key, value in self.where.items())


@dataclass(frozen=True)
class Overheads:
    constants: "Constants"
    release: tuple[int, ...]
    where: Mapping[str, Any]

    def find(self, name: str) -> FittedConstant | None:
        return next((f for f in self.constants.by_name.get(name, ()) if f.holds(self.release, self.where)), None)

    def __getitem__(self, name: str) -> Interval:
        """The constant itself, in the unit used inside. KeyError when there is none."""
        found = self.find(name)
        if found is None:
            raise KeyError(f"no {name} for vLLM {'.'.join(map(str, self.release))} and {dict(self.where)}")
        return found.interval

    @property
    def non_torch_bytes(self) -> Interval:
        """Communicators, code of kernels, workspaces; straight in log2(TP) between known sizes."""
        ranks: int = self.where["tensor_parallel_size"]
        known: dict[int, Interval] = {}
        for fit in self.constants.by_name["non_torch"]:
            size = int(fit.where.get("tensor_parallel_size", ranks))
            if size not in known and fit.holds(self.release, {**self.where, "tensor_parallel_size": size}):
                known[size] = fit.interval
        below = max(size for size in known if size <= ranks)
        above = min((size for size in known if size >= ranks), default=below)
        share = 0.0 if below == above else log2(ranks / below) / log2(above / below)
        return known[below].scaled(1 - share).plus(known[above].scaled(share))

    @property
    def own(self) -> tuple[FittedConstant, ...]:
        names = self.constants.by_name
        return tuple(f for name in names if (f := self.find(name)) is not None and f.origin != SHIPPED)


@dataclass(frozen=True)
class Constants:
    """Constants by precedence: the first of a name that holds is the one that applies."""

    fits: tuple[FittedConstant, ...]

    @cached_property
    def by_name(self) -> dict[str, tuple[FittedConstant, ...]]:
        names = dict.fromkeys(fit.name for fit in self.fits)
        return {name: tuple(fit for fit in self.fits if fit.name == name) for name in names}

    def before(self, others: "Constants") -> "Constants":
        """These, and ``others`` where none of these holds."""
        return Constants(self.fits + others.fits)


@cache
def shipped() -> Constants:
    entries = {name: entry for name, entry in calibration_tables("memory").items() if name != "spread"}
    return Constants(parse_constants(entries, "memory.toml", origin=SHIPPED, hint="install planner again"))


def spread() -> dict[str, float]:
    """Relative spread of each constant over models on one GPU."""
    return dict(calibration_tables("memory")["spread"])


def parse_constants(table: Mapping[str, Any], where: str, *, hint: str, origin: str = "") -> tuple[FittedConstant, ...]:
    """The constants of a table in the format of ``memory.toml``, read from ``where``; InputError for any other."""
    found = []
    for name, entries in table.items():
        try:
            if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
                raise TypeError(f"it is no list of tables, [[{name}]]")
            found += [_read(name, entry, origin or where) for entry in entries]
        except KeyError as error:
            cause = f"{where} holds no memory constants: {name}: {error} is missing, or not known"
            raise InputError(cause, hint=hint) from error
        except (TypeError, ValueError, OverflowError) as error:
            raise InputError(f"{where} holds no memory constants: {name}: {str(error)[:200]}", hint=hint) from error
    return tuple(found)


def _read(name: str, entry: Mapping[str, Any], origin: str) -> FittedConstant:
    mid, low, high = (to_base(entry[key], entry["unit"]) for key in ("value", "low", "high"))
    if not low <= mid <= high or not isfinite(high - low):
        raise ValueError(f"{low} <= {mid} <= {high} does not hold")
    logs, where, note = entry["logs"], entry.get("where", {}), entry.get("note", "")
    scalars = isinstance(where, dict) and all(isinstance(value, str | int | float) for value in where.values())
    if not scalars or not all(isinstance(text, str) for text in (note, *logs)):
        raise TypeError("logs and note are texts, where is a table of texts and numbers")
    size = where.get("tensor_parallel_size", 1)
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"tensor_parallel_size {size!r} must be a number of GPUs")
    since, until = _release(entry.get("since"), _ALWAYS), _release(entry.get("until"), _NEVER)
    return FittedConstant(name, Interval(mid, low, high), tuple(logs), where, since, until, note, origin)


def _release(text: str | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if text and not isinstance(text, str):
        raise TypeError(f"{text!r} is no release, such as '0.11.0'")
    return tuple(int(part) for part in text.split(".")) if text else default


LOGIT_BYTES = 4  #: logits are turned into 32-bit numbers before sampling
#: Hidden vectors of a token alive at the widest point: residual, normed input, output and its reduced copy.
RESIDUALS = 4
#: Vectors of a patch alive in the vision encoder: of its hidden size on every rank, and of its widest matrix, which TP
#: divides (queries and keys in 32 bits while they are rotated, padded heads).
ENCODER_HIDDEN, ENCODER_WIDE = 3, 5
#: MLA up-projects the latents of so many tokens of context at once (``determine_chunked_prefill_workspace_size``).
LATENT_ROWS, LATENT_ROWS_BEFORE_0_11 = 64 * 1024, 128 * 1024
#: A sparse indexer gathers the keys of this many contexts (``get_max_prefill_buffer_size``), FlashMLA this many rows.
INDEXER_CONTEXTS, SPARSE_CONTEXTS = 40, 5
INDEXER_LOGITS_BYTES = 512 * 2**20  #: ``VLLM_SPARSE_INDEXER_MAX_LOGITS_MB``, from 0.15 on
COMPRESSED_CHUNK = 4  #: requests that DeepSeek-V4 gathers at once (``PREFILL_CHUNK_SIZE``)


@dataclass(frozen=True, slots=True)
class Images:
    """Sizes of the images that the profile run encodes: defaults of the image processors, in no ``config.json``."""

    patches: int = 4  #: merged into one token
    largest_tok: int = 16384  #: of one image: ``max_pixels`` of Qwen-VL, 12,845,056 / 28**2
    video_tok: int = 0  #: of one video whose frames share a number of pixels
    video_images: int = 0  #: of the largest size, in one video before 0.11: pairs of frames. One less since
    outputs: int = 1  #: hidden vectors of a token that the encoder returns
    media: Sequence[str] = ("image", "video")  #: that ``--limit-mm-per-prompt`` limits
    left_out_since: Sequence[int] = (0, 15)  #: release that loads no tower where all limits are 0
    token_pixels: int = 0  #: of an image, squares of patch x merge: ``max_pixels`` counts by them
    video_places: float = 0.0  #: places in the prompt that 0.11.0 to 0.13 count for a token of a video


_SIZES = tables_of(package_dir("memory") / "sizes.toml")
IMAGES = {model_type: Images(**sizes) for model_type, sizes in _SIZES["images"].items()}
CUT_TOWERS: Sequence[str] = _SIZES["cut_towers"]  #: over the ranks, whatever ``--mm-encoder-tp-mode`` says


@dataclass(frozen=True, slots=True)
class PeakTerms:
    logits_bytes: int  #: one copy
    hidden_bytes: int  #: alive while the logits are sampled
    forward_bytes: int
    transient_bytes: int  #: of attention, beside the forward pass
    encoder_bytes: int
    held_bytes: int  #: workspaces, and outputs of the encoder, alive during forward pass and sampling

    @property
    def scaled(self) -> dict[str, tuple[int, int]]:
        """For each constant of a peak: the bytes that it multiplies, and those that come on top."""
        held = self.held_bytes
        return {
            "sampler": (self.logits_bytes, self.hidden_bytes + held),
            "forward": (self.forward_bytes, self.transient_bytes + held),
            "encoder": (self.encoder_bytes, 0),
        }


def peak_terms(model: Model, config: EngineConfig, element_bytes: int, *, rocm: bool = False) -> PeakTerms:
    """The terms for a profile run of ``max_num_batched_tokens`` tokens of ``element_bytes`` bytes an element."""
    num_tokens, layout = config.max_num_batched_tokens, Layout.of(config)
    forward, transient = forward_bytes(model, layout, num_tokens, element_bytes), 0
    forward = max(forward, batched_bytes(model, config, element_bytes))
    up_projected = latent_elements(model, config) * element_bytes
    if up_projected:
        mixers = (m for m in model.distinct_mixers if isinstance(m, LatentAttention))
        width = max((_heads_width(mixer, layout) for mixer in mixers), default=0)
        latent = num_tokens * element_bytes * (RESIDUALS * model.hidden_size + width)
        if latent + up_projected > forward:
            forward, transient = latent, up_projected
    workspace, logits = sparse_bytes(model, config, rocm=rocm)
    encoder, outputs = encoder_bytes(model, config, element_bytes)
    return PeakTerms(
        logits_bytes=config.sampled_rows * model.vocab_size * LOGIT_BYTES,
        hidden_bytes=num_tokens * model.hidden_size * element_bytes,
        forward_bytes=forward,
        transient_bytes=transient + logits,
        encoder_bytes=encoder,
        held_bytes=outputs + workspace,
    )


def exchanged_rows(model: Model, config: EngineConfig) -> int:
    """Places for tokens of any rank at any expert, where each expert has its own; 0 for other exchanges."""
    if "batched" not in config.exchange:
        return 0
    chunk = (whole_number(config.env.get(CHUNK, "")) or 256) if config.version.release < (0, 20) else None
    experts = max(layer.moe.num_experts for layer in model.layers if layer.moe)
    return (chunk or config.max_num_batched_tokens) * (experts + config.redundant_experts)


def batched_bytes(model: Model, config: EngineConfig, element_bytes: int) -> int:
    """Tokens of all ranks at the experts of one, whoever is routed there: ``workspace_shapes`` of batched experts."""
    inner, outer = max(layer.moe.intermediate_size if layer.moe else 0 for layer in model.layers), model.hidden_size
    return exchanged_rows(model, config) * (element_bytes * (max(2 * inner, outer) + inner) + outer)


def exchange_bytes(model: Model, config: EngineConfig, *, several_nodes: bool) -> int:
    """DeepEP's buffers on one GPU, outside torch (``_make_all2all_kwargs`` of vLLM's ``all2all.py``).

    The batches of low latency: ``LowLatencyLayout`` of DeepEP, one buffer to send and one to receive for even layers
    and for odd ones, and NIXL's the same. Raises IllegalPlanError from 32 GiB on, as DeepEP's ``Buffer`` does."""
    if "buffers" not in config.exchange:
        return 0
    each = (whole_number(config.env.get(BUFFER, "")) or 1024) * MIB * config.all2all.startswith("deepep")
    if "batched" not in config.exchange:
        return each * (2 if several_nodes else 1)
    batches = 4 * exchanged_rows(model, config) * (2 * model.hidden_size + max(model.hidden_size // 32, 16))
    if each and batches >= 32 * GIB:
        most = int(config.max_num_batched_tokens * 32 * GIB / batches) // 8 * 8
        cause = (
            f"--all2all-backend {config.all2all}: buffers of {batches / GIB:.1f} GiB on each GPU, DeepEP has up to 32"
        )
        raise IllegalPlanError(cause, hint=f"use --max-num-batched-tokens {most} or less", max_num_batched_tokens=most)
    return batches + each


def latent_elements(model: Model, config: EngineConfig) -> int:
    """Elements that MLA up-projects from cached latents at once, on one rank (``forward`` of ``MLACommonImpl``)."""
    release, heads = config.version.release, config.tensor_parallel_size
    if release < (0, 8):
        return 0
    most = LATENT_ROWS_BEFORE_0_11 if release < (0, 11) else LATENT_ROWS
    rows = min(max(8 * config.max_model_len, 4 * config.max_num_seqs * config.block_size), most)
    widths = (
        held_heads(mixer.num_heads, heads) * (mixer.qk_nope_head_dim + mixer.v_head_dim)
        for mixer in model.distinct_mixers
        if isinstance(mixer, LatentAttention) and not mixer.indexer
    )
    return max(rows, config.max_num_seqs * config.block_size) * max(widths, default=0)


def sparse_bytes(model: Model, config: EngineConfig, *, rocm: bool) -> tuple[int, int]:
    """(workspace, logits) of sparse attention in the profile run: ``sparse_attn_indexer``, ``FlashMLASparseImpl`` and
    DeepSeek-V4 in 0.14.0 and 0.27.1 share one; on ROCm ``rocm_aiter_sparse_attn_indexer_fake``."""
    length, tokens, release = config.max_model_len, config.max_num_batched_tokens, config.version.release
    needs = [0]
    for mixer in model.distinct_mixers:
        ratio, indexer = 1, mixer.indexer if isinstance(mixer, LatentAttention | CompressedAttention) else None
        if isinstance(mixer, CompressedAttention) and mixer.compress_ratio:
            ratio = mixer.compress_ratio
            needs.append(COMPRESSED_CHUNK * (length // ratio + mixer.window + tokens) * mixer.head_dim * 2)
        if indexer and indexer.head_dim:
            needs.append(INDEXER_CONTEXTS * length // ratio * (indexer.head_dim + LOGIT_BYTES))
            if rocm:
                needs.append(tokens * (length // ratio) * LOGIT_BYTES)
        if isinstance(mixer, LatentAttention) and indexer and config.kv_cache_dtype.startswith("fp8"):
            needs.append(SPARSE_CONTEXTS * length * mixer.kv_elements_per_token * 2)
    if release < (0, 12) or not any(needs):
        return 0, 0
    return max(needs), INDEXER_LOGITS_BYTES if release >= (0, 15) else 0


def forward_bytes(model: Model, layout: Layout, num_tokens: int, element_bytes: int) -> int:
    return num_tokens * element_bytes * (RESIDUALS * model.hidden_size + _widest(model, layout))


@PerModel
def _widest(model: Model, layout: Layout) -> int:
    return max((_layer_width(layer, layout) for layer in dict.fromkeys(model.layers)), default=0)


def media_of(model: Model) -> list[str]:
    """Media that ``--limit-mm-per-prompt`` limits; none for a model of text alone."""
    media = [*IMAGES.get(model.model_type, Images()).media, *["audio"] * any("audio" in w.name for w in model.vision)]
    return media if model.vision else []


def leaves_tower_out(model: Model, limits: str | None, release: tuple[int, ...]) -> bool:
    """True if ``--limit-mm-per-prompt`` is 0 for all media of the model, and the engine then loads no tower."""
    counts, since = media_limits(limits or "{}"), IMAGES.get(model.model_type, Images()).left_out_since
    return bool(model.vision) and release >= tuple(since) and all(counts.get(name) == 0 for name in media_of(model))


def largest_media_tok(images: Images, config: EngineConfig, limits: Mapping[str, int]) -> int:
    """Tokens of the largest image or video within the limits (``get_mm_max_tokens_per_item`` of qwen2_vl.py)."""
    image, video, release = images.largest_tok, images.video_tok, config.version.release
    if images.token_pixels:  # ``_get_vision_size``
        image = _most_pixels(config, "images_kwargs") // images.token_pixels or image
        video = _most_pixels(config, "videos_kwargs") // images.token_pixels // 2 or video
    if images.video_images:  # ``get_num_frames_with_most_features``
        most = config.max_model_len // image - (release < (0, 10, 2))
        video = image * max(min(most, images.video_images - (release >= (0, 11))), 1)
    return max(image * (limits.get("image") != 0), video * (limits.get("video") != 0)) or image


def _most_pixels(config: EngineConfig, scope: str) -> int:
    given = json_object("--mm-processor-kwargs", config.mm_processor_kwargs or "{}", '{"max_pixels": 1003520}')
    given = {**given, **given.get(scope, {})}
    return int(given.get("max_pixels") or given.get("size", {}).get("longest_edge", 0))


def encoder_bytes(model: Model, config: EngineConfig, element_bytes: int) -> tuple[int, int]:
    """(peak of the vision encoder over a full budget of images, its outputs), on one rank. ``profile_run`` of
    ``v1/worker/gpu_model_runner.py`` keeps the outputs, 0.11.0 to 0.13 in a tensor of the budget's length."""
    repeated = [w.shape for w in model.vision if w.copies > 1 and len(w.shape) == 2]
    images, limits = IMAGES.get(model.model_type, Images()), media_limits(config.limit_mm_per_prompt or "{}")
    if not repeated or config.skip_mm_profiling or all(limits.get(name) == 0 for name in images.media):
        return 0, 0
    hidden, wide = min(map(min, repeated)), max(map(max, repeated))
    release, ranks = config.version.release, config.tensor_parallel_size
    copied, largest = (0, 11) <= release < (0, 14), largest_media_tok(images, config, limits)
    budget = max(config.max_num_batched_tokens, largest)
    items = budget // largest
    if copied and images.video_places and limits.get("video") != 0:
        budget, items, largest = max(budget, int(images.video_tok * images.video_places)), 1, images.video_tok
    rows = items * (budget if copied else largest) if config.engine == "V1" else 0
    if config.mm_encoder_tp_mode == "data" and model.model_type not in CUT_TOWERS:
        items, ranks = -(-items // ranks), 1
    width = element_bytes * (ENCODER_HIDDEN * hidden + ENCODER_WIDE * wide // ranks)
    return images.patches * items * largest * width, rows * images.outputs * model.hidden_size * element_bytes


def _layer_width(layer: Layer, layout: Layout) -> int:
    parts = {component: [w for w in layer.weights if w.component is component] for component in _PARTS}
    widths = [_flow(weights, layout) for component, weights in parts.items() if component in _DENSE]
    widths.append(_expert_width(layer, layout) + _flow(parts[Component.SHARED_EXPERT], layout))
    if isinstance(layer.mixer, LatentAttention):
        widths.append(_heads_width(layer.mixer, layout))
    return max(widths)


def _heads_width(mixer: LatentAttention, layout: Layout) -> int:
    per_head = 2 * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) + 2 * mixer.v_head_dim
    return held_heads(mixer.num_heads, layout.tensor_parallel_size) * per_head


def _flow(weights: Iterable[Weight], layout: Layout) -> int:
    pieces = ((w, held_piece(w, layout)) for w in weights if w.linear and len(w.shape) == 2)
    return sum(piece.inputs if w.shard is Shard.ROW else piece.outputs for w, piece in pieces)


def _expert_width(layer: Layer, layout: Layout) -> int:
    experts = [w for w in layer.weights if w.component is Component.ROUTED_EXPERT and len(w.shape) == 2]
    if layer.moe is None or not experts:
        return 0
    shapes = [held_piece(w, layout).shape for w in experts]
    inner = layer.moe.intermediate_size
    if not layout.enable_expert_parallel:
        inner = -(-inner // layout.expert_ranks)
    outer = max(max(shape) for shape in shapes)
    return layer.moe.top_k * (max(2 * inner, outer) + inner)


_DENSE = (Component.ATTENTION, Component.STATE, Component.MLP)
_PARTS = (*_DENSE, Component.SHARED_EXPERT)
