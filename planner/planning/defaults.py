"""Defaults, limits of what may be asked for, and judgement constants of replays and searches, each once."""

from typing import Final, Literal

from planner.workload import CONFIDENCE as CONFIDENCE

Goal = Literal["min-latency", "max-throughput", "balanced"]
#: The unit of equal hardware: whole GPUs (``package``), nodes, or logical GPUs, where a partition counts as one.
Per = Literal["package", "node", "gpu"]
Bench = Literal["serve", "throughput", "latency"]
Objective = Literal["usd", "gpus", "watts"]  #: quantity that a fleet minimises
RentedBy = Literal["gpu", "node"]  #: ``gpu``: single GPUs, of partitions whole packages

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
GPUS = ("mi300x", "mi355x", "b200-sxm", "h100-sxm")
GPUS_PER_NODE = 8
GOAL: Final[Goal] = "balanced"
LEN = 1024  #: tokens of a prompt, and of an answer
LADDER = (0.5, 0.8, 0.95)  #: confidences whose price an answer shows
MARGIN = (0.2, 1)  #: headroom and spares whose price an answer shows where neither is asked for
COMPARED_CONCURRENCY = (8, 32, 128)  #: requests in flight at which GPUs are compared
LATENCY_CONCURRENCY = 8  #: requests in flight of ``min-latency``; ``balanced`` searches from here on
PERCENTILES = (50, 90, 95, 99)  #: of latencies, in a plan and in its benchmark

LONGEST_REPLAY_S = 1_000_000  #: eleven days; beyond, the clock gets too coarse for single steps
LEAST_RATE, MOST_RATE = 1e-3, 1e6  #: requests per second
LEAST_GB_PER_S, MOST_GB_PER_S = 1e-6, 1e6  #: of a link: 1 KB/s to 1 PB/s
LEAST_CONFIDENCE, MOST_CONFIDENCE = 0.05, 0.99  #: beyond, no run shows the errors of predictions
LEAST_BURSTINESS = 0.01  #: of a load that is planned for
MOST_LOADS = 64  #: of one comparison: a longer table is not read
FEW_HELD = 4  #: requests that the KV cache of a node holds, below which servers of two nodes are searched too
FEW_FOR_THROUGHPUT = 128  #: the same for max-throughput, below which an answer names what two nodes give
MOST_NODES = 8  #: of one server
REMEDY_NODES = 4  #: of one server, tried where no plan meets the targets
MOST_HEADROOM = 10.0  #: ten times the load; somebody who writes 20 means 20 %

PROMPTS_PER_SLOT = 5  #: of a closed loop: the recipes send at least five times the concurrency, for a steady state
MOST_PROMPTS_PER_SLOT = 20  #: of a benchmark under targets: the opening burst is then 5 % of the requests
PROMPTS_PER_FLYING = 3  #: of an open loop, which does not begin with a burst: this many for each request in flight
PROMPTS_BEYOND = 2  #: above the percentile that a target names: two beyond the 99th make 200
LEAST_SEARCH_PROMPTS, MOST_SEARCH_PROMPTS = 200, 10_000  #: where the largest load is searched
LEAST_SWEEP_PROMPTS, MOST_SWEEP_PROMPTS = 100, 4000  #: at each load of a chart
TRACE_PROMPTS = 2000  #: of a trace, on each server
NOISY = 1.1  #: misses of drawn sessions by less are noise where one server fewer meets the targets
PROMPTS_ALONE = 500  #: that show whether an idle server meets the targets

