"""A grid of settings. With pandas a data frame, with matplotlib a chart too; without them a CSV file."""

import csv
from itertools import product
from pathlib import Path

from planner import Load, Serving

try:
    import pandas
except ImportError:
    pandas = None

serving = Serving("Qwen/Qwen3-8B", gpu="h100")
rows = []
for kv_cache_dtype, users in product(("auto", "fp8"), (4, 16, 64, 256)):
    engine = serving.changed(kv_cache_dtype=kv_cache_dtype, max_num_seqs=users)
    result = engine.predict(Load.closed_loop(users, input_len=2048, output_len=512, num_prompts=3 * users)).result
    rows.append(
        {
            "kv_cache_dtype": kv_cache_dtype,
            "users": users,
            "tokens_per_s": round(result["output_throughput"]),
            "tokens_per_s_per_user": round(1000 / result["mean_tpot_ms"], 1),
        }
    )

if pandas is None:
    with Path("sweep.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    print(f"sweep.csv: {len(rows)} rows")
else:
    frame = pandas.DataFrame(rows)
    frame.to_csv("sweep.csv", index=False)
    print(frame.pivot_table(index="users", columns="kv_cache_dtype", values="tokens_per_s"))
    try:
        axes = frame.set_index("tokens_per_s_per_user").groupby("kv_cache_dtype")["tokens_per_s"].plot(marker="o")
        axes.iloc[0].figure.savefig("sweep.svg")
    except ImportError:
        print("no matplotlib: no chart")
