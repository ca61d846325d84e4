"""Fleets: the programme against brute force, sizes and cost by hand, what must be monotone."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import ceil, inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from command_line import json_of, refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import SMALL, search_for

from planner import recommend_plans, size_fleet
from planner.engine import EngineArgs
from planner.errors import InputError
from planner.hardware.profiles import load_profile
from planner.output.scripts.text import option
from planner.output.tables.shared import figure_between, load_takes, router_words
from planner.planning import defaults
from planner.planning.defaults import RentedBy
from planner.planning.search.disaggregated import (
    Disaggregated,
    Side,
    best_rate,
    disaggregate,
    prompt_kv_bytes,
    transfer_rate,
)
from planner.planning.search.fleet import Fleets, Terms, plan_fleets
from planner.planning.search.mix import Mix, Offer, Rent, cheapest_mix
from planner.planning.search.search import Search
from planner.planning.search.servers import share_of
from planner.units import Interval, figure
from planner.workload.load import Load
from planner.workload.requests import Prefixes, Requests
from planner.workload.targets import Slo, Targets, parse_slos
from planner.workload.trace import read_trace

pytestmark = pytest.mark.usefixtures("short_replays")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
#: Settings that most tests are not about.
FIXED: dict[str, Any] = {"max_num_batched_tokens": 8192, "kv_cache_dtype": "fp8"}
WORDS = ("--max-num-batched-tokens", "8192", "--kv-cache-dtype", "fp8")
TARGETS = (Slo("ttft", 2000), Slo("tpot", 60))
CHAT = Load(1024, 256, request_rate=20.0, name="all")
SHORT = Load(256, 64, request_rate=4.0, name="all")
BUNCHED, TIGHT = Load(1024, 256, range_ratio=0.5, request_rate=3.5, name="all"), (Slo("ttft", 500), Slo("tpot", 40))


def asked(*gpus: str, load: Load = CHAT, slos: tuple[Slo, ...] = TARGETS, **settings: Any) -> Search:
    targets = Targets(slos, confidence=settings.pop("confidence", 0.8), value=load.request_rate)
    settings = {"spares": 1, "headroom": 0.2, "args": EngineArgs(**FIXED), **settings}
    return search_for(targets, *gpus, model=LLAMA, load=load, **settings)


FLEETS: dict[str, Fleets] = {}  #: planned once for all tests


def planned(*gpus: str, tpot_ms: float = 60.0, rate: float = 20.0, rent: RentedBy = "gpu", **settings: Any) -> Fleets:
    key = repr((gpus, tpot_ms, rate, rent, settings))
    if key not in FLEETS:
        slos, load = (Slo("ttft", 2000), Slo("tpot", tpot_ms)), replace(CHAT, request_rate=rate)
        FLEETS[key] = plan_fleets(asked(*gpus, slos=slos, load=load, **settings), Terms(rent=rent))
    return FLEETS[key]


def brute_force(loads: Sequence[float], offers: Sequence[Offer], rents: Sequence[Rent], spares: int) -> float:
    """The least price over every number of servers that could make sense; infinite where nothing does."""
    counts = [
        range(ceil(load / offer.capacity[c]) + 1) if offer.capacity[c] > 0 else range(1)
        for c, load in enumerate(loads)
        for offer in offers
    ]
    best = inf
    for numbers in itertools.product(*counts):
        rows = [numbers[c * len(offers) : (c + 1) * len(offers)] for c in range(len(loads))]
        carried = [sum(n * o.capacity[c] for n, o in zip(row, offers, strict=True)) for c, row in enumerate(rows)]
        if any(have < load * (1 - 1e-9) for have, load in zip(carried, loads, strict=True)):
            continue
        gpus = [0] * len(rents)
        for k, offer in enumerate(offers):
            servers = sum(row[k] for row in rows)
            gpus[offer.gpu] += offer.gpus * (servers + spares * (servers > 0))
        units = [ceil(count / rent.gpus) for count, rent in zip(gpus, rents, strict=True)]
        together = sum(units) if rents[0].package and len({rent.package for rent in rents}) == 1 else 0
        in_stock = all(max(count, together) <= rent.stock for count, rent in zip(units, rents, strict=True))
        if in_stock:
            best = min(best, sum(count * rent.price for count, rent in zip(units, rents, strict=True)))
    return best


CAPACITY = st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0, 4.5])
OFFER = st.builds(Offer, st.integers(0, 1), st.sampled_from([1, 2]), st.tuples(CAPACITY, CAPACITY))
PRICE, STOCK = st.sampled_from([1.0, 2.5, 4.0]), st.sampled_from([3.0, inf])
RENT = st.builds(Rent, PRICE, st.sampled_from([1, 2, 4]), STOCK, st.sampled_from(["", "one"]))


@given(
    st.tuples(st.sampled_from([1.0, 2.0, 5.0]), st.sampled_from([1.0, 4.0])),
    st.lists(OFFER, min_size=1, max_size=3),
    st.tuples(RENT, RENT),
    st.integers(0, 1),
)
@settings(max_examples=30, deadline=None)
def test_no_mix_is_cheaper(loads: tuple[float, ...], offers: list[Offer], rents: tuple[Rent, ...], spares: int) -> None:
    mix = cheapest_mix(loads, offers, rents, spares)
    expected = brute_force(loads, offers, rents, spares)
    if mix is None:
        assert expected == inf
        return
    assert mix.price == pytest.approx(expected)
    for c, load in enumerate(loads):
        assert sum(n * o.capacity[c] for n, o in zip(mix.servers[c], offers, strict=True)) >= load * (1 - 1e-6)


def only(mix: Mix | None) -> Mix:
    assert mix is not None
    return mix


def test_one_class_and_equal_capacity_takes_the_cheapest() -> None:
    """7 requests/s over servers of 2: four of them, and one spare, at 3 instead of 4."""
    mix = only(cheapest_mix([7.0], [Offer(0, 1, (2.0,)), Offer(1, 1, (2.0,))], [Rent(4.0), Rent(3.0)], spares=1))
    assert mix.servers == ((0, 4),) and mix.spares == (0, 1)
    assert mix.price == 15.0


def test_a_small_server_carries_what_is_left_over() -> None:
    """11 over servers of 10 for 8 USD and of 2 for 2 USD: one of each for 10, not two large ones for 16."""
    mix = only(cheapest_mix([11.0], [Offer(0, 1, (10.0,)), Offer(1, 1, (2.0,))], [Rent(8.0), Rent(2.0)]))
    assert mix.servers == ((1, 1),) and mix.price == 10.0


def test_classes_go_where_they_are_cheap() -> None:
    """Long requests on the large GPU (4 a server, not 1), short ones on the small (10 for 2 USD, not 12 for 6)."""
    offers = [Offer(0, 1, (12.0, 4.0)), Offer(1, 1, (10.0, 1.0))]
    mix = only(cheapest_mix([20.0, 8.0], offers, [Rent(6.0), Rent(2.0)]))
    assert mix.price == 2 * 2.0 + 2 * 6.0
    assert mix.servers == ((0, 2), (2, 0))


def test_what_is_not_in_stock_cannot_be_rented() -> None:
    offers = [Offer(0, 1, (2.0,)), Offer(1, 1, (2.0,))]
    mix = only(cheapest_mix([6.0], offers, [Rent(1.0, stock=2), Rent(5.0)]))
    assert mix.units == (2, 1)
    assert cheapest_mix([6.0], offers[:1], [Rent(1.0, stock=2)]) is None


def test_modes_of_one_package_share_its_stock() -> None:
    """3 requests/s of servers of 1: three packages, whole or cut in two halves of which each carries a half."""
    offers = [Offer(0, 1, (1.0,)), Offer(1, 1, (0.5,))]
    for stock, units in ((3, 3), (2, None)):
        mix = cheapest_mix([3.0], offers, [Rent(1.0, 1, stock, "mi300x"), Rent(1.0, 2, stock, "mi300x")])
        assert (mix and sum(mix.units)) == units
    search = asked("mi300x", "mi300x-dpx", load=replace(CHAT, request_rate=30.0), headroom=0.0, spares=0)
    fleets = [plan_fleets(search, Terms(stock={"mi300x": stock})).best for stock in (1, 2)]
    assert fleets[0] is None and fleets[1] and fleets[1].gpus == 2


def test_a_stock_that_is_too_small_is_told_by_how_many() -> None:
    """The sizes at other confidences, and with a margin, are those of as many GPUs as the load takes without it."""
    search = asked("h100", load=replace(CHAT, request_rate=150.0), headroom=0.0, spares=0)
    free = plan_fleets(search).best
    assert free and free.by_confidence[-1].gpus and free.by_confidence[-1].gpus > free.gpus
    stocked = plan_fleets(search, Terms(stock={"h100-sxm": free.gpus})).best
    assert stocked and stocked.by_confidence == free.by_confidence and stocked.with_margin == free.with_margin


def test_servers_for_a_load_by_hand() -> None:
    """20 requests/s and 20 % headroom are 24; servers of 14.1 carry 28.2 in twos. 3 x 0.1 needs 3 of 0.1, not 4."""
    assert Side.servers_for(side(1, 14.1), 20 * 1.2) == 2
    assert Side.servers_for(side(1, 0.1), 0.1 + 0.2) == 3


def test_gpus_dollars_and_watts_add_up_by_hand() -> None:
    fleets = planned("h100", prices={"h100-sxm": 2.0})
    (fleet,) = fleets.single
    (pool,) = fleet.pools
    servers = ceil(24 / pool.load.value) + 1  # 20 % headroom, N+1
    gpus = servers * pool.kind.num_gpus
    assert fleet.servers == servers and fleet.gpus == gpus and fleet.nodes == ceil(gpus / 8)
    assert fleet.usd_per_h and fleet.usd_per_h.mid == pytest.approx(2.0 * gpus)
    assert fleet.power_w == pytest.approx(700.0 * gpus)
    # 20 requests/s of 256 tokens are 18.432 million an hour
    assert fleet.usd_per_million_tok
    assert fleet.usd_per_million_tok.mid == pytest.approx(2.0 * gpus / 18.432)
    assert fleet.usd_per_million_tok.low <= fleet.usd_per_million_tok.mid <= fleet.usd_per_million_tok.high
    assert fleet.utilisation(pool) == pytest.approx(20 / ((servers - 1) * pool.load.value))


def test_a_price_of_zero_plans_but_divides_nothing() -> None:
    (fleet,) = planned("h100", prices={"h100-sxm": 0.0}).single
    assert fleet.usd_per_h == Interval.exact(0.0)
    assert fleet.usd_per_million_tok is None
    assert fleet.gpus > 0


def test_at_no_cost_equal_servers_come_before_a_mix() -> None:
    """A mix saves at least 5 % of the cost, and nothing of none: H100s of one's own serve alone, with the most room."""
    fleets = size_fleet(LLAMA, ("h100", "l40s"), price={"h100": 0}, request_rate=5, ttft=2000).record
    assert fleets.mix is None and [fleet.rented[0].profile.id for fleet in fleets.single] == ["h100-sxm", "l40s"]


