"""Write down what one real vLLM accepts: every option of its parsers, its variables, its value lists.

Run it with an interpreter that can import the vLLM in question (an installed one, or an unpacked wheel or source
distribution on ``PYTHONPATH``; compiled parts are not needed), then merge the files of all versions::

    PYTHONPATH=vllm-0.11.0 python dump_parsers.py 0.11.0 vllm-0.11.0 > dumps/0.11.0.json
    python build_table.py dumps planner/engine/flags.json

What cannot be imported is left out and named under ``errors``.
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib
import json
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARG_PARSERS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")
REGISTRIES = ("vllm.v1.attention.backends.registry", "vllm.attention.backends.registry")
#: Lists of their own below, and settings that planner reads itself.
OTHER_LISTS = {"kv_cache_dtype", "quantization", "tool_call_parser", "reasoning_parser"}
OTHER_LISTS |= {"dtype", "scheduling_policy", "mm_encoder_tp_mode"}
SCRIPTS = ("benchmark_serving.py", "benchmark_throughput.py", "benchmark_latency.py")


def first(modules: tuple[str, ...], name: str) -> Any:
    """Attribute ``name`` of the first module that has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {modules} has {name}")


def options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Option strings of a parser, hidden ones too: ``switch`` takes no value, ``maybe`` may, ``value`` needs one."""
    return {
        name: "switch" if action.nargs == 0 else "maybe" if action.nargs == "?" else "value"
        for name, action in parser._option_string_actions.items()
    }


def serve() -> dict[str, str]:
    new_parser = first(PARSER_CLASSES, "FlexibleArgumentParser")
    found = {"--config": "value"} | options(first(ARG_PARSERS, "make_arg_parser")(new_parser(prog="vllm serve")))
    try:  # options that only the sub-command of the installed program has
        command = first(("vllm.entrypoints.cli.serve",), "ServeSubcommand")()
        return found | options(command.subparser_init(new_parser(prog="vllm").add_subparsers()))
    except (ImportError, TypeError):
        return found


def choices() -> dict[str, list[str]]:
    """The closed lists of values: of the server's options, and of enumerations behind its JSON."""
    parser = first(ARG_PARSERS, "make_arg_parser")(first(PARSER_CLASSES, "FlexibleArgumentParser")())
    found = {
        name[2:].replace("-", "_"): [value for value in action.choices if isinstance(value, str)]
        for name, action in parser._option_string_actions.items()
        if action.choices and action.nargs in (None, "?") and name.startswith("--")
    }
    readers: dict[str, Callable[[], Any]] = {
        "attention_backend": lambda: first(REGISTRIES, "AttentionBackendEnum").__members__,
        "cudagraph_mode": lambda: first(("vllm.config.compilation", "vllm.config"), "CUDAGraphMode").__members__,
        "distributed_executor_backend": lambda: typing.get_args(
            first(("vllm.config.parallel", "vllm.config"), "DistributedExecutorBackend")
        ),
    }
    for name, read in readers.items():
        with contextlib.suppress(ImportError):
            found[name] = list(read())
    return {name: list(filter(None, found[name])) for name in sorted(found.keys() - OTHER_LISTS)}


def bench(name: str, tree: Path) -> dict[str, str]:
    parser = first(PARSER_CLASSES, "FlexibleArgumentParser")(prog="vllm bench")
    try:
        benchmark = importlib.import_module(f"vllm.benchmarks.{name}")
    except ImportError:  # something that only a GPU build has
        return script(tree / "vllm" / "benchmarks" / f"{name}.py")
    return options(benchmark.add_cli_args(parser) or parser)


