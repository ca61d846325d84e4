# The settings, each declared once, and what they become; variables
from .settings import SETTINGS as SETTINGS
from .settings import PLANNED as PLANNED
from .settings import ANY_LENGTH as ANY_LENGTH
from .settings import EngineArgs as EngineArgs
from .settings import EngineConfig as EngineConfig
from .settings import SpeculativeConfig as SpeculativeConfig
from .settings import LoraConfig as LoraConfig
from .settings import flag_of as flag_of
from .resolution import stretched as stretched
from .settings import json_object as json_object
from .settings import media_limits as media_limits
from .settings import tagged as tagged
from .flags import CPU_KVCACHE_SPACE as CPU_KVCACHE_SPACE
from .flags import AITER as AITER
from .flags import is_on as is_on
from .flags import ALLOW_LONG as ALLOW_LONG
from .flags import BUFFER as BUFFER
from .flags import CHUNK as CHUNK
from .flags import FLASHINFER_SAMPLER as FLASHINFER_SAMPLER
from .flags import MXFP4_MARLIN as MXFP4_MARLIN
from .flags import VARIABLES as VARIABLES
from .flags import Environment as Environment
from .resolution import of_latency_bench as of_latency_bench
from .resolution import resolve as resolve
from .resolution import SHORT_NAMES as SHORT_NAMES
from .resolution import prefix_caching as prefix_caching
from .features import uses_latent_attention as uses_latent_attention

# Drafted tokens
from .resolution import FLAG as FLAG
from .resolution import IN_STEP as IN_STEP
from .resolution import RATE_FLAG as RATE_FLAG
from .resolution import UNTIMED as UNTIMED
from .resolution import assumed_acceptance as assumed_acceptance
from .resolution import check_draft as check_draft
from .resolution import read_drafts as read_drafts
from .resolution import searched_drafts as searched_drafts
from .resolution import with_imposed_acceptance as with_imposed_acceptance

# Versions of vLLM: their order, what each accepts, how it behaves, which of the two engines it runs
from .version import NEWEST as NEWEST
from .version import RELEASES as RELEASES
from .version import EngineVersion as EngineVersion
from .version import existing_version as existing_version
from .version import parse_version as parse_version
from .version import release_text as release_text
from .flags import env_status as env_status
from .flags import flag_status as flag_status
from .flags import value_status as value_status
from .features import Features as Features
from .features import Latents as Latents
from .features import features_of as features_of
from .features import default_utilization as default_utilization
from .features import sorts as sorts
from .features import state_blocks as state_blocks
from .features import capture_size as capture_size
from .features import graph_batches as graph_batches
from .features import version_features as version_features
from .features import lone_steps as lone_steps
from .features import asked_engine as asked_engine
from .features import default_engine as default_engine
from .features import has_both_engines as has_both_engines

# Who holds what: parallel axes, and the piece of each weight on a rank
from .sharding import Layout as Layout
from .sharding import Piece as Piece
from .sharding import check_layout as check_layout
from .sharding import cuts_expert_blocks as cuts_expert_blocks
from .sharding import held_heads as held_heads
from .sharding import held_piece as held_piece
from .sharding import legal_tensor_parallel_sizes as legal_tensor_parallel_sizes
from .sharding import stage_sizes as stage_sizes

# Command lines: ours, and those of others
from .command import EVERYWHERE as EVERYWHERE
from .command import LOOPBACK as LOOPBACK
from .command import head_node_words as head_node_words
from .command import bench_backend as bench_backend
from .command import bench_latency_argv as bench_latency_argv
from .command import bench_serve_argv as bench_serve_argv
from .command import bench_throughput_argv as bench_throughput_argv
from .command import program_argv as program_argv
from .command import serve_argv as serve_argv
from .launches import Found as Found
from .launches import Launch as Launch
from .launches import find_launches as find_launches
from .launches import read_manifest as read_manifest
from .launches import shell_word as shell_word
from .launches import version_of_images as version_of_images
from .flags import FlagProblem as FlagProblem
from .parse import ServeLine as ServeLine
from .parse import option_values as option_values
from .parse import read_line as read_line
from .parse import without_drafts as without_drafts
from .parse import split_command as split_command

# What runs it, and what publishers of recipes set and report broken
from .published import Image as Image
from .published import ImageBuild as ImageBuild
from .published import builds as builds
from .published import default_version as default_version
from .published import docker_args as docker_args
from .published import image_for as image_for
from .published import options_version as options_version
from .published import visible_devices as visible_devices
from .published import Recipe as Recipe
from .published import ADVISED_UTILIZATION as ADVISED_UTILIZATION
from .published import DEEPSEEK_MAX_MODEL_LEN as DEEPSEEK_MAX_MODEL_LEN
from .published import MOST_UTILIZATION as MOST_UTILIZATION
from .published import known_issues as known_issues
from .published import recipe_for as recipe_for
from .published import recipe_release as recipe_release
from .published import without_kernels as without_kernels
from .published import without_sums as without_sums
from .published import reason_beside_recipe as reason_beside_recipe
from .published import stated_words as stated_words
from .published import spelled_options as spelled_options