def test_without_any_price_gpus_are_counted() -> None:
    fleets = planned("mi308x", "h20")
    assert fleets.minimised == "gpus"
    assert [fleet.gpus for fleet in fleets.single] == sorted(fleet.gpus for fleet in fleets.single)
    assert all(fleet.usd_per_h is None for fleet in fleets.single)


def test_a_gpu_without_a_price_counts_at_the_mean_of_the_others() -> None:
    """By hand: at 6 USD/h for each priced GPU, the one without a price is ranked as if its GPUs cost 6 USD/h too."""
    fleets = planned("mi308x", "h100", "mi300x", prices={"h100-sxm": 6.0, "mi300x": 6.0}).fleets
    assert [fleet.gpus for fleet in fleets] == sorted(fleet.gpus for fleet in fleets)
    assert {fleet.rented[0].profile.id for fleet in fleets if fleet.usd_per_h is None} == {"mi308x"}


def test_partitions_are_rented_by_the_package_and_gpus_by_the_node_where_asked() -> None:
    (dpx,) = planned("mi300x-dpx").single
    assert dpx.gpus == ceil(dpx.servers / 2)
    assert planned("h100", rent="node").single[0].gpus % 8 == 0


def test_a_spare_is_one_server_more() -> None:
    with_spare, without = planned("h100").single[0], planned("h100", spares=0).single[0]
    assert with_spare.servers == without.servers + 1


def test_more_load_never_needs_less() -> None:
    gpus = [planned("h100", rate=rate).single[0].gpus for rate in (1.0, 20.0, 150.0)]
    assert gpus == sorted(gpus)


def test_tighter_targets_are_never_cheaper() -> None:
    usd = []
    for tpot_ms in (200.0, 60.0, 30.0):
        (fleet,) = planned("h100", tpot_ms=tpot_ms).single
        usd.append(fleet.weight("usd"))
    assert usd == sorted(usd)


def test_the_mix_is_never_dearer_than_one_type() -> None:
    demands = (Load.of_class("chat", 20, 256, 32), Load.of_class("documents", 2, 2048, 64))
    fleets = plan_fleets(asked("h100", "b200", load=Load.classes_of(demands)))
    assert fleets.best
    best = fleets.best.weight("usd")
    assert all(best <= fleet.weight("usd") * (1 + 1e-9) for fleet in fleets.single)
    for place, demand in enumerate(fleets.best.solver.demands):
        pools = [pool for pool in fleets.best.pools if pool.place == place]
        assert sum(pool.servers * pool.load.value for pool in pools) >= demand.request_rate * (1 - 1e-6)
    assert sum(demand.request_rate for demand in fleets.best.solver.demands) == pytest.approx(22 * 1.2)


