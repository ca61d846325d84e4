"""The replay beside vLLM's own scheduler, on random small workloads.

Run it with a Python that has vLLM (0.32 was used; no GPU is needed) and lazy-loader, and see that every token of every
request comes at the same moment. vLLM's ``Scheduler`` decides, a linear timer says how long each step takes, and a
client like the benchmark's sends the requests::

    PYTHONPATH=.:tests python benchmarks/replay_against_vllm.py --cases 300
    PYTHONPATH=.:tests python benchmarks/replay_against_vllm.py --cases 300 --prefixes
    PYTHONPATH=.:tests python benchmarks/replay_against_vllm.py --cases 300 --priorities

With ``--prefixes`` prompts share prefixes, and some go on from the answer to another one. Then the tokens that vLLM's
``KVCacheManager`` finds for each request have to be the same too. With ``--priorities`` requests have one of three,
and vLLM serves them by ``--scheduling-policy priority``.

With asynchronous scheduling about one case in four hundred differs: there vLLM preempts a request that has just
ended, which the replay knows by priority only; and with ``--prefixes`` a preempted request may find a block less.
"""

import argparse
import json
import random
import tempfile
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reference_prefix import Texts, random_texts, random_workload, with_prefixes
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from planner.errors import InputError
from planner.simulator.client import Client, replay
from planner.simulator.limits import SchedulerLimits
from planner.timing.step import Batch
from planner.workload.load import Load
from planner.workload.requests import Requests

MOMENT_S = 1e-9
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


class LinearTimer:
    """A step time with a term for everything in a batch."""

    def __init__(self, dice: random.Random) -> None:
        self.base_s = dice.uniform(1e-3, 1e-2)
        self.rates_s = [dice.uniform(0, rate) for rate in (1e-3, 1e-4, 1e-3, 1e-3, 1e-4, 1e-3)]

    def step_s(self, batch: Batch) -> float:
        counts = (
            batch.decode_seqs,
            batch.decode_context_tok,
            batch.prefill_seqs,
            batch.prefill_tok,
            batch.prefill_pair_tok,
            batch.prefill_finishing,
        )
        return self.base_s + sum(rate * count for rate, count in zip(self.rates_s, counts, strict=True))


