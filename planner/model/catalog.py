"""The bundled catalog: architecture facts of well-known models, so that they need no network.

One JSON file per organisation in ``planner/model/entries``, one entry per hub id. An entry holds the keys of
``config.json`` that decide shapes, context, dtype and quantisation, and nothing else::

    "org/model":          {"kind": "verbatim", "from": SOURCE, "config": {...}}
    "org/model-instruct": {"kind": "verbatim", "from": SOURCE, "like": "org/model", "config": {what differs}}
    "org/model-FP8":      {"kind": "trimmed", "from": SOURCE, "base": "org/model", "weight_dtype": "fp8",
                           "config": {"quantization_config": {...}}}
    "org/model-AWQ":      {"kind": "form", "base": "org/model", "weight_dtype": "int4-awq"}
    "org/model-FP8-new":  {"kind": "form", "base": "org/model", "weight_dtype": "fp8", "form_of": "org/model-FP8"}
    "org/old-name":       {"alias_of": "org/model", "why": "was renamed on the hub"}

``like`` copies another entry. ``base`` copies another entry without its quantisation; the entry is a quantised
checkpoint of that model, or its EAGLE head where ``weight_dtype`` is absent. ``form_of`` takes the quantisation of
another checkpoint. A null in ``config`` removes a key. In lists of modules ``layers.{0-3,7}.mlp`` stands for five
names. ``KINDS`` says how far to trust each kind."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from planner.model.architecture import Model
from planner.resources import package_dir, tables_of

Record = dict[str, Any]
ENTRIES = package_dir("model") / "entries"
#: The sources of an entry, each with the note for its user.
KINDS: dict[str, str] = tables_of(package_dir("model") / "names.toml")["kinds"]
#: The GPU vendor that a publisher makes checkpoints for; those of other publishers run on both.
_MADE_FOR: dict[str, tuple[str, ...]] = {"amd": ("amd",), "nvidia": ("nvidia",)}
_SERVED_ON: dict[str, tuple[str, ...]] = {"nvfp4": ("nvidia",)}  #: formats that vLLM serves on GPUs of one vendor only
_SEPARATORS = re.compile(r"[-_. ]")
_WORD = re.compile(r"\d+(?:\.\d+)*[a-z]*|[a-z]+")
#: Words of an id that people leave out: publishers in front, forms of the same model behind.
_PUBLISHERS, _FORMS = ("meta", "nvidia"), ("instruct", "it", "chat", "hf", "bf", "16")
_QUANTISED = ("quantization_config", "expert_dtype")  #: keys that an unquantised config lacks
_RANGES = re.compile(r"\{([\d,-]+)\}")


@dataclass(frozen=True)
class CatalogEntry:
    id: str  #: as the hub spells it
    kind: str  #: a key of ``KINDS``
    source: str  #: where the facts were read
    config: Record  #: the keys of ``config.json`` that matter
    base: str | None = None  #: whose quantised checkpoint this is
    weight_dtype: str | None = None  #: of a quantised checkpoint
    form_of: str | None = None  #: the checkpoint whose quantisation is assumed for this one
    kv_cache_dtype: str | None = None  #: that a quantised checkpoint carries scales for
    gated: bool | None = None  #: whether the hub asks to accept a licence; None where that is not known
    renamed: tuple[str, ...] = ()  #: how the name that was asked for led here, where it is another one

    @property
    def notes(self) -> tuple[str, ...]:
        form = f"those of {self.form_of}" if self.form_of else f"those usual for {self.weight_dtype}"
        caveat = KINDS[self.kind].format(form=form)
        return (*self.renamed, caveat) if caveat else self.renamed

    def model(self) -> Model:
        """The model, built from the facts. Raises UnsupportedModelError for an architecture without a family."""
        from planner.model.build import model_from_config

        model = model_from_config(self.config, model_id=self.id)
        if self.kind == "form" and self.weight_dtype and not self.form_of:
            from planner.model.quantization import as_quantized

            model = as_quantized(model, self.weight_dtype)
            form = replace(model.quantization, kv_cache_dtype=self.kv_cache_dtype, assumed=True)
            model = replace(model, quantization=form)
        return replace(model, gated=self.gated)


@dataclass(frozen=True)
class Checkpoint:
    id: str
    weight_dtype: str
    kv_cache_dtype: str | None  #: that it carries scales for
    publisher: str  #: organisation on the hub
    platforms: tuple[str, ...]  #: vendors of the GPUs that serve it: ``amd``, ``nvidia``


def catalog_ids() -> list[str]:
    """Every hub id of the catalog, sorted; other names of the same models are left out."""
    return sorted((record["id"] for record in _everything() if "alias_of" not in record), key=str.lower)


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of a hub id in any case, of an older name of it, or of a name that means one model, see `meant_ids`."""
    ids = [name] if "/" in name else meant_ids(name)
    record = _organisation(ids[0].lower().partition("/")[0]).get(ids[0].lower()) if len(ids) == 1 else None
    if record is None:
        return None
    renamed = () if "/" in name else (f"{name} is taken for {record['id']}",)
    if "alias_of" in record:
        renamed = (f"{record['id']} {record['why']}: {record['alias_of']} is taken",)
        record = _known(record["alias_of"])
    optional = {key: record.get(key) for key in ("base", "weight_dtype", "form_of", "kv_cache_dtype", "gated")}
    return CatalogEntry(
        record["id"], record["kind"], record.get("from", ""), _config(record), renamed=renamed, **optional
    )


