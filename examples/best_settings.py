"""Which settings meet a goal, and which scripts launch them?"""

from planner import recommend_plans, write_scripts

answer = recommend_plans("meta-llama/Llama-3.1-8B-Instruct", "mi300x", goal="max-throughput", input_len=2048)
plan = answer.best
print(
    f"{plan.model}, TP {plan.tensor_parallel_size}, KV cache {plan.kv_cache_dtype}, {plan.max_num_seqs} sequences: "
    f"{plan.predicted['output_throughput']:.0f} output tokens/s"
)
files = write_scripts(answer, "plans")
print("plans/:", ", ".join(sorted(files)))
