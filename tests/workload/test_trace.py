"""Recorded loads: the forms they come in, what is refused with its line, and what remains of a long file."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.workload import trace as module
from planner.workload.trace import Trace, read_trace

HEADING = "arrival_s,input_len,output_len\n"


def read(folder: Path, text: str, name: str = "trace.csv") -> Trace:
    path = folder / name
    path.write_text(text)
    return read_trace(path)


def test_rates_and_lengths_are_those_that_a_hand_counts(tmp_path: Path) -> None:
    found = read(tmp_path, HEADING + "0,100,10\n1,200,20\n2,300,30\n4,400,40\n")
    assert (found.rows, found.duration_s, found.mean_rate) == (4, 4.0, 1.0)
    assert (found.input_len, found.output_len, found.longest_len) == (250, 25, 440)
    assert found.busiest.arrival_s.tolist() == [0, 1, 2, 4]
    # gaps 1, 1, 2: mean 4/3, variance 2/9, so (mean / sd)^2 = 16/9 x 9/2 = 8
    assert found.burstiness == pytest.approx(8.0)
    assert found.notes == ()


FORMS = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,100,10\n"
    "2023-11-16 18:15:47.6805900,200,20\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,GPT-4,100,10,110,Conversation log\n6,ChatGPT,200,20,220,API log\n",
    "mooncake.jsonl": '{"timestamp": 27482, "input_length": 100, "output_length": 10, "hash_ids": [1]}\n'
    '{"timestamp": 28482, "input_length": 200, "output_length": 20, "hash_ids": []}\n',
    "own.jsonl": '{"arrival_s": 1e3, "input_len": 100, "output_len": 10}\n\n'
    '{"arrival_s": 1001, "input_len": 200, "output_len": 20, "user": "x"}\n',
    "swapped.csv": "output_len,arrival_s,input_len\n10,0,100\n20,1,200\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_published_forms_are_read_by_their_columns(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, FORMS[name], name)
    assert found.busiest.input_len.tolist() == [100, 200]
    assert found.busiest.output_len.tolist() == [10, 20]
    assert found.duration_s == pytest.approx(1.0)


WRONG = {
    "nan": (HEADING + "0,1,1\n1,nan,1\n", "line 3: input_len"),
    "negative": (HEADING + "0,1,1\n-1,1,1\n", "line 3: arrival_s is negative"),
    "no answer": (HEADING + "0,1,1\n1,1,0\n", "line 3: output_len is 0"),
    "half a token": (HEADING + "0,1,1\n1,1.5,1\n", "line 3: input_len is 1.5"),
    "gap": (HEADING + "0,1,1\n\n1,,1\n", "line 4: input_len is missing"),
    "short row": (HEADING + "0,1,1\n1,1\n", "line 3: output_len is missing"),
    "words": (HEADING + "0,1,1\nlater,1,1\n", "line 3: arrival_s is 'later'"),
    "infinite": (HEADING + "0,1,1\ninf,1,1\n", "line 3: arrival_s is 'inf'"),
    "other columns": ("a,b,c\n1,2,3\n", "line 1 names a, b, c"),
    "empty": ("", "is empty"),
    "one request": (HEADING + "0,1,1\n", "no rate"),
    "all at once": (HEADING + "3,1,1\n3,1,1\n", "no rate"),
    "broken json": ('{"arrival_s": 0, "input_len": 1, "output_len": 1}\n{"arr\n', "line 2 is not JSON"),
    "a list": ('{"arrival_s": 0, "input_len": 1, "output_len": 1}\n[1]\n', "line 2 is not a JSON object"),
    "true": ('{"arrival_s": 0, "input_len": true, "output_len": 1}\n', "line 1: input_len is 'True'"),
    "negative lengths": (HEADING + "0,1,1\n1,-5,1\n", "line 3: input_len is -5"),
    "a negative answer": (HEADING + "0,1,1\n1,5,-1\n", "line 3: output_len is -1"),
    "no date": ("TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n", "line 2: TIMESTAMP 'noon'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_trace_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    text, cause = WRONG[name]
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    assert cause in refused.value.cause and "--trace" in refused.value.cause and refused.value.hint


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(InputError, match="--trace"):
            read_trace(path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="line 1 is not UTF-8"):
        read_trace(tmp_path / "binary")


def test_disorder_is_sorted_and_said(tmp_path: Path) -> None:
    found = read(tmp_path, HEADING + "0,1,1\n2,3,1\n1,2,1\n3,4,1\n")
    assert found.busiest.input_len.tolist() == [1, 2, 3, 4]
    assert any("out of order: 1, the first in line 4" in note for note in found.notes)


def test_disorder_beyond_the_buffer_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REORDERED", 3)
    with pytest.raises(InputError, match="line 7 arrives before") as refused:
        read(tmp_path, HEADING + "1,1,1\n2,1,1\n3,1,1\n4,1,1\n5,1,1\n0,1,1\n")
    assert "sort" in refused.value.hint


def test_a_long_pause_is_said_with_its_line(tmp_path: Path) -> None:
    rows = [f"{second},1,1\n" for second in [*range(200), *range(100_000, 100_200)]]
    found = read(tmp_path, HEADING + "".join(rows))
    assert any("99,801 s before line 202" in note for note in found.notes)


def test_a_pause_does_not_dilute_the_load(tmp_path: Path) -> None:
    """Two hours of one request a second, a night, an hour of two a second: 2/s is the load, not the mean."""
    slow = [f"{second},1,1\n" for second in range(7200)]
    fast = [f"{40_000 + second / 2},1,1\n" for second in range(7200)]
    found = read(tmp_path, HEADING + "".join([*slow, *fast]))
    assert found.busiest_rate == pytest.approx(2.0, rel=1e-3) and len(found.busiest.arrival_s) == 7200
    assert found.mean_rate == pytest.approx(14_400 / 43_599.5)
    assert any("planned for the busiest 7,200 in a row" in note for note in found.notes)


def test_a_few_requests_between_pauses_are_no_load_of_their_own(tmp_path: Path) -> None:
    rows = [f"{second},1,1\n" for second in [*range(150), *range(100_000, 100_150)]]
    assert len(read(tmp_path, HEADING + "".join(rows)).busiest.arrival_s) == 300


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 99)), min_size=8, max_size=40))
def test_the_busiest_stretch_is_the_one_that_trying_all_finds(rows: list[tuple[int, int]]) -> None:
    arrival_s, lines, times = 0, [], []
    for gap, tokens in rows:
        arrival_s += gap
        times.append(arrival_s)
        lines.append(json.dumps({"arrival_s": arrival_s, "input_len": tokens, "output_len": 1}))
    stretch = 5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STRETCH", stretch)
        summary = module._Summary()
        for row in module._rows(iter([line + "\n" for line in lines]), "x"):
            summary.add(row)
        found = summary.trace("x", "")
    rates = []
    for first in range(len(rows) - stretch + 1):
        chosen = range(first, first + stretch)
        rates.append(sum(rows[i][1] + 1 for i in chosen) / (times[first + stretch - 1] - times[first]))
    kept = found.busiest
    assert float((kept.input_len + kept.output_len).sum() / kept.arrival_s[-1]) >= max(rates) / 1.011


def shared(folder: Path, text: str, name: str = "trace.jsonl") -> list[int]:
    """Tokens of each prompt that a cache finds which forgets nothing."""
    prefixes = read(folder, text, name).busiest.prefixes
    assert prefixes is not None
    return prefixes.reusable_tok.tolist()


def test_blocks_of_mooncake_have_512_tokens_and_those_of_bailian_16(tmp_path: Path) -> None:
    """The two requests of Mooncake's README share twelve blocks, 12 x 512 = 6,144 tokens."""
    first, second = [*range(46, 58), 2353, 2354], [*range(46, 58), 2366]
    mooncake = (
        f'{{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": {first}}}\n'
        f'{{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": {second}}}\n'
    )
    assert shared(tmp_path, mooncake) == [0, 6144]
    bailian = (
        '{"chat_id": 1, "timestamp": 0.5, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
        '{"chat_id": 2, "timestamp": 1.5, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 4]}\n'
    )
    assert shared(tmp_path, bailian) == [0, 32]
    assert read(tmp_path, bailian).duration_s == pytest.approx(1.0)  # seconds, not milliseconds