def test_two_types_of_gpus_save_enough_to_be_run() -> None:
    """Nobody runs one MI300X beside four MI325X for a cent per hour less than five MI325X."""
    asked: dict[str, Any] = {"request_rate": 5.0, "input_len": 1024, "output_len": 1024, "ttft": 2000, "tpot": 50,
                             **FIXED}  # fmt: skip
    fleets = size_fleet("meta-llama/Llama-3.3-70B-Instruct", ("mi300x", "mi325x"), **asked).record
    cheapest = min(fleet.weight("usd") for fleet in fleets.single)
    assert fleets.mix is None or fleets.mix.weight("usd") <= 0.95 * cheapest


def test_classes_together_are_all_of_them_in_the_order_of_arrival() -> None:
    """20 and 5 requests/s: four of five requests are short, and as many tokens in the mean."""
    mixed = Load.classes_of((Load.of_class("short", 20, 100, 10), Load.of_class("long", 5, 1000, 100)))
    assert mixed.request_rate == 25 and mixed.recorded is not None
    assert mixed.input_len == 280 and mixed.output_len == 28  # (4 x 100 + 1000) / 5, (4 x 10 + 100) / 5
    assert mixed.longest_len == 1100
    assert bool(np.all(np.diff(mixed.recorded.arrival_s) >= 0))
    assert len(mixed.recorded.arrival_s) / mixed.recorded.arrival_s[-1] == pytest.approx(25, rel=0.01)


def test_a_little_of_each_class_shares_its_servers() -> None:
    """Three classes of 0.1 requests/s do not take three servers: one carries them all, and one is spare."""
    demands = tuple(Load.of_class(name, 0.1, length, 32) for name, length in (("a", 128), ("b", 256), ("c", 512)))
    (fleet,) = plan_fleets(asked("h100", load=Load.classes_of(demands))).single
    assert fleet.servers == 2


def test_gpus_without_a_price_get_the_shape_that_takes_fewer() -> None:
    """H800 beside a GPU with a price: its classes share a server as they do where it is alone."""
    classes = (Load.of_class("chat", 6, 1024, 256), Load.of_class("rag", 2, 8000, 256))
    alone, beside = (
        plan_fleets(asked(*gpus, load=Load.classes_of(classes), headroom=0.0, spares=0))
        for gpus in (("h800",), ("h100", "h800"))
    )
    (h800,) = [fleet for fleet in beside.single if fleet.usd_per_h is None]
    assert alone.best and h800.gpus == alone.best.gpus == 1


def test_a_router_keeps_servers_of_another_class_as_busy_too() -> None:
    """Each engine is tried on both classes: of n servers each gets every n-th request, not requests at random."""
    classes = (Load.of_class("chat", 60, 1024, 256), Load.of_class("rag", 25, 8000, 256))
    slos, load = (Slo("ttft", 600), Slo("tpot", 30)), Load.classes_of(classes)
    search = asked("h100", slos=slos, load=load, headroom=0.0, spares=0, args=EngineArgs())
    divided = (plan_fleets(search).shapes or (None,))[0]
    assert divided and any(pool.kind.objective.load is not pool.demand for pool in divided.pools)
    assert all(1 < pool.load.sent.burstiness <= pool.servers for pool in divided.pools if pool.servers > 1)


def test_targets_that_nothing_keeps_leave_no_fleet_and_a_reason() -> None:
    fleets = plan_fleets(asked("h100", slos=(Slo("tpot", 0.5),)))
    assert fleets.best is None
    assert "TPOT" in fleets.refused[0].reason


def test_a_class_of_requests_by_its_words() -> None:
    demand = Load.parse("chat=2.5:1024:256")
    assert (demand.name, demand.request_rate, demand.input_len, demand.output_len) == ("chat", 2.5, 1024, 256)
    assert Load.parse("q=1:rag").input_len == 4096


@pytest.mark.parametrize(
    "text",
    [
        "chat", "chat=", "chat=1", "chat=1:2", "chat=x:1:1", "chat=1:1:1:1", "chat=0:1:1", "chat=nan:1:1",
        "chat=inf:rag", "chat=1:0:1", "chat=1:1:-1", "=1:1:1",
    ],
)  # fmt: skip
def test_what_is_no_class_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=f"--class '{text}'") as refused:
        Load.parse(text)
    assert "chat=20:1024:256" in refused.value.hint


def test_a_trace_is_cut_by_length_and_nothing_is_lost(tmp_path: Path) -> None:
    """60 short requests of 110 tokens and 6 of 1,100 each second: as many tokens in each of two classes."""
    rows = [(second + i / 66, *((1000, 100) if i % 11 == 0 else (100, 10))) for second in range(20) for i in range(66)]
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_len,output_len\n" + "\n".join(f"{t},{i},{o}" for t, i, o in rows) + "\n")
    trace = read_trace(file)
    short, long = Load.classes_of_trace(trace, classes=2)
    assert (short.input_len, short.output_len) == (100, 10) and (long.input_len, long.output_len) == (1000, 100)
    assert short.request_rate + long.request_rate == pytest.approx(trace.busiest_rate)
    assert short.request_rate == pytest.approx(10 * long.request_rate)
    assert short.recorded is not None and bool(np.all(np.diff(short.recorded.arrival_s) >= 0))
    fast = Load.classes_of_trace(trace, rate=132.0, classes=2)
    assert sum(demand.request_rate for demand in fast) == pytest.approx(132.0)
    for demand in fast:  # the requests come as quickly as the rate says
        seconds = float(np.ptp(demand.requests().arrival_s))
        assert demand.count / seconds == pytest.approx(demand.request_rate, rel=0.1)


def test_the_command_of_a_fleet_for_a_trace_sends_the_trace(tmp_path: Path) -> None:
    """Prompts of the mean length alone need fewer GPUs."""
    rows = [f"{at / 4},{(200, 200, 2000, 6000)[at % 4]},100" for at in range(400)]
    (file := tmp_path / "trace.csv").write_text("\n".join(["arrival_s,input_len,output_len", *rows]))
    said = run("fleet", LLAMA, "--gpu", "h100", "--trace", str(file), "--ttft", "2000", "--tpot", "50", *WORDS).out
    command = " ".join(said.replace("\\\n", " ").split()).partition("$ planner ")[2].split()
    assert command[command.index("--trace") + 1] == str(file) and "--random-input-len" not in command
    again = run(*command[: command.index("-o")]).out
    assert "on 1 x H100" in said and "on 1 x H100" in again


