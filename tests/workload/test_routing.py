"""Which server gets which request, and loads of several turns by name beside the statistics they are drawn from."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.workload import requests as routed
from planner.workload.load import Load
from planner.workload.requests import POOL_PROMPTS, Prefixes, Requests, answer_s, named_sessions, share
from planner.workload.targets import Router


def chats(count: int, turns: int) -> Requests:
    """Conversations whose turns come one after the other: first the first turns of all, then the second ones."""
    pieces = [[chat * turns + at for at in range(turn + 1)] for turn in range(turns) for chat in range(count)]
    sizes = [[100] * len(one) for one in pieces]
    prompts = np.array([sum(one) for one in sizes])
    number = len(pieces)
    return Requests(prompts, np.full(number, 10), np.arange(number) * 10.0, Prefixes.of(pieces, sizes))


@pytest.mark.parametrize(("router", "prompts"), [("round-robin", [100, 100, 200]), ("least-loaded", [100, 200, 200])])
def test_in_turn_every_other_request_is_one_servers(router: Router, prompts: list[int]) -> None:
    """Idle servers are equally loaded: the first of equals goes round. Of unequal shares the larger one is taken."""
    found = share(chats(3, 2), 2, 100, router)
    assert found.input_len.tolist() == prompts
    assert found.arrival_s.tolist() == [0, 20, 40]
    # an odd number of chats: the second turns come to the other server
    assert found.prefixes is not None and found.prefixes.reusable_tok.tolist() == [0, 0, 0]


def placed_plainly(requests: Requests, servers: int) -> list[int]:
    """The server of each request, from the rule alone: of those that share most the least loaded, ties in turn."""
    prefixes, placed, turn = requests.prefixes, list[int](), 0
    seen: list[set[int]] = [set() for _ in prefixes.parent] if prefixes else []
    for index, arrival_s in enumerate(requests.arrival_s):
        flying = [0] * servers
        for other, server in enumerate(placed):
            flying[server] += requests.arrival_s[other] + answer_s(requests.output_len[other]) > arrival_s
        among: set[int] = set()
        uneven = max(flying) - min(flying) > routed.UNEVEN and max(flying) > min(flying) * routed.UNEVEN_TIMES
        if prefixes and not uneven:
            node = prefixes.prompt[index]
            while node >= 0 and not seen[node]:
                node = prefixes.parent[node]
            if node >= 0 and prefixes.end_tok[node] >= routed.MATCHED * requests.input_len[index]:
                among = seen[node]
        server = min(among or range(servers), key=lambda one: (flying[one], (one - turn) % servers))
        turn = (server + 1) % servers
        node = prefixes.answer[index] if prefixes else -1
        while prefixes and node >= 0:
            seen[node].add(server)
            node = prefixes.parent[node]
        placed.append(server)
    return placed


@pytest.mark.parametrize(("servers", "even"), [(1, 64), (2, 64), (5, 2), (9, 64), (70, 2)])
@pytest.mark.parametrize("router", ["least-loaded", "prefix-aware"])
def test_requests_go_where_the_rule_says(
    servers: int, even: int, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "UNEVEN", even)  # reached with few requests
    sent = named_sessions()["coding-agent"].requests(2.0).first(300)
    if router == "least-loaded":
        sent = replace(sent, prefixes=None)
    assert routed._places(sent, servers, router).tolist() == placed_plainly(sent, servers)


def test_a_prefix_aware_router_sends_a_turn_to_where_the_one_before_went() -> None:
    found = share(chats(3, 2), 2, 100, "prefix-aware")
    assert found.input_len.tolist() == [100, 100, 200, 200]  # two of three chats
    assert found.prefixes is not None and found.prefixes.reusable_tok.tolist() == [0, 0, 100, 100]


def test_of_more_requests_than_wanted_the_last_are_sent_after_the_others() -> None:
    """Of eight requests the last four: the second turns, whose first turns have been answered."""
    found = share(chats(4, 2), 1, 4)
    assert found.input_len.tolist() == [200] * 4 and found.arrival_s[0] == 0
    assert found.prefixes is not None and found.prefixes.reusable_tok.tolist() == [100] * 4
    assert found.prefixes.before_tok.tolist() == [110] * 4


def test_without_prefixes_the_first_are_sent() -> None:
    plain = Requests(np.arange(1, 9), np.ones(8, dtype=np.int64), np.arange(8.0))
    assert share(plain, 2, 3).input_len.tolist() == [1, 3, 5]


@pytest.mark.parametrize("router", ["round-robin", "least-loaded", "prefix-aware"])
def test_of_more_servers_than_requests_one_gets_a_single_request(router: Router) -> None:
    assert share(chats(2, 1), 10**15, 100, router).input_len.tolist() == [100]


@pytest.mark.parametrize("name", ["multi-turn-chat", "coding-agent"])
def test_sessions_have_the_published_means(name: str) -> None:
    kind = named_sessions()[name]
    found = kind.requests(4.0, seed=1)
    assert len(found.arrival_s) / found.arrival_s[-1] == pytest.approx(4.0, rel=0.05)
    assert found.output_len.mean() == pytest.approx(kind.output_tok.mean, rel=0.1)
    assert found.max_total_len <= kind.most_tok
    assert found.prefixes is not None
    # what a turn adds is new; at the beginning more is, as sessions go on that began before
    new_tok = (found.input_len - found.prefixes.reusable_tok)[-4000:]
    assert new_tok.mean() == pytest.approx(kind.input_tok.mean, rel=0.1)


@pytest.mark.parametrize("name", ["multi-turn-chat", "coding-agent"])
def test_at_every_rate_there_are_the_same_requests_nearer_together(name: str) -> None:
    def lengths(sent: Load) -> list[tuple[int, int]]:
        assert sent.recorded is not None
        return sorted(zip(sent.recorded.input_len.tolist(), sent.recorded.output_len.tolist(), strict=True))

    load, kind = Load.sessions(name, 2.0, 1), named_sessions()[name]
    slow, fast = load.share_of(40, "prefix-aware"), load.share_of(4, "prefix-aware")
    assert lengths(slow) == lengths(fast) == lengths(Load.sessions(name, 5.0, 1).share_of(1))
    for sent in (slow, fast):
        assert sent.recorded is not None
        ends_s = [float(one.arrival_s[-1]) for one in sent.recorded.pool]
        assert np.mean(ends_s) == pytest.approx(POOL_PROMPTS / 4 / sent.request_rate, rel=0.05)
        # each turn finds the one before it, wherever the round begins
        new_tok = sent.recorded.input_len.mean() - sent.recorded.reusable_tok
        assert new_tok == pytest.approx(kind.input_tok.mean, rel=0.1)


@pytest.mark.parametrize(("router", "servers"), [("prefix-aware", 9), ("round-robin", 9), ("prefix-aware", 1)])
def test_a_few_of_the_servers_stand_for_all(router: Router, servers: int) -> None:
    sent = Load.sessions("coding-agent", 2.0).share_of(servers, router)
    requests = sent.recorded
    assert requests is not None and sent.request_rate == pytest.approx(2.0 / servers)
    assert len(requests.arrival_s) == pytest.approx(1000, abs=0 if router == "prefix-aware" else 150)
    assert len(requests.pool) == (0 if servers == 1 else routed.POOLED)
    ends = [0, *np.cumsum([len(one.arrival_s) for one in requests.pool])]
    for one, (begin, end) in zip(requests.pool, itertools.pairwise(ends), strict=True):
        assert (one.input_len == requests.input_len[begin:end]).all()
        assert np.allclose(np.diff(one.arrival_s), np.diff(requests.arrival_s[begin:end]))
    # prefixes of sessions that go on are there from the beginning where the router knows them
    reused = [one.reusable_tok / one.input_len.mean() for one in requests.pool or (requests,)]
    assert all(0.8 < share < 0.958 if router == "prefix-aware" else share < 0.9 for share in reused)
    # a cut takes the last requests of each server, which answered the others before
    few = sent.at_rate(0.1, 200).recorded
    assert few is not None and len(few.arrival_s) == 200 and len(few.pool) == len(requests.pool)


def test_most_of_an_agents_prompts_are_there_already() -> None:
    """TraceLab: 52.6 of 54.9 billion input tokens were cached, 95.8 %, of contexts a quarter longer than these."""
    found = named_sessions()["coding-agent"].requests(2.0)
    assert 0.85 < found.reusable_tok / found.input_len.mean() < 0.958


def test_room_is_kept_for_whole_contexts_and_shared_pieces_count_once() -> None:
    """Two prompts of 512 shared tokens, 100 and 30 of their own, and 10 of answer each."""
    sent = Requests(
        np.array([612, 542]),
        np.array([10, 10]),
        np.array([0.0, 1.0]),
        Prefixes.of([[1, 2], [1, 3]], [[512, 100], [512, 30]]),
    )
    load = Load.of_requests(sent, 1.0)
    assert load.held_len(caching=False) == 587
    # of 64 such requests each keeps 65 and 10 tokens of its own and a 64th of the shared 512
    assert load.held_len() == 65 + 10 + 512 // 64
    # turns of one conversation follow each other: what they share is in the cache of no other request
    turns = Load.sessions("coding-agent", 1.0)
    for sent in (turns, turns.share_of(4, "prefix-aware")):
        assert sent.held_len() == sent.held_len(caching=False)
    assert turns.held_len() > 5 * (turns.input_len + turns.output_len)
    assert Load(100, 20, prefix_len=50).held_len() == 170


@pytest.mark.parametrize("servers", [1, 2, 5, 10**6])
def test_a_short_trace_is_judged_by_all_its_requests_on_however_many_servers(servers: int) -> None:
    sent = Load.of_requests(chats(6, 4), 2.0).share_of(servers, "least-loaded", 2000).requests()
    assert len(sent.arrival_s) == 24 and len(sent.pool or (sent,)) == min(servers, 24)
