"""Fewer vectors a page, chosen when it is added: one method a file, all of them `Compression`."""

from budgetvdr.bundle import Window
from budgetvdr.compress.anchorfold import AnchorFold
from budgetvdr.compress.chance import RandomSelection
from budgetvdr.compress.clustering import Clustering
from budgetvdr.compress.docpruner import DocPruner
from budgetvdr.compress.pooling import Pooling
from budgetvdr.compress.sap import StructuralPruning
from budgetvdr.compress.score_ratio import score_ratio
from budgetvdr.compress.signals import Attention, Compressed, Compression, Signals, attention_for, joined, token_signals
from budgetvdr.compress.size import Sized
from budgetvdr.compress.ward import WardPooling
from budgetvdr.compress.wardfold import WardFold

__all__ = [
    "AnchorFold",
    "Attention",
    "Clustering",
    "Compressed",
    "Compression",
    "DocPruner",
    "Pooling",
    "RandomSelection",
    "Signals",
    "Sized",
    "StructuralPruning",
    "WardFold",
    "WardPooling",
    "Window",
    "attention_for",
    "joined",
    "score_ratio",
    "token_signals",
]