def test_requests_that_come_in_bunches_are_dealt_apart() -> None:
    """Four at a time: on one server the last waits for three prompts however seldom they come, on four for none."""
    count = 400
    arrival_s = np.repeat(np.arange(count // 4) * 4.0, 4)
    prefixes = Prefixes.of([[at] for at in range(count)], [[8000]] * count)
    requests = Requests(np.full(count, 8000), np.full(count, 8), arrival_s, prefixes)
    demand = Load.of_requests(requests, 1.0, name="bunches")
    fleets = plan_fleets(asked("h100", slos=(Slo("ttft", 400),), load=demand, spares=0, confidence=0.5, headroom=0.0))
    assert not fleets.refused and fleets.best is not None
    (pool,) = fleets.best.pools
    assert pool.servers > 1 or pool.kind.num_gpus > 1
    assert len(pool.load.replay.sent_s) == count // pool.servers  # all that one server gets
    assert pool.load.readings[0].met and pool.load.value == pytest.approx(1.0 / pool.servers)


def test_the_plan_of_a_fleet_has_its_percentile() -> None:
    """What is printed to go on with asks for the same targets."""
    outcome = run(
        "fleet", LLAMA, "--gpu", "h100", "--request-rate", "20", "--ttft", "2000", "--percentile", "90", *WORDS
    )
    assert "--ttft 2000 --percentile 90" in " ".join(outcome.out.replace("\\", " ").split())


def test_requests_of_one_length_are_one_class(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,input_len,output_len\n" + "".join(f"{second},500,200\n" for second in range(100)))
    (only,) = Load.classes_of_trace(read_trace(file))
    assert only.name == "700 tokens" and only.request_rate == pytest.approx(100 / 99)


@cache
def divided(gpu: str = "h100", tpot_ms: float = 60.0, bytes_per_s: float | None = None) -> Disaggregated:
    fleet = planned(gpu, tpot_ms=tpot_ms).single[0]
    (pool,) = fleet.pools
    found = disaggregate(fleet.solver.search, pool.kind.candidate, pool.load, 24.0, bytes_per_s)
    assert isinstance(found, Disaggregated)
    return found


def test_both_sides_launch_the_revision_that_was_asked_for() -> None:
    """Without it vLLM reads the hub's default branch (``revision`` in its config/model.py)."""
    for revision in (None, "v1.0"):
        sides = replace(divided(), revision=revision).launches()
        assert [option(side.serve_argv, "--revision") for side in sides] == [revision, revision]


def test_the_cache_of_a_prompt_by_hand() -> None:
    """32 layers x 8 KV heads x 128 x 2 (keys, values): 65,536 bytes a token in fp8, 131,072 in bf16; 1,024 tokens."""
    plan = divided()
    each = {"fp8": 65_536, "bf16": 131_072}[plan.decode.deployment.config.kv_cache_dtype]
    share = min(plan.prefill.num_gpus, plan.decode.num_gpus)
    assert prompt_kv_bytes(plan.decode.deployment, 1024) * plan.decode.num_gpus == 1024 * each
    assert plan.transfer.kv_bytes == 1024 * each / share


def test_the_transfer_adds_to_the_first_token_and_to_nothing_else() -> None:
    fast, slow = divided(bytes_per_s=50e9), divided(bytes_per_s=0.5e9)
    assert slow.transfer.time_s == pytest.approx(100 * fast.transfer.time_s)
    assert slow.transfer.time_s == pytest.approx(slow.transfer.kv_bytes / 0.5e9)
    assert slow.tpot_ms == fast.tpot_ms
    assert slow.prefill.load.value <= min(fast.prefill.load.value, 1 / slow.transfer.time_s)


def test_a_divided_plan_keeps_the_targets_and_carries_the_load() -> None:
    plan = divided(tpot_ms=30.0)
    assert plan.ttft_ms <= 2000 and plan.tpot_ms <= 30
    assert plan.prefill_servers * plan.prefill.load.value >= 24 * (1 - 1e-9)
    assert plan.decode_servers * plan.decode.load.value >= 24 * (1 - 1e-9)


def test_decode_alone_steps_no_slower_than_with_prompts_in_between() -> None:
    """With TPOT the target, a decode server carries at least what one carries that prefills besides."""
    plan = divided(tpot_ms=30.0)
    together = plan.aggregated_rate / plan.aggregated_gpus
    assert plan.decode.rate_per_gpu >= together


def side(gpus: int, rate: float) -> Side:
    return cast("Side", SimpleNamespace(num_gpus=gpus, load=SimpleNamespace(value=rate)))


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.floats(0.5, 9), st.floats(0.5, 9), st.integers(1, 24))
def test_no_division_of_the_gpus_carries_more(p: int, d: int, p_rate: float, d_rate: float, gpus: int) -> None:
    every = (min(i * p_rate, j * d_rate) for i in range(gpus + 1) for j in range(gpus + 1) if i * p + j * d <= gpus)
    assert best_rate(side(p, p_rate), side(d, d_rate), gpus) == pytest.approx(max(every))


def test_rates_of_links_and_networks() -> None:
    """A pair of MI300X shares one link of 64 GB/s; H100s reach each other at 450; 400 Gbit/s are 50 GB/s."""
    mi300x, h100 = load_profile("mi300x"), load_profile("h100")
    assert transfer_rate(mi300x, True, None)[0] == 64e9
    assert transfer_rate(h100, True, None)[0] == 450e9
    assert transfer_rate(mi300x, False, None) == (50e9, "network")
    assert transfer_rate(h100, False, 12e9)[0] == 12e9
    with pytest.raises(
        InputError, match="bandwidth of the network between nodes of l40s is unknown: pass --network-gb-per-s"
    ):
        transfer_rate(load_profile("l40s"), False, None)


@pytest.mark.parametrize("slos", [(), (Slo("ttft", 2000),), (*TARGETS, Slo("e2el", 20_000))])
def test_prefill_and_decode_have_one_target_each(slos: tuple[Slo, ...]) -> None:
    fleet = planned("h100").single[0]
    (pool,) = fleet.pools
    with pytest.raises(InputError, match="--ttft and --tpot"):
        disaggregate(asked("h100", slos=slos), pool.kind.candidate, pool.load, 24.0)


def test_the_table_names_whose_fits_predicted() -> None:
    outcome = run("fleet", LLAMA, "--gpu", "mi300x", "--request-rate", "2", "--workload", "chat", *WORDS)
    assert outcome.status == 0 and "calibration: shipped" in outcome.err


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        ("fleet", "--price h100=3 --price l40s=1", "h20: counted at 2.00 USD/h each, the mean of the others; give"),
        ("recommend", "--price h100=3 --price l40s=1", "h20: counted at 2.00 USD/h each, the mean of the others; give"),
        ("recommend", "--price h100=3 --price l40s=1 --goal max-throughput", "h20; give"),
    ],
)
def test_a_gpu_without_a_price_is_said_to_be_counted_at_the_mean(command: str, words: str, said: str) -> None:
    """The mean of 3 and 1 USD. The note said ``ranked by the number of GPUs``, and the order was another one."""
    load = ("--request-rate", "2", "--ttft", "2000", "--workload", "chat", *WORDS)
    gpus = ("--gpu", "h20", "--gpu", "h100", "--gpu", "l40s")
    notes = " ".join(run(command, LLAMA, *gpus, *load, *words.split()).err.split())
    assert f"no price is known for {said} one with --price h20=USD" in notes


