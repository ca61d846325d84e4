"""The table of the documents' sections: none is left out, and what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

from workflow_cases import commands_in, files_of, in_container

from planner.commands.main import main
from planner.engine.launches import split_command

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "workflows.md"

#: The headings of the documents that say something to do; those of licences and tables stand beside them.
SECTIONS = {
    "Quick start recipe for Llama 3.3 70B, AMD MI355": (
        "Introduction", "License", "Weights", "Prerequisites", "Pull Docker Image", "Run Docker Container",
        "Prepare the AITER and vLLM packages", "Launch the vLLM Server", "Configs and Parameters", "Basic Test",
        "Verify Accuracy", "Benchmarking Performance", "Interpreting Performance Benchmarking Output",
    ),
    "vLLM FP8 latency and throughput on MI300X, vLLM 0.6.3": (
        "Overview", "Pull latest", "What is New", "Obtaining access to models", "System optimization",
        "Launch AMD vLLM Docker", "Downloading models with huggingface-cli", "Use pre-quantized models",
        "Quantize your own models", "Performance environment variables", "vLLM engine performance settings",
        "Latency Benchmark", "Throughput Benchmark", "Online Serving Benchmark", "CPX mode", "Speculative Decoding",
        "MMLU_PRO_Biology Accuracy Eval", "MLPerf Llama-2-70B", "Docker Manifest",
    ),
    "vLLM FP8 latency and throughput on MI300X, vLLM 0.9.1": (
        "Overview", "Pull latest Docker Image", "What is New", "Known Issues and Workarounds",
        "Throughput Measurements", "Latency Measurements", "Obtaining access to models", "System optimization",
        "Launch AMD vLLM Docker", "Downloading models with huggingface-cli", "Use pre-quantized models",
        "Quantize your own models", "Performance environment variables", "vLLM engine performance settings",
        "Latency Benchmark", "Throughput Benchmark", "Online Serving Benchmark", "Running DeepSeek-V3 and DeepSeek-R1",
        "CPX mode", "Speculative Decoding", "AITER use cases", "MMLU_PRO_Biology Accuracy Evaluation",
        "MLPerf Performance Results", "Docker Manifest", "Building AITER Image", "Changelog",
    ),
    "Quick start recipe for Llama 3.3 70B, NVIDIA Blackwell and Hopper": (
        "Introduction", "License", "Weights", "Prerequisites", "Build Docker Image", "Run Docker Container",
        "Launch the vLLM Server", "Configs and Parameters", "Basic Test", "Verify Accuracy", "Benchmarking Performance",
        "Interpreting benchmark_serving.py Output", "Balancing between Throughput and Latencies",
    ),
    "Steps to run a vLLM workload on MI300X partitions": (
        "Introduction", "One-Time Setup", "Launching the Container", "Cloning the Benchmark Suite", "Authentication",
        "How to Check if an LLM Fits within a CPX GPU?", "How do above partitions affect LLM models?", "GPU Selection",
        "Running the vLLM Benchmark",
    ),
}  # fmt: skip


def rows_by_document() -> dict[str, list[list[str]]]:
    rows: dict[str, list[list[str]]] = {}
    title = ""
    for line in DOCUMENTATION.read_text().splitlines():
        if line.startswith("## "):
            title = line[3:]
        elif line.startswith("|") and not line.startswith(("| ---", "| section", "| word")):
            rows.setdefault(title, []).append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_every_section_of_every_document_has_a_row() -> None:
    rows = rows_by_document()
    for document, sections in SECTIONS.items():
        named = [row[0] for row in rows[document]]
        missing = [section for section in sections if not any(section in name for name in named)]
        assert not missing, document


def test_every_row_names_what_exists_and_how_it_was_checked() -> None:
    rows = rows_by_document()
    words = {row[0] for row in rows.pop("How it was checked")}
    for document, table in rows.items():
        for row in table:
            assert len(row) == 4 and all(row), (document, row)
            assert set(row[2].split(", ")) <= words, row
            named = re.findall(r"`([^`]+)`", row[1])
            assert named or row[1].startswith("not available because"), row
            for what in named:
                if what.startswith("planner "):
                    assert main([what.split()[1], "--help"]) == 0, what
                else:
                    workflow, _, script = what.partition("/")
                    assert script in files_of(workflow), what
            if "flags" in row[2] and "bash" in row[2]:
                scripts = [files_of(*what.split("/")[:1])[what.partition("/")[2]] for what in named if "/" in what]
                assert any(split_command(in_container(line))[0] for s in scripts for line in commands_in(s)), row
