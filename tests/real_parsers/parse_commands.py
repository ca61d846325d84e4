"""Parse command lines with the parsers of an installed (or unpacked) vLLM: no engine, no weights.

Reads a JSON list of argument lists from standard input and writes a JSON list of what each parser said, null where
it agreed. Runs in vLLM's own interpreter and imports nothing of the planner.
"""

import contextlib
import importlib
import io
import json
import sys
from typing import Any

BENCHMARKS = ("serve", "throughput", "latency")
#: Where the parser of ``vllm serve`` has lived, newest first.
CLI_ARGS = (
    "vllm.entrypoints.common.cli_args",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.entrypoints.openai.cli_args",
)


#: Options of the scripts that came before ``vllm bench``, beside those of the engine. The scripts are no part of the
#: package: of their commands the engine's own parser judges the engine's options.
OF_SCRIPTS = frozenset((
    "--input-len", "--output-len", "--batch-size", "--num-iters", "--num-iters-warmup", "--num-prompts",
    "--output-json", "--backend", "--dataset", "--n",
))  # fmt: skip


def first(modules: tuple[str, ...], name: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"none of {modules} has {name}")


def parsers() -> dict[str, Any]:
    """The parser of each command that this vLLM has."""
    new_parser = first(("vllm.utils.argparse_utils", "vllm.utils"), "FlexibleArgumentParser")
    found = {"serve": first(CLI_ARGS, "make_arg_parser")(new_parser(prog="vllm serve"))}
    found["script"] = importlib.import_module("vllm.engine.arg_utils").EngineArgs.add_cli_args(new_parser())
    for name in BENCHMARKS:
        parser = new_parser(prog=f"vllm bench {name}")
        try:
            found[f"bench {name}"] = importlib.import_module(f"vllm.benchmarks.{name}").add_cli_args(parser) or parser
        except ModuleNotFoundError:
            continue
        except ImportError as error:  # something that only a GPU build has
            found[f"bench {name}"] = f"not judged: {error}"
    return found


def of_script(argv: list[str], known: dict[str, Any]) -> str | None:
    """The same of ``python3 .../benchmark_NAME.py ...``."""
    if "serving" in argv[1]:
        return "not judged: the client is no part of the package"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            _, left = known["script"].parse_known_args(argv[2:])
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    unknown = [word for word in left if word.startswith("-") and word not in OF_SCRIPTS]
    return f"unrecognized arguments: {' '.join(unknown)}" if unknown else None


def verdict(argv: list[str], known: dict[str, Any]) -> str | None:
    """What the parser says of ``vllm serve MODEL ...`` or ``vllm bench NAME ...``; None when it agrees."""
    if argv[0].startswith("python"):
        return of_script(argv, known)
    words = argv[1:]
    command = " ".join(words[:2]) if words[0] == "bench" else words[0]
    rest = words[len(command.split()) :]
    if command == "serve":  # the sub-command takes the model first, its parser by name
        rest = ["--model", *rest]
    if command not in known:
        return f"no command {command!r}"
    if isinstance(known[command], str):
        return str(known[command])
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            known[command].parse_args(rest)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:  # whatever it throws is the verdict
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    known = parsers()
    json.dump([verdict(argv, known) for argv in json.load(sys.stdin)], sys.stdout)