@pytest.mark.parametrize("command", ["fleet", "recommend"])
def test_a_verdict_that_rests_on_an_assumed_price_says_so(command: str) -> None:
    """2 GH200 144GB come first at the mean of 2.99 and 1.35 USD/h, a price that nobody asks."""
    gpus = ("--gpu", "gh200-144gb", "--gpu", "l40s", "--gpu", "h100", "--price", "h100=2.99", "--price", "l40s=1.35")
    asked = (command, "Qwen/Qwen3-8B", *gpus, "--request-rate", "20", "--ttft", "1000", *WORDS, "--weight-dtype", "fp8")
    known = ("--price", "gh200-144gb=2.17")
    assumed, given, alone = (
        run(*asked, *more).out.partition("\n\n")[0] for more in ((), known, ("--minimise", "gpus"))
    )
    assert "GH200-144GB" in assumed and "GPU price assumed" in assumed and "USD/h" not in assumed
    assert "GH200-144GB" in given and "assumed" not in given and "4.34" in given
    assert "assumed" not in alone  # of the number of GPUs no price decides; recommend has no such option


def test_partitions_of_a_named_gpu_take_part_and_what_is_left_out_says_why() -> None:
    load = ("--request-rate", "1", "--input-len", "512", "--output-len", "64", "--tpot", "40", "--max-num-seqs", "32")
    answer = run("fleet", LLAMA, "--gpu", "a100", "--partitions", *load, "--max-num-batched-tokens", "2048")
    rows = {line.split()[0] for line in answer.out.splitlines() if line.startswith("a100-")}
    assert {"a100-sxm-80gb", "a100-mig-3g.40gb", "a100-mig-7g.80gb"} <= rows
    said = " ".join(answer.err.split())
    assert "left out: a100-mig-1g.10gb (" in said and "h100" not in answer.out


@pytest.mark.parametrize(
    ("gpus", "words"),
    [
        (None, "with such servers the load takes 8 GPUs at 50% confidence; no number of such servers is enough at 95%"),
        (65, "with such servers the load takes 8 GPUs at 50%, over 64 GPUs at 95% confidence"),
        (64, "with such servers the load takes 8 GPUs at 50%, 64 GPUs at 95% confidence"),
    ],
)
def test_a_size_that_nobody_rents_for_certainty_is_not_printed(gpus: int | None, words: str) -> None:
    """Mixtral on A100: 16 GPUs at 80 % confidence and 264 at 95 %, where TTFT hardly holds on an idle server."""
    assert load_takes([(0.5, 8), (0.95, gpus)], 16) == words


def test_the_cost_of_a_card_of_ones_own_is_not_taken_for_a_rent() -> None:
    asked = ("Qwen/Qwen3-8B", "--gpu", "r9700,l4", "--max-concurrency", "8")
    said = " ".join(run("compare", *asked).err.split())
    assert "USD of r9700: the cost of a card of your own over three years, not a rent; give yours" in said
    assert "not a rent" not in run("compare", *asked, "--price", "r9700=0.5").err


def test_json_has_the_best_fleet_first() -> None:
    answer = json_of(
        "fleet", LLAMA, "--gpu", "mi300x", "--gpu", "h100", "--request-rate", "20", "--workload", "chat",
        "--ttft", "2000", "--tpot", "60", "--price", "h100=9", "--disaggregated", *WORDS,
    )  # fmt: skip
    assert answer["schema_version"] == 1
    first, second = answer["fleets"]
    assert (first["gpu"], second["gpu"]) == ("mi300x", "h100-sxm")
    assert first["usd_per_hour"] == pytest.approx(1.99 * first["gpus"])
    assert second["usd_per_hour"] == pytest.approx(9.0 * second["gpus"])
    assert {plan["gpu"] for plan in answer["disaggregated"]} == {"mi300x", "h100-sxm"}


def test_no_fleet_is_an_honest_no() -> None:
    outcome = run("fleet", LLAMA, "--gpu", "h100", "--request-rate", "1", "--tpot", "0.5")
    assert outcome.status == 1
    assert outcome.out.startswith("No fleet carries 1 request/s") and "x h100-sxm: " in outcome.out
    assert "p95 TPOT of 0.5 ms becomes" in " ".join(outcome.out.split())
    assert "order" not in outcome.err  # there is nothing to order


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((), "no load is given"),
        (("--request-rate", "0"), "--request-rate must be positive, got 0"),
        (("--request-rate", "1", "--class", "a=1:1:1"), "--class and --request-rate are both given"),
        (("--class", "a=1:9:9", "--class", "a=2:9:9"), "--class a is given twice"),
        (("--class", "a=1:9:9", "--input-len", "5"), "--class and --random-input-len are both given"),
        (("--class", "a=1:9"), "--class 'a=1:9' is not NAME=RATE:INPUT:OUTPUT"),
        (("--request-rate", "1", "--headroom", "-1"), "--headroom must be from 0 to 10, got -1"),
        (("--request-rate", "1", "--headroom", "20"), "--headroom must be from 0 to 10, got 20"),
        (("--class", "a=0:9:9"), "--class 'a=0:9:9': rate and lengths must be positive"),
        (("--request-rate", "1", "--stock", "h100=1", "--stock", "h100=2"), "--stock of h100-sxm is given twice"),
        (("--request-rate", "1", "--stock", "h100=x"), "--stock 'h100=x' is not GPU=N"),
        (("--request-rate", "1", "--price", "h100=-2"), "--price 'h100=-2' is not GPU=USD"),
        (("--request-rate", "1", "--kv-transfer-gb-per-s", "5"), "--kv-transfer-gb-per-s has nothing to go with"),
        (("--class", "a=1:9:1", "--tpot", "50"), "--tpot needs answers of at least two tokens"),
        (("--request-rate", "1", "--ttft", "-5"), "--ttft -5 is not a target in ms"),
        (("--trace", "nowhere.csv"), "--trace nowhere.csv"),
        (("--request-rate", "1", "--budget", "5"), "--budget and --request-rate are both given"),
        (("--ttft", "900", "--budget", "1"), "--budget 1 rents no GPU: one h100-sxm is 2.99 USD/h"),
        (("--have", "h200=2"), "--have 'h200=2': h200-sxm is not among the GPUs"),
        (("--have", "16 H200"), "--have '16 H200': h200-sxm is not among the GPUs"),
        (("--request-rate", "1", "--input-len", "200000"), "--input-len 200000"),
    ],
)
def test_bad_input_is_named(words: tuple[str, ...], cause: str) -> None:
    assert cause in refused("fleet", LLAMA, "--gpu", "h100", *words)


def test_the_longest_request_is_named_by_the_option_that_made_it() -> None:
    classes = ("--class", "a=1:9:9,ttft=500", "--class", "long=1:200000:9,ttft=9000")
    assert "--class long: the longest request has 200009" in refused("recommend", LLAMA, "--gpu", "h100", *classes)
    sent = ("--workload", "coding-agent", "--request-rate", "0.2")
    assert "--workload coding-agent: the longest" in refused(
        "predict", "serve", "Qwen/Qwen3-8B", "--gpu", "h100", *sent
    )


