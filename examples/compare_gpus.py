"""Rows of an answer: which GPUs hold a model, as CSV. Every answer has ``to_dict``, ``to_rows`` and ``to_text``."""

import csv
from pathlib import Path

from planner import list_fits

answer = list_fits("openai/gpt-oss-120b", ["h100", "h200", "mi300x", "b200", "l40s"], max_model_len=32_768)
print(answer)
rows = answer.to_rows()
with Path("fits.csv").open("w", newline="") as file:
    table = csv.DictWriter(file, rows[0])
    table.writeheader()
    table.writerows(rows)
print(f"fits.csv: {len(rows)} rows")
