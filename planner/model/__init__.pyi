# what a model is made of
from .architecture import Attention as Attention
from .architecture import Component as Component
from .architecture import CompressedAttention as CompressedAttention
from .architecture import LatentAttention as LatentAttention
from .architecture import Layer as Layer
from .architecture import Mixer as Mixer
from .architecture import Model as Model
from .architecture import Moe as Moe
from .architecture import PerModel as PerModel
from .architecture import Shard as Shard
from .architecture import SparseIndexer as SparseIndexer
from .architecture import StateMixer as StateMixer
from .architecture import Weight as Weight

# the bundled facts of well-known models
from .catalog import CatalogEntry as CatalogEntry
from .catalog import Checkpoint as Checkpoint
from .catalog import catalog_ids as catalog_ids
from .catalog import find_entry as find_entry
from .catalog import quantized_checkpoints as quantized_checkpoints

# bytes and arithmetic of a weight, and of the cache
from .precision import FP8_BLOCK as FP8_BLOCK
from .precision import KV_ELEMENT_BYTES as KV_ELEMENT_BYTES
from .precision import UNQUANTIZED as UNQUANTIZED
from .precision import Precision as Precision
from .precision import Quantization as Quantization

# another form of the same model
from .quantization import as_quantized as as_quantized
from .quantization import AT_LOAD_TIME as AT_LOAD_TIME
from .quantization import load_quantized as load_quantized

# modules for multi-token prediction
from .blocks import mtp_projections as mtp_projections
from .blocks import with_overrides as with_overrides

# from a name to a model
from .resolve import GGUF as GGUF
from .resolve import ResolvedModel as ResolvedModel
from .resolve import resolve_model as resolve_model