FEW_GPUS = 8  #: types of GPUs up to which each is searched finely
MAX_NUM_SEQS = 1024  #: vLLM's own default on large GPUs; larger batches are not searched
GOAL_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, MAX_NUM_SEQS)
HEAD_TOKENS = 32_768  #: of a request, beyond which no EAGLE head is searched: acceptance falls with the context
TARGET_BATCHES = (32, 128)  #: beside the largest that the memory holds: small batches keep steps short
#: Token budgets beside the one that recipes or vLLM would take. A small one keeps the gaps between tokens short while
#: prompts come in, a large one finishes prompts sooner.
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 16384)
CONTEXT_STEP = 256  #: ``max_model_len`` is a multiple of this, so that no odd value is launched
LONG_CONTEXT_STEP = 1024  #: the same of a serving line whose memory holds less than the model's context
MEDIA_CONTEXTS = (65_536, 32_768, 16_384, 8192)  #: of one with images, whose profile run takes memory by the context
LONGEST_CONTEXT = 2**20  #: of a serving line, unless asked for: Llama 4 declares ten times as much
USUAL_MAX_NUM_SEQS = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  #: what people launch with
USUAL_RANGE_RATIO = 0.2  #: of lengths, for DP ranks: InferenceX's vary by as much
FINALISTS = (6, 2)  #: engines of each GPU, and batches of each, that are replayed for a goal: the best first
COARSE_FINALISTS = (2, 1)  #: the same where there are many types of GPUs
TARGET_ALTERNATIVES = 2  #: engines of the lowest cost that are replayed beside the first, for the one with most slack
COMPARED_FINALISTS = 2  #: tensor-parallel sizes of each GPU that are replayed, the best by the closed form
FLEET_ENGINES = 3  #: of each GPU that a fleet is made of, the cheapest first
CLASS_ENGINES = 1  #: the same for each class of a fleet of several
BATCH_GUESSES = 2  #: of the largest batch, before the range that is left is halved
#: A server carries at most so many times the closed form, which knows no percentiles and no queue. A judgement
#: that the refusals name; benchmarks/results/search.md has the most that was seen.
OPTIMISM = 1.05
CROWDED = 1.5  #: the same of sessions, over the rate at which seldom more are in flight than in the closed form
LONG_STEPS = 0.5  #: share of the TPOT that decode steps without prompts make up where cutting prompts changes little
FAR_OFF = 1.03  #: expected over limit, by more than a token budget changes beyond the closed form's own order
#: Of a family that misses a target with prompts not seen before, members that are tried on few servers; and the prompts
#: that tell.
MEMBERS_WITHOUT_REUSE, COLD_PROMPTS = 2, 2000
MEMBERS_OF_A_TRACE = 3  #: of a recorded load, once there is a plan: each takes seconds to replay
ROOMY = 0.9  #: share of the KV blocks in use, at most, where no request waits for one
DECODE_SHARE = 0.25  #: of the target of TTFT that a decode server may take until it gives its first token
TIMES_WITHOUT_OFFLOADING = 4  #: as many servers as with blocks in host memory, that are looked at without
MOST_TIMES = 4  #: GPUs at another confidence over those of the plan; more are too uncertain to rent by
MIX_ROUNDS = 4  #: of solving a mix again, with the loads that servers carry in pools of the size found
MIX_GAIN = 0.05  #: share of what is minimised that a fleet of several GPU types saves, at least
SUSPICIOUS_TIMES = 2.0  #: GPUs over those of the expected value, and servers over requests in flight
SUSPICIOUS_IN_FLIGHT = 4  #: requests in flight on each of several servers, at most
LOOSER = 2.0  #: limits over the targets, that are tried where so few are in flight
LOOSEST = 5.0  #: limits over the targets, up to which a smaller server for few requests is named
SUSPICIOUS_WAIT_S = 60.0  #: mean TTFT


TOLERANCE = 0.03  #: ratio of loads that differ: a replay of so many requests scatters by as much
IDLE = 0.02  #: share of the time that an almost idle server is busy; an engine that misses targets here always does
NEAR_EDGE = 0.15  #: ratio of two loads between which the limit is read off a line, to about two digits
NEAR_LIMIT = 0.9  #: expected over limit of a load that is a better start than the closed form
USUALLY_KEPT = 0.9  #: of the closed form, where the queue of a slower engine is replayed too: a start, not a result
USUAL_PLACES = 256  #: most places of a serving line for a request rate, where targets and KV cache allow them
PLACES_HEAD_ROOM = 0.25  #: places of a serving line above the requests in flight, before it is rounded up
USUAL_BATCH = 32  #: requests in flight at which the doubt about the closed form is worked out; it hardly moves
EQUAL = 0.01  #: share by which figures of a comparison differ that are called equal: predictions are no better
CERTAIN = 0.95  #: probability of an order that is called certain: the 90 % interval of the ratio does not hold 1
SAME_REPLAY = 0.005  #: share by which a repeated replay may differ from its plan before a note says so
BEYOND = (1.25, 1.5, 2.0)  #: loads above a plan's own in a chart, to see what happens there
BELOW = (0.2, 0.4, 0.6, 0.8)  #: rates below it; of a closed loop the powers of two


def round_context(total_len: int) -> int:
    """The ``max_model_len`` that is launched for requests of ``total_len`` tokens."""
    return -(-total_len // CONTEXT_STEP) * CONTEXT_STEP
