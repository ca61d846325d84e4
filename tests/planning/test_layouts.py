"""Layouts that a search considers: all of them for a few types of GPUs, the coarse choice among many."""

import pytest

import planner

#: Too small for these models, so that only one type of GPU is searched.
SMALL = ("l4", "l40s", "a10g", "rtx-3090", "rtx-4090", "rtx-5090", "rtx-5000-ada", "r9700")
NODE = 8  #: GPUs of a node of H200


def copies_of_attention(model: str, *others: str) -> set[tuple[int, int]]:
    """Return the TP and DP sizes of every layout with DP that the search looked at on an H200."""
    answer = planner.recommend_plans(model, gpu=["h200", *others], goal="max-throughput", max_concurrency=64).to_dict()
    seen = [one for one in (*answer["plans"], *answer["rejected"]) if one["gpu"] == "h200-sxm"]
    return {(one["tensor_parallel_size"], one["data_parallel_size"]) for one in seen if one["data_parallel_size"]} - {
        (size, 1) for size in (1, 2, 4, 8)
    }


LATENT, OTHER = "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-235B-A22B"
COARSE = {(1, 8), (2, 4), (4, 2)}


@pytest.mark.parametrize("model", [LATENT, OTHER])
def test_copies_of_attention_are_of_every_size_among_few_types_of_gpus(model: str) -> None:
    sizes = (1, 2, 4, 8)
    assert copies_of_attention(model) == {(tp, dp) for tp in sizes for dp in sizes[1:] if tp * dp <= NODE}


@pytest.mark.parametrize(("model", "layouts"), [(LATENT, COARSE), (OTHER, set())])
def test_copies_of_attention_fill_a_node_among_many_types_of_gpus(model: str, layouts: set[tuple[int, int]]) -> None:
    """They are searched only where TP would repeat the KV cache: with latent attention."""
    assert copies_of_attention(model, *SMALL) == layouts