def meant_ids(name: str) -> list[str]:
    """Ids that a short name may mean, whatever separates its words: one if it means a single model.

    With an organisation before a slash, only its models.

    >>> meant_ids("llama 3.3 70b"), meant_ids("deepseek r1")
    (['meta-llama/Llama-3.3-70B-Instruct'], ['deepseek-ai/DeepSeek-R1'])
    >>> meant_ids("gpt-oss"), meant_ids("gptoss 120b")
    (['openai/gpt-oss-120b', 'openai/gpt-oss-20b'], ['openai/gpt-oss-120b'])
    """
    organisation, slash, name = name.lower().rpartition("/")
    asked = _WORD.findall(name)
    if not asked:
        return []
    rests: dict[str, list[str]] = {}
    for records in ([r for r in _everything() if "base" not in _known(str(r.get("alias_of", r["id"])))], _everything()):
        for record in records:
            rest, target = _rest(asked, record["id"]), str(record.get("alias_of", record["id"]))
            if slash and target.lower().partition("/")[0] != organisation:
                continue
            if rest is not None and len(rest) <= len(rests.get(target, rest)):
                rests[target] = rest
        if rests:
            break
    if not rests:
        joined = _SEPARATORS.sub("", name)
        ids = [i for i in catalog_ids() if i.lower().startswith(organisation + slash)]
        return [i for i in ids if _SEPARATORS.sub("", i.partition("/")[2].lower()) == joined]
    models = {i: tuple(word for word in rest if word not in _FORMS) for i, rest in rests.items()}
    plain = [i for i, words in models.items() if not words] or list(models)
    if len({models[i] for i in plain}) == 1:  # one model: of its forms the one that was named, else the shortest
        shortest = min(len(rests[i]) for i in plain)
        plain = [i for i in plain if len(rests[i]) == shortest]
    bare = [word for word in asked if word not in _FORMS]
    if bare != asked and models[plain[0]]:  # a model of other words has the form: the one without it may be meant
        rests |= {i: [] for i in catalog_ids() if _rest(bare, i) == [] and i.lower().startswith(organisation + slash)}
        plain += [i for i in rests if not rests[i] and i not in plain]
    return sorted(plain, key=lambda i: (len(rests[i]), i.lower()))


def _rest(asked: list[str], repo_id: str) -> list[str] | None:
    words, at, rest = _WORD.findall(repo_id.partition("/")[2].lower()), 0, list[str]()
    if words[0] in _PUBLISHERS and asked[0] != words[0]:
        words = words[1:]
    if words[0] != asked[0]:
        return None
    for word in asked:
        if word not in words[at:]:
            return None
        place = words.index(word, at)
        rest, at = rest + words[at:place], place + 1
    return rest + words[at:]


