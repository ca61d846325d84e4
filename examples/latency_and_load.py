"""How do TTFT and TPOT grow with the load? Closed loop: a fixed number of users. Open loop: a rate of arrivals."""

from planner import Load, Serving

serving = Serving("meta-llama/Llama-3.1-8B-Instruct", gpu="mi300x")

print("users  tokens/s  mean TPOT (90 % interval), ms")
for users in (1, 8, 32, 128):
    load = Load.closed_loop(users, input_len=1024, output_len=256, num_prompts=5 * users)
    result = serving.predict(load).result
    tpot, low, high = (result[f"mean_tpot_ms{end}"] for end in ("", "_lo", "_hi"))
    print(f"{users:5}  {result['output_throughput']:8.0f}  {tpot:.1f} ({low:.1f} to {high:.1f})")

load = Load.open_loop(4.0, input_len=1024, output_len=256, num_prompts=400)
result = serving.predict(load).result
print(f"4 requests/s: p99 TTFT {result['p99_ttft_ms']:.0f} ms, mean E2EL {result['mean_e2el_ms']:.0f} ms")
