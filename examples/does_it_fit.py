"""Does a model start on a GPU, and if not, what helps?"""

from planner import Serving

GIB = 2**30

serving = Serving("meta-llama/Llama-3.3-70B-Instruct", gpu="h100", tensor_parallel_size=2, max_model_len=32_768)
fit = serving.fit()
print(f"2 x H100: {fit.verdict}; {fit.kv_cache.mid / GIB:.1f} GiB per GPU are left for the KV cache")
for way in fit.options:
    print(f"- {way.change}")

# the same question with other settings
for size in (2, 4, 8):
    fit = serving.changed(tensor_parallel_size=size).fit(ways_out=False)
    print(f"TP {size}: {fit.verdict}, {fit.kv_cache_tokens:,} tokens of KV cache")