def test_gpus_in_stock_may_be_more_than_a_node_has() -> None:
    words = ("Qwen/Qwen3-8B", "--ttft", "500", "--have")
    counted, named = (json_of("recommend", *words, have)["plans"][0] for have in ("16xa100", "a100=16"))
    assert counted["num_gpus"] == named["num_gpus"] and counted["gpu"] == named["gpu"] == "a100-sxm-80gb"


@pytest.mark.parametrize("rate", [20.0, 150.0])
def test_sizes_at_each_confidence_ascend_and_have_the_servers_asked_for(rate: float) -> None:
    fleet = planned("h100", rate=rate).single[0]
    (pool,) = fleet.pools
    assert [rung.confidence for rung in fleet.by_confidence] == [0.5, 0.8, 0.95]
    assert fleet.by_confidence[1].gpus == fleet.gpus
    gpus = [rung.gpus or 10**9 for rung in fleet.by_confidence]
    assert gpus == sorted(gpus)
    for rung in fleet.by_confidence:
        carried = pool.kind.at(rung.confidence).largest_load
        servers = ceil(rate * 1.2 / carried) + 1
        assert abs((rung.gpus or 0) - servers * pool.kind.num_gpus) <= pool.kind.num_gpus


def test_every_gpu_of_a_mix_counts_at_each_confidence() -> None:
    """One H100 and one H200 with equal settings: of 95 % confidence the two carry less than the load, three enough."""
    fixed: dict[str, Any] = {"max_num_seqs": 128, "max_num_batched_tokens": 8192, "weight_dtype": "fp8"}
    load: dict[str, Any] = {"request_rate": 16, "ttft": 2000, "tpot": 50}
    fleet = size_fleet(LLAMA, ("h100", "h200"), stock={"h100": 1, "h200": 2}, **load, **fixed).record.best
    assert fleet and [rented.gpus for rented in fleet.rented] == [1, 1]
    small, large = (kind.at(0.95).largest_load for kind in fleet.kinds)
    assert small < large and small + large < 16 < small + 2 * large
    assert [rung.gpus for rung in fleet.by_confidence] == [2, 2, 3]


def test_each_pool_of_a_mix_carries_its_share_alone() -> None:
    """One server is less evenly busy than each of a larger pool: the MI300X was given 10.3 requests/s, it keeps 6.8."""
    targets, load = (
        Targets((Slo("ttft", 300), Slo("tpot", 40)), value=40.0),
        Load(2048, 64, request_rate=40.0, name="all"),
    )
    search = search_for(targets, "h100", "mi300x", model="Qwen/Qwen3-8B", load=load)
    mix = plan_fleets(search, Terms(stock={"h100-sxm": 2, "mi300x": 2})).mix
    assert mix and len(mix.pools) == 2
    for pool in mix.pools:
        of_pool = replace(pool.kind.objective, targets=replace(targets, value=pool.servers * pool.load.value))
        assert share_of(pool.kind.deployment, of_pool, pool.servers, exactly=True).meets


@pytest.mark.parametrize(
    ("gpu", "model", "load", "slos"),
    [
        ("h100", "openai/gpt-oss-20b", CHAT, TARGETS),
        ("mi300x", LLAMA, CHAT, TARGETS),
        # near what a lone request takes one request more in flight is much load, and its interval is not the usual one
        ("gb10", LLAMA, SHORT, parse_slos({"tpot": 29.0})),
        ("l4", LLAMA, SHORT, parse_slos({"tpot": 40.0})),
        ("h100", "Qwen/Qwen3-32B", BUNCHED, TIGHT),
    ],
)
def test_without_headroom_and_spares_a_fleet_is_the_recommended_plan(
    gpu: str, model: str, load: Load, slos: tuple[Slo, ...]
) -> None:
    search = search_for(Targets(slos, value=load.request_rate), gpu, model=model, load=load, args=EngineArgs(**FIXED))
    (fleet,), (ranking,) = plan_fleets(search).single, search.run()
    assert ranking.best is not None and fleet.gpus == ranking.best.num_gpus
    service, carries = search.plan(ranking).service, fleet.carries
    assert service is not None and carries is not None
    ends = service.largest_load_lo, service.largest_load, service.largest_load_hi
    assert tuple((end or 0.0) * service.replicas for end in ends) == pytest.approx(
        (carries.low, carries.mid, carries.high)
    )


def test_of_two_servers_each_carries_more_than_one_alone_whatever_is_asked() -> None:
    """The router spreads bunches: 3.5 requests/s of two servers are no load for one, in a fleet and in a stock."""
    searches = [
        search_for(Targets(TIGHT, value=rate), "h100", model="Qwen/Qwen3-32B", load=load, args=EngineArgs(**FIXED))
        for rate in (3.0, 3.5)
        for load in [replace(BUNCHED, request_rate=rate)]
    ]
    (low,), (high,) = (plan_fleets(search).single for search in searches)
    each = [fleet.pools[0].load.value for fleet in (low, high)]
    assert low.servers == high.servers == 2 and each[0] == pytest.approx(each[1], rel=defaults.TOLERANCE)
    asked = replace(searches[1].objective, targets=Targets(TIGHT))
    alone, both = (
        plan_fleets(Search(replace(searches[1].space, stock={"h100-sxm": gpus}), asked)).single[0] for gpus in (1, 2)
    )
    assert alone.request_rate < 3.5 < each[1] < both.request_rate


def test_a_mixed_fleet_has_a_command_for_each_type_of_gpu() -> None:
    """Each command has the share of the load that its GPUs carry, and a folder of its own."""
    words = "--gpu h100,mi300x --stock h100=1 --stock mi300x=1 --request-rate 90 --random-output-len 128"
    targets = ("--random-input-len", "512", "--ttft", "2000", "--tpot", "50")
    output = " ".join(run("fleet", LLAMA, *words.split(), *targets, *WORDS).out.replace("\\\n", " ").split())
    commands = re.findall(r"\$ planner recommend \S+ --gpu (\S+) --request-rate (\S+) [^$]* -o (\S+)", output)
    assert [(gpu, folder) for gpu, _, folder in commands] == [
        ("h100-sxm", "plans/h100-sxm"),
        ("mi300x", "plans/mi300x"),
    ]
    assert sum(float(rate) for _, rate, _ in commands) == pytest.approx(90)


ASKED: dict[str, Any] = {"model": LLAMA, "gpu": "h100", "request_rate": 150.0, "output_len": 128, "tpot": 60, **FIXED}


def test_headroom_and_spares_are_added_only_when_asked_for() -> None:
    """By hand: ceil(150 / most) servers; ceil(180 / most) + 1 with 20 % headroom and a spare, which one line says."""
    fleet = size_fleet(**ASKED)
    best = fleet.record.best
    assert best and best.with_margin
    (pool,) = best.pools
    more = ceil(180 / pool.load.value) + 1
    assert (best.servers, best.with_margin) == (ceil(150 / pool.load.value), more * pool.kind.num_gpus)
    plan, margin = recommend_plans(**ASKED), {"headroom": 0.2, "spares": 1}
    words = f"with 20 % headroom and one spare it would take {best.with_margin} GPUs"
    for answer in (fleet, plan):
        assert words in " ".join(str(answer).split())
        assert "a random router (a Kubernetes Service) would do" in " ".join(str(answer).split())
    assert fleet.to_dict()["gpus_with_margin"] == best.with_margin
    assert plan.best and plan.best.service and plan.best.service.plain_router == best.plain_router
    wider, larger = size_fleet(**ASKED, **margin).record.best, recommend_plans(**ASKED, **margin).best
    assert wider and larger and larger.service
    assert wider.gpus == larger.service.total_gpus <= best.with_margin  # with more places a server may carry more
    assert larger.service.replicas <= more and larger.service.request_rate == pytest.approx(150.0)
    assert larger.service.usd_per_hour == pytest.approx(wider.usd_per_h and wider.usd_per_h.mid)