def test_rows_of_a_session_go_on_from_each_other(tmp_path: Path) -> None:
    """The third prompt of a is shorter than what was said before: it begins anew. b has nothing of a."""
    rows = "0,100,20,a\n1,100,20,b\n2,150,30,a\n3,90,10,a\n4,130,10,b\n"
    assert shared(tmp_path, "arrival_s,input_len,output_len,session\n" + rows, "s.csv") == [0, 0, 120, 0, 120]


NO_REUSE = {
    "too few hashes": (
        '{"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [1]}',
        "line 1: 1 hash_ids for a prompt of 1,500 tokens",
    ),
    "no numbers": ('{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": ["a"]}', "no list of whole"),
    "a session back in time": (
        "arrival_s,input_len,output_len,session\n5,50,5,a\n4,60,5,b\n3,100,5,a\n",
        "line 4: session 'a' goes back in time",
    ),
    "more hashes than blocks": (
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2, 3]}',
        "line 1: 3 hash_ids for a prompt of 600 tokens",
    ),
    "text": ('{"id": "x", "conversations": [{"from": "human", "value": "hi"}]}', "not the columns of a trace"),
}


@pytest.mark.parametrize("name", NO_REUSE)
def test_what_prompts_cannot_have_in_common_is_refused(name: str, tmp_path: Path) -> None:
    text, cause = NO_REUSE[name]
    with pytest.raises(InputError) as refused:
        read(tmp_path, text + "\n")
    assert cause in refused.value.cause and refused.value.hint