def nearest_ids(name: str) -> list[str]:
    """Up to three ids that look like ``name``: first those that begin with it, then those that hold it."""
    organisation, _, last = name.rpartition("/")
    ids = _alike(name, {i: i for i in catalog_ids()}) if organisation else []
    return ids or _alike(last, {i.partition("/")[2]: i for i in catalog_ids()})


def _alike(name: str, spelled: dict[str, str]) -> list[str]:
    asked = _SEPARATORS.sub("", name.lower())
    plain = {_SEPARATORS.sub("", spelling.lower()): i for spelling, i in spelled.items()}
    holding = (known for known in plain if asked and asked in known)
    longer = sorted(holding, key=lambda known: (not known.startswith(asked), len(known)))
    return [plain[known] for known in dict.fromkeys(longer + get_close_matches(asked, plain, cutoff=0.6))][:3]


def quantized_checkpoints(base_id: str) -> list[Checkpoint]:
    """The quantised checkpoints of a model that the catalog knows, sorted by id; empty where there are none."""
    base = find_entry(base_id)
    if base is None:
        return []
    checkpoints = []
    for record in sorted(_everything(), key=lambda record: record["id"].lower()):
        if record.get("base") == base.id and "weight_dtype" in record:
            publisher, dtype = record["id"].partition("/")[0], record["weight_dtype"]
            platforms = _SERVED_ON.get(dtype) or _MADE_FOR.get(publisher.lower(), ("amd", "nvidia"))
            checkpoints.append(Checkpoint(record["id"], dtype, record.get("kv_cache_dtype"), publisher, platforms))
    return checkpoints


def _config(record: Record) -> Record:
    keys, parent = record.get("config", {}), record.get("like", record.get("base"))
    inherited = _config(_known(parent)) if parent else {}
    if "base" in record:
        inherited = {key: value for key, value in inherited.items() if key not in _QUANTISED}
    if "form_of" in record:
        inherited["quantization_config"] = _config(_known(record["form_of"]))["quantization_config"]
    return _overlaid(inherited, {key: _spread(v) if key == "quantization_config" else v for key, v in keys.items()})


def _overlaid(under: Record, over: Record) -> Record:
    merged = dict(under)
    for key, value in over.items():
        nested = key.endswith("_config") and key != "quantization_config"
        if nested and isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _overlaid(merged[key], value)
        elif value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _spread(value: Any) -> Any:
    """A quantization_config with every ``{0-3,7}`` in a module's name written out."""
    if isinstance(value, dict):
        return {name: _spread(inner) for key, inner in value.items() for name in _names(key)}
    if isinstance(value, list):
        return [name for item in value for name in (_names(item) if isinstance(item, str) else [_spread(item)])]
    return value


def _names(text: str) -> list[str]:
    match = None if text.startswith("re:") else _RANGES.search(text)
    if match is None:
        return [text]
    ends = (part.partition("-") for part in match[1].split(","))
    numbers = (n for low, _, high in ends for n in range(int(low), int(high or low) + 1))
    return [f"{text[: match.start()]}{number}{text[match.end() :]}" for number in numbers]


@cache
def _files() -> dict[str, Path]:
    # by organisation in lower case; a name that a user gives is looked up here, never made a path
    return {path.stem: path for path in ENTRIES.glob("*.json")}


@cache
def _organisation(name: str) -> dict[str, Record]:
    path = _files().get(name)
    records: dict[str, Record] = json.loads(path.read_text(encoding="utf-8")) if path else {}
    return {key.lower(): {"id": key, **record} for key, record in records.items()}


def _known(name: str) -> Record:
    return _organisation(name.lower().partition("/")[0])[name.lower()]


def _everything() -> Iterator[Record]:
    for organisation in sorted(_files()):
        yield from _organisation(organisation).values()
