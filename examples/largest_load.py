"""Which request rate still meets the latency targets?"""

from planner import Load, Serving

serving = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu="l40s", weight_dtype="fp8")
load = Load.open_loop(1.0, input_len=1024, output_len=256, num_prompts=400)

capacity = serving.capacity(load, ttft_ms=1000, tpot_ms=30, percentile=99, confidence=0.8)
most = capacity.largest()
if most is None:
    print("even a single request misses a target")
else:
    low, high = capacity.interval()
    print(f"{most.value:.1f} requests/s, 90 % interval {low:.1f} to {high:.1f}; limited by {most.bound_by}")
    for confidence in (0.5, 0.8, 0.95):
        print(f"  {confidence:.0%} confidence: {capacity.carried(confidence):.1f} requests/s")
