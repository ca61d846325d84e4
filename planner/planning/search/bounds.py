"""Loads and latencies that no server beats: bounds that drop an engine before it is replayed, and never a winner.

- Latency: that of a request alone on the server, its prompt in one step.
- Rate: that of full batches in the steady state, which a load is also judged by.
"""

from dataclasses import replace
from functools import partial
from math import ceil, floor

import numpy as np

from planner.planning import defaults
from planner.planning.capacity import at_load, idle_load, measure
from planner.planning.deployment import Deployment
from planner.planning.predict import Reading, ServedLoad
from planner.planning.search.space import Objective
from planner.planning.uncertainty import least_upper
from planner.timing import Batch
from planner.units import MS
from planner.workload import Requests

ENDLESS_TOK = 1 << 40  #: of a cache that holds all prompts of any trace


def alone(deployment: Deployment, objective: Objective) -> ServedLoad:
    """Predict requests that have the server for themselves: the longest ones, or all where those miss a target.

    Recorded requests come so slowly that the server idles. Its cache forgets nothing: in a fleet it gets few sessions.
    """
    load, slos, config = objective.load, objective.slos, deployment.config
    sent = partial(measure, slos=slos, confidence=objective.confidence)
    if load.unsendable:
        places = min(max(config.max_num_seqs, defaults.USUAL_BATCH), config.most_decodes)
        # no bunch queues, and no prefix is forgotten
        roomy = replace(deployment, config=replace(config, max_num_seqs=places), least_cache_tok=ENDLESS_TOK)
        idle = idle_load(deployment, load, "rate")
        share = load.share_of(ceil(load.request_rate / idle), "prefix-aware") if load.drawn else None
        return sent(roomy, share or load.at_rate(idle, defaults.PROMPTS_ALONE))
    load = at_load(deployment, load, slos, "concurrency", 1)
    if load.recorded is None:
        longest = sent(deployment, load.longest(2))
        # with speculative decoding few tokens may come at a slower pace than many
        if not load.range_ratio or (longest.meets and deployment.tokens_per_step == 1):
            return longest
    elif all(slo.group for slo in slos):  # else the shares of the classes matter
        few = _two_of_each(load.recorded)
        load = replace(load, recorded=few, num_prompts=len(few.arrival_s))
    return sent(deployment, load)


def _two_of_each(requests: Requests) -> Requests:
    """Two requests of each class, as the first one of all only opens the loop; all where those of a class differ."""
    if requests.group is None or requests.prefixes is not None:
        return requests
    _, first, place = np.unique(requests.group, return_index=True, return_inverse=True)
    alike = all((one[first][place] == one).all() for one in (requests.input_len, requests.output_len))
    return requests.chosen(first.repeat(2)) if alike else requests


def missed_for_certain(deployment: Deployment, objective: Objective) -> Reading | None:
    """The worst target that no request meets, whatever else is in the engine; None where that is not certain.

    Of recorded requests: that half of them miss, in a cache that forgets nothing.
    """
    config, load, client = deployment.config, objective.load, deployment.client
    if load.classes or config.speculative_config:
        return None
    input_len, output_len = (
        max(floor(length * (1 - load.range_ratio)), 1) for length in (load.input_len, load.output_len)
    )
    new_tok = input_len + (0 if config.enable_prefix_caching else load.prefix_len)
    cached_tok = load.prefix_len + input_len - new_tok
    if sent := load.recorded:
        found = sent.prefixes.reusable_tok if sent.prefixes and config.enable_prefix_caching else 0 * sent.input_len
        # three in four have so many tokens, so half of all have so many of both
        new_tok, cached_tok, input_len = (
            int(np.quantile(tok, 0.25)) for tok in (sent.input_len - found, found, sent.input_len)
        )
        new_tok, output_len = max(new_tok, 1), int(np.quantile(sent.output_len, 0.25))
    pairs = new_tok * (cached_tok + (new_tok + 1) / 2)
    # a full pipeline has a share of the prompt in each stage; chunks before the last never have it to themselves
    going_on = config.pipeline_parallel_size > 1
    share = Batch(0, 0.0, 1 + going_on, new_tok, pairs, prefill_finishing=1 - going_on, peer_tok=0)
    ttft_s = client.delay_s(new_tok, 1) + deployment.timer.breakdown(share).gpu_s + client.response_s
    tpot_s = deployment.timer.step_s(Batch(1, input_len, peer_tok=0)) if output_len > 1 else 0.0
    least_s = {"ttft": ttft_s, "tpot": tpot_s} | ({} if sent else {"e2el": ttft_s + (output_len - 1) * tpot_s})
    readings = []
    for slo in objective.slos:
        if not sent or (slo.percentile or 0.0) > 50:
            least_ms = least_s.get(slo.metric, 0.0) / MS
            expected_ms = least_ms * least_upper(deployment, slo.key, objective.confidence)
            readings.append(Reading(slo, least_ms, expected_ms))
    return max((one for one in readings if not one.met), key=lambda one: one.excess, default=None)
