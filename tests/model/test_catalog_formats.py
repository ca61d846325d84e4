"""Ids that state a format, against the format that they are planned in."""

import re

from planner.model.catalog import catalog_ids, find_entry

#: What a name says, and the start of the precision that it means.
FORMATS = {
    "fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "mxfp8": "mxfp8", "awq": "int4", "gptq": "int4", "int4": "int4",
    "w4a16": "int4", "int8": "int8", "w8a8": "int8", "fp4": "nvfp4",
}  # fmt: skip
NAMED = re.compile("|".join(sorted(FORMATS, key=len, reverse=True)), re.IGNORECASE)


def test_an_id_that_states_a_format_is_planned_in_it() -> None:
    """FP8-KV is 8-bit weights and cache, NVFP4-FP8 both; GPTQ-Int8 is 8 bits whatever GPTQ mostly is."""
    wrong, judged = [], 0
    for name in catalog_ids():
        said = [FORMATS[word.lower()] for word in NAMED.findall(name.rpartition("/")[2])]
        entry = find_entry(name)
        if not said or entry is None:
            continue
        judged += 1
        planned = entry.model().quantization.weight_dtype
        if not any(planned.startswith(meant) or meant in planned for meant in said):
            wrong.append((name, planned))
    assert not wrong
    assert judged > 140


def test_fp8_checkpoints_of_qwen_have_scales_for_blocks() -> None:
    """Model cards: "fine-grained fp8 quantization with block size of 128". vLLM refuses shards that cut a block."""
    names = [name for name in catalog_ids() if re.fullmatch(r"Qwen/.*-FP8|RedHatAI/.*-FP8-block", name)]
    entries = [entry for name in names if (entry := find_entry(name))]
    groups = {entry.id: linear.group for entry in entries if (linear := entry.model().quantization.linear)}
    assert len(groups) > 18 and set(groups.values()) == {(128, 128)}, groups
