"""Which request rate still meets the latency targets?"""

from planner import Load, Serving

TARGETS_MS = {"p99_ttft_ms": 1000.0, "p99_tpot_ms": 30.0}

serving = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu="l40s", weight_dtype="fp8")
load = Load.open_loop(1.0, input_len=1024, output_len=256, num_prompts=400)

best = 0.0
for rate in (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
    result = serving.predict(load.at_rate(rate, 400), percentiles=(99,)).result
    # the upper end of the 90 % interval: the target is then met with 95 % probability
    upper = {name: result[f"{name}_hi"] for name in TARGETS_MS}
    missed = [name for name, limit in TARGETS_MS.items() if upper[name] > limit]
    shown = ", ".join(f"{name} up to {value:.0f}" for name, value in upper.items())
    print(f"{rate:4.1f} requests/s: {shown}{' (missed: ' + ', '.join(missed) + ')' if missed else ''}")
    if not missed:
        best = rate
print(f"meets the targets up to {best:.1f} requests/s")