def vllm_scheduler(folder: str, limits: SchedulerLimits, connector: Any = None) -> Scheduler:
    """vLLM's scheduler with the blocks of ``limits`` and the null block it keeps beside them."""
    args: dict[str, Any] = {
        "model": folder,
        "skip_tokenizer_init": True,
        "max_model_len": 4096 if limits.enable_chunked_prefill else limits.max_num_batched_tokens,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "enable_chunked_prefill": limits.enable_chunked_prefill,
        "enable_prefix_caching": limits.enable_prefix_caching,
        "block_size": limits.block_size,
        "scheduler_reserve_full_isl": limits.scheduler_reserve_full_isl,
        "scheduling_policy": limits.scheduling_policy,
        "kv_transfer_config": connector,
    }
    config = EngineArgs(**args).create_engine_config()
    config.scheduler_config.async_scheduling = limits.async_scheduling
    config.cache_config.num_gpu_blocks = limits.num_blocks + 1
    spec = FullAttentionSpec(block_size=limits.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    return (AsyncScheduler if limits.async_scheduling else Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=limits.num_blocks + 1, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_size,
        hash_block_size=limits.block_size,
    )


class Bench:
    """One engine around vLLM's scheduler, and the client of the benchmark."""

    def __init__(
        self,
        scheduler: Scheduler,
        timer: LinearTimer,
        requests: Requests,
        limits: SchedulerLimits,
        places: int,
        client: Client,
        texts: Texts | None = None,
    ) -> None:
        self.scheduler, self.timer, self.requests, self.client = scheduler, timer, requests, client
        self.texts = texts
        self.hasher = get_request_block_hasher(limits.block_size, sha256) if limits.enable_prefix_caching else None
        self.found_tok = [0] * len(requests.input_len)
        self.depth = 2 if limits.async_scheduling else 1
        self.inbox: deque[tuple[float, int]] = deque()
        self.sent_s: list[float] = []
        self.times_s: list[list[float]] = [[] for _ in requests.input_len]
        self.computed: dict[str, int] = {}
        self.prefilling: set[str] = set()
        self.live: dict[str, Request] = {}
        for _ in range(min(places, len(requests.input_len))):
            self.send(0.0)

    def send(self, place_s: float) -> None:
        if len(self.sent_s) < len(self.requests.input_len):
            index = len(self.sent_s)
            self.sent_s.append(max(place_s, float(self.requests.arrival_s[index])))
            self.inbox.append((self.sent_s[-1] + self.client.request_s, index))

    def receive(self, before_s: float) -> None:
        while self.inbox and self.inbox[0][0] < before_s:
            index = self.inbox.popleft()[1]
            request = Request(
                request_id=str(index),
                prompt_token_ids=self.texts[index][: self.requests.input_len[index]]
                if self.texts
                else [5] * int(self.requests.input_len[index]),
                sampling_params=SamplingParams(max_tokens=int(self.requests.output_len[index]), ignore_eos=True),
                pooling_params=None,
                block_hasher=self.hasher,
                arrival_time=float(index),
                priority=0 if self.requests.priority is None else int(self.requests.priority[index]),
            )
            self.live[str(index)] = request
            self.scheduler.add_request(request)

    def batch(self, scheduled: dict[str, int], resumed: set[str]) -> tuple[Batch, list[str]]:
        """What a step computes, and which requests sample a token in it."""
        decode_tok, chunks, sampling = [], [], []
        for name, new in scheduled.items():
            if name not in self.computed or name in resumed:
                self.computed[name] = self.start_tok(name, new)
                self.prefilling.add(name)
            before = self.computed[name]
            tokens = int(self.requests.input_len[int(name)]) + self.tokens_by(name)
            if name in self.prefilling:
                chunks.append((before, new, before + new == tokens))
            else:
                decode_tok.append(before + 1)
            self.computed[name] += new
            if self.computed[name] == tokens:
                sampling.append(name)
                self.prefilling.discard(name)
        return (
            Batch(
                decode_seqs=len(decode_tok),
                decode_context_tok=float(sum(decode_tok)),
                prefill_seqs=len(chunks),
                prefill_tok=sum(new for _, new, _ in chunks),
                prefill_pair_tok=sum(new * (before + (new + 1) / 2) for before, new, _ in chunks),
                prefill_finishing=sum(ends for _, _, ends in chunks),
            ),
            sampling,
        )

    def prompt(self, index: int) -> list[int]:
        """The tokens of a prompt."""
        count = int(self.requests.input_len[index])
        return self.texts[index][:count] if self.texts else [5] * count

    def start_tok(self, name: str, new_tok: int) -> int:
        """Tokens that the prefix cache spares a request that begins now, or begins again."""
        found = self.live[name].num_computed_tokens - new_tok  # ``schedule`` has moved it on already
        if name not in self.computed:
            self.found_tok[int(name)] = found
        return found

    def token(self, name: str) -> int:
        """The next token of an answer."""
        index = int(name)
        return self.texts[index][self.requests.input_len[index] + len(self.times_s[index])] if self.texts else 7

    def tokens_by(self, name: str) -> int:
        """Output tokens that exist once the steps under way have ended."""
        return len(self.times_s[int(name)]) + self.pending.get(name, 0)

    def run(self) -> None:
        """Steps in a queue of ``depth``: the next is scheduled while the last runs, or when it has ended."""
        self.pending: dict[str, int] = {}
        queue: deque[tuple[Any, list[str], float]] = deque()  # scheduled, with the time of the step
        now_s = 0.0  # start of the step at the head of the queue
        while self.inbox or queue or self.scheduler.has_unfinished_requests():
            self.receive(now_s - MOMENT_S)
            if not queue and not self.scheduler.has_unfinished_requests():
                now_s = max(now_s, self.inbox[0][0])
                self.receive(now_s + MOMENT_S)
            while len(queue) < self.depth:
                output = self.scheduler.schedule()
                if not output.total_num_scheduled_tokens and not queue:
                    continue  # by priority a step may preempt whom it serves, and be empty
                if not output.total_num_scheduled_tokens:
                    break
                resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
                resumed |= {r.req_id for r in output.scheduled_new_reqs}
                batch, sampling = self.batch(output.num_scheduled_tokens, resumed)
                for name in sampling:
                    self.pending[name] = self.pending.get(name, 0) + 1
                queue.append((output, sampling, self.timer.step_s(batch)))
            output, sampling, time_s = queue.popleft()
            now_s += time_s
            self.deliver(output, sampling, now_s)

    def deliver(self, output: Any, sampling: list[str], now_s: float) -> None:
        """Hand the tokens of a step to the scheduler, and let the client answer those that end."""
        names = list(output.num_scheduled_tokens)
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[self.token(name)] if name in sampling else [] for name in names],
            ),
        )
        for name in sampling:
            self.pending[name] -= 1
            self.times_s[int(name)].append(now_s)
        for name in sampling:
            if len(self.times_s[int(name)]) == self.requests.output_len[int(name)]:
                self.send(now_s + self.client.response_s)


