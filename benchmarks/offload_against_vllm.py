"""KV offloading in the replay beside vLLM's own scheduler and offloading manager, on random small workloads.

Run it with a Python that has vLLM (0.32 was used; no GPU is needed)::

    PYTHONPATH=.:tests:benchmarks python benchmarks/offload_against_vllm.py --cases 300

vLLM's ``Scheduler``, ``OffloadingConnectorScheduler`` and ``CPUOffloadingManager`` decide what is found, loaded and
stored. How long a step takes is a linear timer's, and a copy takes its blocks times a constant, one after the other in
each direction, from the end of the step whose launch submits it. Copies that have ended are reported as
``v1/worker/gpu/kv_connector.py`` does, when a step is launched. For each request the tokens found on the GPU, those
loaded from the host, and all times have to be the same.
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
from reference_prefix import random_texts, with_prefixes
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import init_none_hash
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from planner.errors import InputError
from planner.simulator.client import replay
from planner.simulator.limits import SchedulerLimits
from replay_against_vllm import LLAMA, MOMENT_S, Bench, LinearTimer, random_case, vllm_scheduler

BLOCK_BYTES_PER_TOK = 2 * 64 * 2  #: keys and values of one head of 64 in 16 bits, as ``vllm_scheduler`` has them


def connector(limits: SchedulerLimits) -> KVTransferConfig:
    """What ``--kv-offloading-size`` makes of itself (``config/vllm.py``), for so many blocks."""
    size = limits.host_blocks * limits.block_size * BLOCK_BYTES_PER_TOK
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config={"cpu_bytes_to_use": size}
    )


class OffloadBench(Bench):
    """The same around a scheduler with a connector, whose copies take time."""

    limits: SchedulerLimits

    def start(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.loaded_tok = [0] * len(self.requests.input_len)
        self.late: list[tuple[int, int, str | None]] = []  # stores: submitted with the next step
        self.under_way: tuple[deque[Any], deque[Any]] = (deque(), deque())  # (end, job, request), stores and loads
        self.free_s = [0.0, 0.0]
        connector = self.scheduler.connector
        inner = connector.update_state_after_alloc

        def noted(request: Any, blocks: Any, external_tok: int) -> None:
            if not request.num_preemptions:
                self.loaded_tok[int(request.request_id)] = external_tok or self.loaded_tok[int(request.request_id)]
            inner(request, blocks, external_tok)

        connector.update_state_after_alloc = noted

    def submit(self, output: Any) -> list[tuple[int, int, str | None]]:
        """What the launch of a step submits: stores of the step before, loads of its own."""
        meta = output.kv_connector_metadata
        now = self.late + [(job, len(one.dst_spec.block_ids), one.req_id) for job, one in meta.load_jobs.items()]
        self.late = [(job, len(one.src_spec.block_ids), None) for job, one in meta.store_jobs.items()]
        return now

    def begin(self, copies: list[tuple[int, int, str | None]], time_s: float) -> None:
        for job, blocks, name in copies:
            way = name is not None
            self.free_s[way] = max(self.free_s[way], time_s) + blocks * self.limits.host_block_s
            self.under_way[way].append((self.free_s[way], job, name))

    def poll(self, time_s: float) -> KVConnectorOutput:
        ended = []
        for copies in self.under_way:
            while copies and copies[0][0] <= time_s + MOMENT_S:
                ended.append(copies.popleft())
        meta = OffloadingWorkerMetadata()
        for _, job, _ in ended:
            meta.mark_completed(job)
        names = {name for _, _, name in ended if name is not None}
        return KVConnectorOutput(finished_recving=names or None, kv_connector_worker_meta=meta if ended else None)

    def run(self) -> None:
        self.pending: dict[str, int] = {}
        queue: deque[Any] = deque()
        now_s = 0.0
        while True:
            self.receive(now_s - MOMENT_S)
            heard = False
            while len(queue) < self.depth:
                self.scheduler.finished_req_ids = sorted(self.scheduler.finished_req_ids, key=self.ends_at)
                output = self.scheduler.schedule()
                copies, result = self.submit(output), self.poll(now_s)
                if not output.total_num_scheduled_tokens and not any(step[2] for step in queue):
                    for empty in (*queue, (output, [], 0.0, copies, result)):
                        self.begin(empty[3], now_s)
                        self.hand_back(empty[0], [], now_s, empty[4])
                        heard = heard or bool(empty[3] or self.late or empty[4].kv_connector_worker_meta)
                    heard = heard or bool(output.preempted_req_ids)
                    queue.clear()
                    break
                resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
                resumed |= {r.req_id for r in output.scheduled_new_reqs}
                batch, sampling = self.batch(output.num_scheduled_tokens, resumed)
                for name in sampling:
                    self.pending[name] = self.pending.get(name, 0) + 1
                time_s = self.timer.step_s(batch) if output.total_num_scheduled_tokens else 0.0
                queue.append((output, sampling, time_s, copies, result))
            if queue:
                output, sampling, time_s, copies, result = queue.popleft()
                now_s += time_s
                self.begin(copies, now_s)
                self.hand_back(output, sampling, now_s, result)
            elif not heard:
                wakes = [copies[0][0] for copies in self.under_way if copies]
                wakes += [self.inbox[0][0]] if self.inbox else []
                if not self.inbox and not self.scheduler.has_unfinished_requests():
                    return
                now_s = max(now_s, min(wakes))
                self.receive(now_s + MOMENT_S)

    def ends_at(self, name: str) -> tuple[float, int]:
        return self.times_s[int(name)][-1], self.order.index(name)

    def hand_back(self, output: Any, sampling: list[str], now_s: float, result: KVConnectorOutput) -> None:
        names = list(output.num_scheduled_tokens)
        self.order = [str(index) for index in range(len(self.times_s))]
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=[[self.token(name)] if name in sampling else [] for name in names],
                kv_connector_output=result,
            ),
        )
        for name in sampling:
            self.pending[name] -= 1
            self.times_s[int(name)].append(now_s)
        for name in sampling:
            if len(self.times_s[int(name)]) == self.requests.output_len[int(name)]:
                self.send(now_s + self.client.response_s)


def main() -> None:
    parser = argparse.ArgumentParser(description="KV offloading in the replay beside vLLM's own.")
    parser.add_argument("--cases", type=int, default=300, help="how many random workloads")
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    options = parser.parse_args()
    init_none_hash(sha256)
    same = {False: 0, True: 0}
    count = {False: 0, True: 0}
    loaded = prompts = differ = requests_seen = 0
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(LLAMA))
        for case in range(options.first, options.first + options.cases):
            dice = random.Random(case)
            timer = LinearTimer(dice)
            workload, limits, client = random_case(dice)
            requests, texts = random_texts(dice, workload.requests(), answers=dice.random() < 0.5)
            limits = replace(
                with_prefixes(dice, limits, requests),
                host_blocks=dice.choice([6, 20, 60, 1000]),
                host_block_s=dice.choice([1e-6, 1e-4, 2e-3, 1e-2]),
            )
            try:
                ours = replay(timer, replace(workload, recorded=requests), limits, client)
            except InputError:
                continue
            bench = OffloadBench(
                vllm_scheduler(folder, limits, connector(limits)),
                timer, requests, limits, workload.max_concurrency or workload.num_prompts, client, texts,
            )  # fmt: skip
            bench.start(limits)
            bench.run()
            found = np.array(bench.found_tok)
            first_s = np.array([times[0] for times in bench.times_s]) + client.response_s
            end_s = np.array([times[-1] for times in bench.times_s]) + client.response_s
            error = max(np.abs(ours.first_token_s / first_s - 1).max(), np.abs(ours.end_s / end_s - 1).max())
            mode = limits.async_scheduling
            gpu_tok, vllm_tok = ours.cached_tok - ours.host_tok, found - np.array(bench.loaded_tok)
            gpu_tok = np.minimum(gpu_tok, requests.input_len - 1 - ours.host_tok)  # of a prompt that is all there
            wrong = int(((ours.host_tok != np.array(bench.loaded_tok)) | (gpu_tok != vllm_tok)).sum())
            count[mode] += 1
            same[mode] += error < MOMENT_S and not wrong
            differ, requests_seen = differ + wrong, requests_seen + len(found)
            loaded, prompts = loaded + sum(bench.loaded_tok), prompts + int(requests.input_len.sum())
            if wrong:
                print(f"case {case}: {ours.host_tok.tolist()} tokens loaded, {bench.loaded_tok} by vLLM")
            if wrong or error >= MOMENT_S:
                print(f"case {case}: off by {error:.2%}; {limits}")
    for mode, name in ((False, "synchronous"), (True, "asynchronous")):
        print(f"{name}: {same[mode]} of {count[mode]} alike")
    print(f"{loaded / prompts:.1%} of the prompt tokens loaded; {differ} of {requests_seen} requests differ from vLLM")


if __name__ == "__main__":
    main()
