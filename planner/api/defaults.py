"""What is taken where nothing is said, by the commands that compare and recommend; and how much may be asked for."""

DEFAULT_MODEL = "meta-llama/Llama-3.3-70B-Instruct"
DEFAULT_GPUS = ("mi300x", "mi355x", "b200-sxm", "h100-sxm")
DEFAULT_LEN = 1024  #: tokens in, and tokens out
GPUS_PER_NODE = 8
DEFAULT_CONCURRENCY = (8, 32, 128)  #: requests in flight at which GPUs are compared
MOST_LOADS = 64  #: of one comparison; more than anybody reads
MOST_PROMPTS = 100_000  #: a replay takes seconds for so many; no benchmark sends more
