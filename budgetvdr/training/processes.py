"""Several processes as one: token states of all of them with gradients, and one gradient for all.

Every process scores its own queries against the pages of all processes. The losses' mean over processes is then the
loss of the whole batch, and its gradient the mean of the processes' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import PartialState
from torch import Tensor, nn

from budgetvdr.training.scores import TokenStates


def join_processes(*, cpu: bool = False) -> PartialState:
    """This process's place among those that `torchrun` or `accelerate launch` started; one alone where none did.

    cpu: stay on the CPU where there is a GPU. The first call of a process decides for all later ones.
    """
    # Without being told, accelerate joins no processes where there is no GPU: each would train for itself.
    return PartialState(cpu=cpu or not torch.cuda.is_available())


def share(count: int, process: int, processes: int) -> range:
    """The rows of a batch that fall to one process."""
    return range(process, count, processes)


def gathered_order(count: int, processes: int) -> list[int]:
    """The rows of a batch in the order in which `gather_states` returns them."""
    return [row for process in range(processes) for row in share(count, process, processes)]


def gather_states(states: TokenStates, count: int, state: PartialState) -> TokenStates:
    """The states of all processes' shares of `count` rows, in `gathered_order`; gradients flow back to their owners."""
    if state.num_processes == 1:
        return states
    sizes = [len(share(count, process, state.num_processes)) for process in range(state.num_processes)]
    longest = torch.tensor(states.mask.shape[1], device=states.mask.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padding = (0, int(longest) - states.mask.shape[1], 0, max(sizes) - len(states.mask))
    depths = list(states.exits)
    # One exchange for all exits: (rows, exits, tokens, width).
    stacked = torch.stack([states.exits[depth].float() for depth in depths])
    stacked = F.pad(stacked, (0, 0, *padding)).transpose(0, 1)
    gather: Callable[[Tensor, PartialState], Tensor] = _Gather.apply
    vectors = _trimmed(gather(stacked, state), sizes)
    mask = _trimmed(_all_gather(F.pad(states.mask, padding).to(torch.uint8), state), sizes).bool()
    return TokenStates({depth: vectors[:, index] for index, depth in enumerate(depths)}, mask)


def average_gradients(parameters: Iterable[nn.Parameter], state: PartialState) -> None:
    """Replaces every gradient by its mean over the processes."""
    if state.num_processes == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= state.num_processes


def mean_over_processes(value: Tensor, state: PartialState) -> float:
    """The mean of a scalar."""
    value = value.detach().clone()
    if state.num_processes > 1:
        dist.all_reduce(value)
    return value.item() / int(state.num_processes)


def _trimmed(gathered: Tensor, sizes: Sequence[int]) -> Tensor:
    """(processes, most rows, ...) -> (rows of all, ...), without what was filled up."""
    return torch.cat([block[:size] for block, size in zip(gathered, sizes, strict=True)])


def _all_gather(tensor: Tensor, state: PartialState) -> Tensor:
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(state.num_processes)]
    dist.all_gather(parts, tensor.contiguous())
    return torch.stack(parts)


class _Gather(torch.autograd.Function):
    """all_gather whose backward adds up what every process has to say about this process's share."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, state: PartialState) -> Tensor:
        ctx.process = state.process_index
        return _all_gather(tensor, state)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total[ctx.process], None
