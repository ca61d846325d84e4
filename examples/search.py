"""Which engines of two GPUs carry a load under latency targets on the fewest GPUs?"""

from planner import Load, Objective, Search, Serving, Space, Targets

servings = Serving.on_each("meta-llama/Llama-3.1-8B-Instruct", ["h100", "l40s"])
load = Load.open_loop(40.0, input_len=1024, output_len=256)
targets = Targets.of(ttft_ms=1000, tpot_ms=40, value=load.request_rate)

search = Search(Space(servings), Objective("balanced", load, targets))
for ranking in search.run():
    if ranking.best:
        config = ranking.best.config
        settings = f"TP {config.tensor_parallel_size}, {config.kv_cache_dtype} KV cache"
        print(f"{ranking.profile.id}: {ranking.best.num_gpus} GPUs, {settings}")
        print("  " + " ".join(search.plan(ranking).serve_argv))