def random_case(dice: random.Random) -> tuple[Load, SchedulerLimits, Client]:
    """A small workload on an engine that is short of something."""
    workload = random_workload(dice)
    longest = workload.input_len + workload.output_len
    seqs = dice.randint(1, 8)
    chunked = dice.random() < 0.8
    block_size = dice.choice([16, 32])
    limits = SchedulerLimits(
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs + dice.randint(0, 40), 1 if chunked else longest),
        kv_cache_tokens=longest + block_size + dice.choice([0, 32, 64, 128, 10_000]),
        block_size=block_size,
        enable_chunked_prefill=chunked,
        scheduler_reserve_full_isl=dice.random() < 0.7,
        async_scheduling=dice.random() < 0.3,
    )
    delays = (0.0, 0.0) if dice.random() < 0.5 else (dice.uniform(0, 0.02), dice.uniform(0, 0.02))
    return workload, limits, Client(*delays)


def main() -> None:
    parser = argparse.ArgumentParser(description="The replay beside vLLM's own scheduler.")
    parser.add_argument("--cases", type=int, default=300, help="how many random workloads")
    parser.add_argument("--prefixes", action="store_true", help="prompts share prefixes, and the cache keeps them")
    parser.add_argument("--priorities", action="store_true", help="requests have priorities, and vLLM goes by them")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    options = parser.parse_args()
    same = {False: 0, True: 0}
    count = {False: 0, True: 0}
    preemptions = 0
    worst = {False: 0.0, True: 0.0}
    found_tok = prompt_tok = missed = 0
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        for case in range(options.first, options.first + options.cases):
            dice = random.Random(case)
            timer = LinearTimer(dice)
            workload, limits, client = random_case(dice)
            requests, texts = workload.requests(), None
            if options.prefixes:
                requests, texts = random_texts(dice, requests, answers=dice.random() < 0.5)
                limits = with_prefixes(dice, limits, requests)
            if options.priorities:
                chosen = np.array([dice.choice([0, 1, 5]) for _ in requests.input_len])
                requests, limits = replace(requests, priority=chosen), replace(limits, scheduling_policy="priority")
            try:
                ours = replay(timer, replace(workload, recorded=requests), limits, client)
            except InputError:
                continue
            bench = Bench(
                vllm_scheduler(folder, limits),
                timer,
                requests,
                limits,
                workload.max_concurrency or workload.num_prompts,
                client,
                texts,
            )
            bench.run()
            first_s = np.array([times[0] for times in bench.times_s]) + client.response_s
            end_s = np.array([times[-1] for times in bench.times_s]) + client.response_s
            error = max(np.abs(ours.first_token_s / first_s - 1).max(), np.abs(ours.end_s / end_s - 1).max())
            mode = limits.async_scheduling
            count[mode] += 1
            same[mode] += error < MOMENT_S
            worst[mode] = max(worst[mode], error)
            preemptions += int(ours.preemptions.sum())
            differs = int((ours.cached_tok != np.array(bench.found_tok)).sum())
            found_tok, prompt_tok = found_tok + sum(bench.found_tok), prompt_tok + int(requests.input_len.sum())
            missed += differs
            if differs:
                print(f"case {case}: {ours.cached_tok.tolist()} tokens found, {bench.found_tok} by vLLM")
            if error >= MOMENT_S:
                print(f"case {case}: off by {error:.2%}, {ours.preemptions.sum()} preemptions")
                print(f"  {limits} {workload} {client}")
    for mode, name in ((False, "synchronous"), (True, "asynchronous")):
        print(f"{name}: {same[mode]} of {count[mode]} alike, largest relative error {worst[mode]:.2g}")
    print(f"{preemptions} preemptions")
    if options.prefixes:
        print(f"{found_tok / prompt_tok:.1%} of the prompt tokens found; {missed} requests find others than in vLLM")


if __name__ == "__main__":
    main()