def script(path: Path) -> dict[str, str]:
    """Options of a script that builds its parser only when it runs: read off its source."""
    source = path.read_text()
    found = {"--help": "switch"}
    for call in ast.walk(ast.parse(source)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
            action = next(
                (k.value.value for k in call.keywords if k.arg == "action" and isinstance(k.value, ast.Constant)), ""
            )
            found.update(dict.fromkeys(names, "switch" if action == "store_true" else "value"))
    if "--model" not in found and "add_cli_args" not in source:
        raise LookupError(f"{path.name} only points to its successor")
    engine = next((n for n in ("AsyncEngineArgs", "EngineArgs") if f" {n}.add_cli_args" in source), None)
    if engine:
        parser = first(PARSER_CLASSES, "FlexibleArgumentParser")()
        arguments = importlib.import_module("vllm.engine.arg_utils")
        found |= options(getattr(arguments, engine).add_cli_args(parser))
    return found


def keys(name: str) -> list[str]:
    """Keys that a configuration class takes."""
    module = importlib.import_module("vllm.config")
    config = getattr(module, name, None) or getattr(module.CompilationConfig, name, None)
    if config is None:
        config = getattr(importlib.import_module("vllm.config.compilation"), name)
    if dataclasses.is_dataclass(config):
        return [f.name for f in dataclasses.fields(config) if f.init]
    return list(config.model_fields)


def configurations(tree: Path) -> dict[str, list[str]]:
    """Keys of the classes that options of JSON build, and of those inside them, by option; read off the sources.

    Three are left to ``keys``. Options whose JSON is a plain dictionary take any key.
    """
    config = tree / "vllm" / "config"
    files = config.glob("*.py") if config.is_dir() else [config.with_suffix(".py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text()))]
    nodes += ast.walk(ast.parse((tree / "vllm" / "engine" / "arg_utils.py").read_text()))
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    found: dict[str, list[str]] = {}

    def fields(name: str) -> dict[str, str]:
        """Annotations of the fields that a constructor takes, those of the base classes too."""
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
        own = {
            line.target.id: ast.unparse(line.annotation)
            for line in classes[name].body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            if "ClassVar" not in ast.unparse(line.annotation)
            if not re.search(r"init=False|PrivateAttr", ast.unparse(line.value) if line.value else "")
        }
        return {field: text for base in bases for field, text in fields(base).items()} | own

    def read(options: dict[str, str]) -> None:
        for option, annotation in options.items():
            name = next((word for word in re.findall(r"\w+Config", annotation) if word in classes), None)
            if option.endswith("_config") and name and option not in found and fields(name):
                found[option] = list(fields(name))
                read(fields(name))

    read(fields("EngineArgs"))
    return found


def kv_cache_dtypes() -> list[str]:
    try:
        return list(typing.get_args(first(("vllm.config.cache", "vllm.config"), "CacheDType")))
    except ImportError:
        new_parser = first(PARSER_CLASSES, "FlexibleArgumentParser")
        parser = first(ARG_PARSERS, "make_arg_parser")(new_parser())
        return list(next(a.choices for a in parser._actions if "--kv-cache-dtype" in a.option_strings))


def variables() -> list[str]:
    return list(importlib.import_module("vllm.envs").environment_variables)


def quantizations(which: str = "QUANTIZATION_METHODS") -> list[str]:
    return list(getattr(importlib.import_module("vllm.model_executor.layers.quantization"), which, ()))


def parsers(kind: str, *folders: str) -> list[str]:
    """Names that the parsers of tool calls or of reasoning are registered under, read off their sources."""
    names: set[str] = set()
    for path in (path for folder in folders for path in Path(folder).glob("*.py")):
        source = path.read_text()
        for given in re.findall(kind + r'ParserManager\.register_module\(\s*(?:name=)?(\[[^\]]*\]|"[^"]*")', source):
            names.update(re.findall(r'"([\w.-]+)"', given))
        if path.name == "__init__.py":
            names.update(re.findall(r'^    "([\w.-]+)": \(', source, re.MULTILINE))
    return sorted(names)


def main(version: str, tree: Path) -> None:
    readers: dict[str, Callable[[], Any]] = {
        "serve": serve,
        "bench serve": lambda: bench("serve", tree),
        "bench throughput": lambda: bench("throughput", tree),
        "bench latency": lambda: bench("latency", tree),
        **{name: lambda name=name: script(tree / "benchmarks" / name) for name in SCRIPTS},
        "env": variables,
        "kv_cache_dtype": kv_cache_dtypes,
        "quantization": quantizations,
        "deprecated_quantization": lambda: quantizations("DEPRECATED_QUANTIZATION_METHODS"),
        "compilation_config": lambda: keys("CompilationConfig"),
        "pass_config": lambda: keys("PassConfig"),
        "speculative_config": lambda: keys("SpeculativeConfig"),
        "tool_call_parser": lambda: parsers(
            "Tool", f"{tree}/vllm/tool_parsers", f"{tree}/vllm/entrypoints/openai/tool_parsers"
        ),
        "reasoning_parser": lambda: parsers(
            "Reasoning", f"{tree}/vllm/reasoning", f"{tree}/vllm/entrypoints/openai/reasoning_parsers"
        ),
    }
    found: dict[str, Any] = {"version": version, "errors": {}, **configurations(tree), **choices()}
    for name, read in readers.items():
        try:
            found[name] = read()
        except Exception as error:  # whatever an old tree throws is part of the record
            found["errors"][name] = f"{type(error).__name__}: {error}"
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
