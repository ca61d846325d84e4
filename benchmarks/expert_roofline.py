"""Fit the roofline of routed experts to published timings of grouped GEMMs, with and without overlap.

    python benchmarks/expert_roofline.py FOLDER

``FOLDER`` holds the kernel tables. Writes a section of ``benchmarks/results/kernels.md``: for each GPU and precision
the error of both forms, and the launch and the shares of peaks of the one that predictions use::

    longer    launch + max(arithmetic of rows + tile for each expert, weights + 2 passes over the rows)
    sum       launch + arithmetic + weights + 3 passes over the rows

Each takes a launch, a share of both peaks and an exponent of the tokens from the block; ``longer`` a tile too.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

import kernel_surfaces as surfaces
from fit.kernel_work import PRECISIONS
from kernel_surfaces import Block
from planner.timing.step import distinct_experts

START = {"launch": 3e-5, "flop": 0.4, "bandwidth": 0.8, "exponent": 0.9, "tile": 16.0}
FORMS = {"longer": tuple(START), "sum": tuple(START)[:-1]}
LEAST_ROWS = 100
CLOSE = np.log(1.25)


def blocks_of(folder: Path) -> Iterator[Block]:
    """Experts with a gate on one GPU or cut by TP, routed by a power law."""
    for block in surfaces.experts_blocks(folder):
        at = block.work.at
        gated = (at["topk"] != 22) & (at["hidden"] != 2688)  # Nemotron's have none
        chosen = surfaces.pick(block, gated & (at["skew"] > 1) & (at["ep"] == 1))
        if len(chosen.us) >= LEAST_ROWS:
            yield surfaces.cleaned(chosen)


def seconds(block: Block, form: str, has: dict[str, float]) -> np.ndarray:
    """The time of each row of ``block``."""
    at = {name: np.broadcast_to(value, block.us.shape) for name, value in block.work.at.items()}
    weight_bytes, _, dtypes = PRECISIONS[block.precision.split("/")[0]]
    peaks = surfaces.peaks_of(block.gpu)
    flop_per_s = next(peaks.flop_per_s[dtype] for dtype in dtypes if dtype in peaks.flop_per_s) * has["flop"]
    experts, params = at["held"] * at["ep"], 3 * at["hidden"] * at["inner"]
    tokens = at["rows"] * experts / at["topk"]
    touched = distinct_experts(experts, at["topk"], tokens, has["exponent"]) / at["ep"]
    rows, passes = tokens * at["topk"] / at["ep"], 2 if form == "longer" else 3
    row_bytes = 2 * (passes * at["hidden"] + 3 * at["inner"])
    memory_s = (touched * params * weight_bytes + rows * row_bytes) / (peaks.bytes_per_s * has["bandwidth"])
    compute_s = 2 * params * (rows + has.get("tile", 0.0) * touched) / flop_per_s
    busy_s: np.ndarray = np.maximum(compute_s, memory_s) if form == "longer" else compute_s + memory_s
    return has["launch"] + busy_s


def fitted(block: Block, form: str) -> tuple[dict[str, float], np.ndarray]:
    """What fits ``block`` best, and the logarithms of predicted over measured."""
    names = FORMS[form]

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.log(seconds(block, form, dict(zip(names, np.exp(logs), strict=True))) / (block.us * 1e-6))

    start = np.log([START[name] for name in names])
    found = least_squares(errors, start, loss="soft_l1", f_scale=0.15)
    return dict(zip(names, np.exp(found.x), strict=True)), errors(found.x)


def table(blocks: list[Block]) -> str:
    """One line for each block."""
    head = ("GPU", "precision", "rows", "longer: error", "in 0.8 to 1.25", "sum: error", "in 0.8 to 1.25")
    lines = [f"| {' | '.join((*head, 'launch', 'FLOP/s', 'bytes/s', 'exponent'))} |", "|" + " --- |" * 11]
    every: dict[str, list[np.ndarray]] = {form: [] for form in FORMS}
    for block in blocks:
        cells = [block.gpu, block.precision, f"{len(block.us):,}"]
        for form in FORMS:
            has, errors = fitted(block, form)
            every[form].append(errors)
            cells += [f"{np.median(np.abs(errors)):.1%}", f"{np.mean(np.abs(errors) < CLOSE):.0%}"]
        cells += [f"{has['launch'] * 1e6:.0f} us", *(f"{has[name]:.2f}" for name in FORMS["sum"][1:])]
        lines.append(f"| {' | '.join(cells)} |")
    said = []
    for form, found in every.items():
        errors = np.abs(np.concatenate(found))
        said.append(f"{form} {np.median(errors):.1%}, {np.mean(errors < CLOSE):.0%} within 0.8 to 1.25")
    return "\n".join([f"Median error over all rows: {'; '.join(said)}.", "", *lines])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    surfaces.replace_section("roofline", table(list(blocks_of(folder))))


if __name__ == "__main__":
    main()