def test_the_old_name_of_spares_still_works() -> None:
    outcomes = [
        run("fleet", LLAMA, "--gpu", "h100", "--request-rate", "5", flag, "2", *WORDS)
        for flag in ("--n-plus", "--spares")
    ]
    assert outcomes[0].out == outcomes[1].out and "2 spares" in " ".join(outcomes[0].out.split())


LARGEST: dict[str, Any] = {"model": LLAMA, "output_len": 64, "tpot": 60, **FIXED}


def test_the_most_agents_on_given_gpus_need_those_gpus() -> None:
    """Less, asked for as a rate, takes no more GPUs; half as much again takes more. An order moves a p95 by 8 %."""
    asked: dict[str, Any] = {"gpu": "l40s", "use_case": "coding-agent", "ttft": 20000, "tpot": 60, **FIXED}
    asked |= {"max_num_seqs": 16, "weight_dtype": "fp8"}
    model = "meta-llama/Llama-3.1-8B-Instruct"
    most = recommend_plans(model, have={"l40s": 4}, **asked).best
    assert most is not None and most.service and most.service.request_rate
    rate = most.service.request_rate
    # Little: each session has a request on its way, or pauses for 5 s on average
    flying, open_at_once = most.service.requests_in_flight or 0.0, most.service.sessions_at_once
    assert open_at_once == pytest.approx(flying + 5 * rate) and flying > 1
    same, more = (recommend_plans(model, request_rate=factor * rate, **asked).best for factor in (0.6, 1.5))
    assert same and same.service and more and more.service
    assert same.service.total_gpus <= 4 < more.service.total_gpus
    with pytest.raises(InputError, match="how many come"):
        recommend_plans(model, gpu="l40s", workload="coding-agent")


def test_the_largest_load_of_a_stock_by_hand() -> None:
    """Three GPUs of one server each carry three times what one carries, for 3 x 2 USD/h; a spare takes one of them."""
    one = recommend_plans(**LARGEST, gpu="h100", gpus=1).best
    three = recommend_plans(**LARGEST, have={"h100": 3}, price={"h100": 2.0}).best
    assert one and one.service and three and three.service and one.num_gpus == 1
    most, service = one.service.load or 0.0, three.service
    assert service.request_rate == pytest.approx(3 * most, rel=0.03) and service.usd_per_hour == 6.0
    assert service.output_tokens_per_day == pytest.approx((service.request_rate or 0.0) * 64 * 86_400)
    assert service.output_throughput_per_gpu == pytest.approx((service.request_rate or 0.0) * 64 / 3)
    assert one.service.output_throughput_per_gpu == pytest.approx(most * 64), "what it carries, not a drawn sample"
    # Little: rate x mean E2EL, without the ramp and the drain of the benchmark
    flying = (service.request_rate or 0.0) * three.predicted["mean_e2el_ms"] / 1000
    assert service.requests_in_flight == pytest.approx(flying, rel=0.03)
    assert service.stock == 3 and not service.load_asked
    margin: dict[str, Any] = {"have": {"h100": 3}, "spares": 1, "headroom": 0.25}
    answers = (recommend_plans(**LARGEST, **margin), size_fleet(**LARGEST, gpu="h100", **margin))
    spared = answers[0].best
    assert spared and spared.service and spared.service.total_gpus == 3
    assert spared.service.request_rate == pytest.approx(2 * most / 1.25, rel=0.03)
    assert spared.service.goodput == pytest.approx(spared.service.request_rate, rel=0.02)
    said, again = (re.findall(r"([\d.]+) requests/s \(([\d.]+) to ([\d.]+)\)", str(answer))[0] for answer in answers)
    assert said == again and float(said[1]) < float(said[0]) < float(said[2])
    none: dict[str, Any] = {"have": {"h100": 1}, "spares": 1}
    for answer in (recommend_plans(**LARGEST, **none), size_fleet(**LARGEST, gpu="h100", **none)):
        assert not answer.ok and str(answer).startswith("The GPUs of --budget or --have ")
        assert "--budget or --have allows 1 GPU; one server and 1 spare take 2" in " ".join(str(answer).split())


def test_the_largest_load_for_a_budget_is_that_of_the_gpus_it_rents() -> None:
    """7 USD/h rent three GPUs of 2 USD, and one of 5: the same loads as of these stocks, the largest first."""
    asked: dict[str, Any] = {**LARGEST, "gpu": ["mi300x", "h100"], "price": {"h100": 2.0, "mi300x": 5.0}}
    by_budget, by_stock = (
        recommend_plans(**asked, **size) for size in ({"budget": 7.0}, {"have": {"h100": 3, "mi300x": 1}})
    )
    assert [plan.service and plan.service.load for plan in by_budget.plans if plan] == [
        plan.service and plan.service.load for plan in by_stock.plans if plan
    ]
    assert by_budget.best and by_budget.best.service and by_budget.best.gpu == "h100-sxm"
    lines = str(by_budget).splitlines()
    head = next(place for place, line in enumerate(lines) if line.startswith("gpu "))
    column = lines[head].split().index("requests/s")  # the load that decides the order is in the table
    assert [row.split()[column] for row in lines[head + 2 : head + 4]] == [
        figure(plan.service.load or 0.0) for plan in reversed(by_budget.plans) if plan and plan.service
    ]
    fleets = size_fleet(**asked, budget=7.0)
    assert [row["request_rate"] for row in fleets.to_dict()["fleets"]] == pytest.approx(
        sorted((plan.service.load or 0.0 for plan in by_budget.plans if plan and plan.service), reverse=True)
    )
    assert fleets.record.best and fleets.record.best.gpus == by_budget.best.service.total_gpus
    assert "concurrent requests" in str(fleets) and "\n\n  - " not in str(fleets)


def test_more_gpus_never_carry_less() -> None:
    loads = [
        plan.service.load or 0.0
        for number in (1, 3, 8)
        if (plan := recommend_plans(**LARGEST, have={"h100": number}).best) and plan.service
    ]
    assert len(loads) == 3 and loads == sorted(loads)


