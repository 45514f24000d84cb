"""LoRA for the transformer of a model, through peft; the heads stay trained in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer

from budgetvdr.training.models.model import ElasticModel


@dataclass(frozen=True, slots=True)
class Lora:
    """rank and alpha as peft has them; targets: ends of the names of the linear layers that get an adapter."""

    targets: Sequence[str]
    rank: int = 32
    alpha: int = 32
    dropout: float = 0.1


def add_lora(model: ElasticModel, lora: Lora) -> None:
    """Freezes the transformer and gives its layers adapters, in place.

    What is trained is float32 whatever the transformer is: half precision would lose small steps.

    Raises ValueError (peft's) where no layer has a name that ends as the targets say.
    """
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets)
    )
    backbone = model.backbone()
    backbone.requires_grad_(False)
    inject_adapter_in_model(config, backbone)
    model.heads().requires_grad_(True)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def merge_lora(model: ElasticModel) -> None:
    """Adds the adapters to the weights they adapt and takes them out, in place; without adapters nothing happens."""
    backbone = model.backbone()
    adapted = [(name, module) for name, module in backbone.named_modules() if isinstance(module, BaseTunerLayer)]
    for name, module in adapted:
        module.merge()
        parent, _, child = name.rpartition(".")
        backbone.get_submodule(parent).add_module(child, module.get_base_layer())