def test_many_types_of_gpus_are_sized_under_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is searched coarsely: the largest load of one server, and so the room for more, is not looked for."""
    monkeypatch.setattr(defaults, "FEW_GPUS", 2)
    answer = size_fleet(SMALL, ("h100", "l40s", "h200"), request_rate=40, ttft=1000, tpot=50, output_len=128, **FIXED)
    fleets = answer.to_dict()
    assert len(fleets["fleets"]) == 3 and fleets["carries"]["request_rate"] is None
    pools = [pool for fleet in fleets["fleets"] for pool in fleet["pools"]]
    assert {(pool["utilisation"], pool["largest_load"]) for pool in pools} == {(None, None)}
    assert "with --gpu to search each finely" in " ".join(str(answer).split())
    assert " used" not in answer.to_text("table")  # 100 % of the load that it was asked to carry
    sizes = [rung["gpus"] for rung in fleets["ladder"]]
    assert sizes == sorted(sizes) and sizes[1] == fleets["fleets"][0]["gpus"]


@pytest.mark.parametrize(
    ("gpu", "size", "reason"),
    [
        ("b200-sxm", {"budget": 5, "price": {"b200": 5.6}}, "one is 5.60 USD/h, above --budget"),
        ("h20", {"budget": 5}, "no price: add --price h20=USD"),
        ("b200-sxm", {"have": {"h100": 1}}, "--have names none: add --have b200-sxm=N"),
    ],
    ids=["too dear", "no price", "not named"],
)
def test_a_gpu_of_which_there_is_none_is_left_out_with_the_reason(gpu: str, size: dict[str, Any], reason: str) -> None:
    answer = size_fleet("openai/gpt-oss-20b", gpu=["h100", gpu], use_case="chat", **size, **FIXED)
    assert answer.to_dict()["refused"] == [{"gpu": gpu, "reason": reason}]


def test_a_load_that_may_be_zero_is_up_to_its_upper_end() -> None:
    assert figure_between(4.3, 0.0, 34.0) == "4.3 (up to 34)"
    assert figure_between(0.063, 0.032, 0.34) == "0.063 (0.032 to 0.34)"


def test_cards_that_are_for_sale_do_not_compete_with_rents() -> None:
    """33 R9700 at 1.98 USD/h, their cost over three years, came before 7 RTX 5090 for rent."""
    fleets = size_fleet("Qwen/Qwen3-8B", "all", have={"l4": 1}, ttft=0.5).to_dict()  # of which no other is in stock
    gpus = {refusal["gpu"] for refusal in fleets["refused"]}
    assert "rtx-5090" in gpus and not gpus & {"r9700", "gb10"}


def test_a_server_that_sorts_logits_for_top_p_carries_less() -> None:
    """vLLM 0.15 sorts all logits of each request with top-p; 0.32 draws without."""
    sampled = {"override_generation_config": '{"top_p": 0.9}'}

    def share(release: str) -> float:
        fleets = (
            size_fleet(SMALL, "h100", request_rate=10.0, input_len=256, engine_version=release, **m, **FIXED)
            for m in (sampled, {})
        )
        top_p, without = (fleet.to_dict()["carries"]["request_rate"] for fleet in fleets)
        return float(top_p / without)

    assert share("0.15.0") < 0.9 and share("0.32.0") == pytest.approx(1, rel=0.05)


def test_partitions_are_named_beside_the_gpus_that_they_fill() -> None:
    """Eight CPX partitions are one MI300X, which is rented whole."""
    asked: dict[str, Any] = {"request_rate": 30.0, "input_len": 512, "output_len": 128, "tpot": 40.0}
    answer, fleet = (ask(LLAMA, "mi300x-cpx", **asked) for ask in (recommend_plans, size_fleet))
    assert answer.best and answer.best.service
    count = answer.best.service.total_gpus
    assert count > 8 and f"on {count} x MI300X-CPX ({-(-count // 8)} GPUs)," in " ".join(str(answer).split())
    assert f"on {-(-count // 8)} x MI300X as MI300X-CPX:" in " ".join(str(fleet).split())


def test_one_load_gets_equal_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A router keeps equal servers equally busy. TP 2 with 1.9 requests/s beside TP 1 with 0.8 would save a GPU."""
    search, kinds = asked("h100", load=replace(CHAT, request_rate=2.5), spares=0, headroom=0.0), []
    best = plan_fleets(search).best
    assert best
    (pool,) = best.pools
    for size, rate in ((2, 1.9), (1, 0.8)):
        engine = pool.kind.candidate.deployment
        engine = replace(engine, config=replace(engine.config, tensor_parallel_size=size))
        candidate = replace(pool.kind.candidate, deployment=engine)
        kinds.append(replace(pool.kind, candidate=candidate, loads={0: replace(pool.load, value=rate)}))
    monkeypatch.setattr("planner.planning.search.fleet._Solver._kinds", lambda *_: kinds)
    best = plan_fleets(search).best
    assert best and len(best.pools) == 1 and best.gpus == 4


def test_each_pool_names_the_load_of_its_own_server() -> None:
    """A server of long prompts carries a fraction of what one of short prompts does."""
    words = ["fleet", LLAMA, "--gpu", "h100", "--no-speculation", "--class", "chat=20:1000:200,ttft=800,tpot=50"]
    words += ["--class", "long=1:20000:500,ttft=6000"]
    text, (pools, *_) = " ".join(run(*words).out.split()), [one["pools"] for one in json_of(*words)["fleets"]]
    found = dict(re.findall(r"one server of (\w+), TP \d, carries ([\d.]+) requests/s", text))
    assert len(found) == len(pools) == 2
    assert all(float(found[pool["class"]]) == pytest.approx(pool["largest_load"], rel=0.05) for pool in pools)


def test_a_fleet_warns_of_what_a_plan_warns() -> None:
    """A question about bf16 is answered with MXFP4, which AMD's recipe puts second."""
    asked: dict[str, Any] = {"request_rate": 5.0, "input_len": 1024, "output_len": 256, "ttft": 1000.0, "tpot": 50.0}
    name = "meta-llama/Llama-3.3-70B-Instruct"
    fleet, plan = size_fleet(name, "mi355x", **asked), recommend_plans(name, "mi355x", **asked).best
    assert plan is not None and plan.weight_dtype == "mxfp4" and fleet.warnings
    assert set(fleet.warnings) <= set(plan.warnings) and "mxfp4 weights may cost accuracy" in str(fleet)
    assert any("FP8 first" in words for words in fleet.advice)


def test_a_stock_has_no_default_number_of_gpus() -> None:
    taken = [row.partition(" = ")[0] for row in recommend_plans(LLAMA, have=["l4=1"]).to_dict()["defaults_taken"]]
    assert "gpus" not in taken and "input_len" in taken


def test_one_server_misses_and_several_miss() -> None:
    router = {
        "router": "random",
        "servers": 3,
        "targets": [SimpleNamespace(met=False, slo="p95 TTFT", expected_ms=9.0)],
    }
    words = [router_words(cast(Any, SimpleNamespace(**router)), planned) for planned in (1, 2)]
    words.append(router_words(cast(Any, SimpleNamespace(**router | {"targets": []})), 1))
    assert [one.partition(": ")[2][:8] for one in words] == ["1 misses", "2 miss p", "1 cannot"]
