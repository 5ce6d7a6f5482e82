"""Tokens: what a vision transformer makes of the patches of an image, and how to hide some of them from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core.mode import Mode

Watched = Literal["pixels", "attention", "final"]


@dataclass(frozen=True)
class Layout:
    """Where the parts of a vision transformer are. A patch is what one token of its last block covers."""

    embedding: nn.Module
    """Images to embeddings [batch, width, rows, columns], before any position is added."""
    blocks: list[nn.Module]
    attention: nn.Module
    """Of the last block."""
    norm: nn.Module
    """The final one."""
    prefix: int = 0
    """Tokens before those of the patches, the class token first."""
    merge: int = 1
    """Embeddings along each side of a patch."""
    drops: bool = True
    """Whether the blocks do with fewer tokens; otherwise those left out are set to zero."""

    @property
    def patch(self) -> int:
        """Pixels along each side of a patch."""
        side = self.merge
        for convolution in self._convolutions():
            side *= convolution.stride[0]
        return side

    @property
    def channels(self) -> int:
        """Of the images that are embedded."""
        return self._convolutions()[0].in_channels

    @property
    def embedding_width(self) -> int:
        """Of the embeddings that enter the first block."""
        return self._convolutions()[-1].out_channels

    @property
    def width(self) -> int:
        """Of the tokens after the last block."""
        return self.projection[0].shape[1]

    @property
    def projection(self) -> tuple[Tensor, Tensor | None]:
        """Weight [3 x width, width] and bias of the last block's queries, keys and values."""
        attention: Any = self.attention
        if isinstance(attention, nn.MultiheadAttention):
            return attention.in_proj_weight, attention.in_proj_bias
        return attention.qkv.weight, attention.qkv.bias

    def _convolutions(self) -> list[nn.Conv2d]:
        return [module for module in self.embedding.modules() if isinstance(module, nn.Conv2d)]


class SeenTokens:
    """What a transformer's latest pass within `Tokens.watching` showed."""

    def __init__(self, layout: Layout, watched: tuple[Watched, ...]) -> None:
        self.layout, self.watched = layout, watched
        self._tensors: dict[Watched, Tensor] = {}

    def final(self) -> Tensor:
        """Tokens [batch, patches, width] after the final norm, attached to the graph."""
        return self._of("final")[:, self.layout.prefix :]

    def pixels(self) -> Tensor:
        """The images [batch, channels, height, width] as the transformer itself was given them."""
        return self._of("pixels")

    @torch.no_grad()
    def attention(self) -> Tensor:
        """How much the class token attends to each patch in the last block [batch, patches], the mean over its heads.

        Without a class token: how much all tokens do, on average.
        """
        attention: Any = self.layout.attention
        heads: int = attention.num_heads if hasattr(attention, "num_heads") else attention.heads
        tokens = self._of("attention")
        weight, bias = self.layout.projection
        rows = weight.shape[0] // 3

        def project(tokens: Tensor, start: int, norm: str) -> Tensor:
            part = functional.linear(tokens, weight[start:][:rows], None if bias is None else bias[start:][:rows])
            by_head = part.view(*part.shape[:2], heads, -1).transpose(1, 2)
            normed: Tensor = getattr(attention, norm)(by_head) if hasattr(attention, norm) else by_head
            return normed

        query = project(tokens[:, :1] if self.layout.prefix else tokens, 0, "q_norm")
        key = project(tokens, rows, "k_norm")
        weights = torch.softmax((query @ key.mT).float() * query.shape[-1] ** -0.5, dim=-1)
        return weights.mean((1, 2))[:, self.layout.prefix :]

    def keep(self, what: Watched, tensor: Tensor) -> None:
        """Called by the hooks."""
        if what in self.watched:
            self._tensors[what] = tensor

    def _of(self, what: Watched) -> Tensor:
        if what not in self._tensors:
            raise ValueError(f"no {what} was seen: run the model within watching({what!r})")
        return self._tensors[what]


class Tokens(Mode):
    """Watches the tokens of a vision transformer, and hides patches from it.

    It works by hooks on the private model, so that wrappers around the transformer run as they are. A method
    calls `Tokens.hook(model, ...)` in `configure`, which is before a compiled model is traced, and
    `Tokens.of(network.module)` afterwards.

    >>> from tidefast.testing import small_network
    >>> net, images = small_network("attention").eval(), torch.rand(2, 3, 32, 32)
    >>> tokens = Tokens.hook(net, "REM")
    >>> with tokens.watching("attention") as seen:
    ...     logits = net(images)
    >>> least = seen.attention().topk(12, largest=False).indices
    >>> with tokens.only(least):
    ...     net(images).shape
    torch.Size([2, 10])
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._seen = SeenTokens(layout, ())
        self._grid = (0, 0)
        self._replaced: tuple[Tensor, Tensor] | None = None
        self._kept: Tensor | None = None

    @classmethod
    def hook(cls, model: nn.Module, method: str) -> Tokens:
        """Give a private model its hooks; a model that is no known vision transformer is refused in `method`'s name."""
        tokens = cls(find_layout(model, method))
        tokens.layout.embedding.register_forward_hook(tokens._after_embedding)
        tokens.layout.blocks[0].register_forward_pre_hook(tokens._before_blocks)
        tokens.layout.attention.register_forward_pre_hook(tokens._before_attention)
        tokens.layout.norm.register_forward_hook(tokens._after_norm)
        return tokens

    @classmethod
    def of(cls, model: nn.Module) -> Tokens:
        """What `hook` gave for this model."""
        for module in model.modules():
            for hook in module._forward_hooks.values():
                owner = getattr(hook, "__self__", None)
                if isinstance(owner, cls):
                    return owner
        raise ValueError("this network has no hooks on its tokens: call Tokens.hook(model, ...) in configure")

    @contextmanager
    def watching(self, *what: Watched) -> Iterator[SeenTokens]:
        """Within the block, what is named is seen of each pass; gives that of the latest."""
        seen = SeenTokens(self.layout, what)
        with self.during(_seen=seen):
            yield seen

    def replaced(self, patches: Tensor, by: Tensor) -> AbstractContextManager[None]:
        """Within the block, embeddings of the `patches` [batch, patches], a mask, are `by` [width]."""
        return self.during(_replaced=(patches, by))

    def only(self, kept: Tensor) -> AbstractContextManager[None]:
        """Within the block, the blocks see only the patches at `kept` [batch, number], and the tokens before them."""
        return self.during(_kept=kept)

    def _after_embedding(self, module: nn.Module, inputs: tuple[Tensor, ...], embeddings: Tensor) -> Tensor | None:
        self._grid = embeddings.shape[-2], embeddings.shape[-1]
        self._seen.keep("pixels", inputs[0].detach())
        if self._replaced is None:
            return None
        patches, by = self._replaced
        return torch.where(self._spread(patches)[:, None], by.to(embeddings.dtype).view(-1, 1, 1), embeddings)

    def _before_blocks(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._kept is None:
            return None
        tokens, prefix = inputs[0], self.layout.prefix
        if self.layout.drops:
            kept = self._kept[:, :, None].expand(-1, -1, tokens.shape[2])
            tokens = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, kept)], dim=1)
        else:
            rows, columns = (side // self.layout.merge for side in self._grid)
            patches = torch.zeros(len(tokens), rows * columns, dtype=tokens.dtype, device=tokens.device)
            tokens = tokens * self._spread(patches.scatter(1, self._kept, 1.0)).flatten(1)[:, :, None]
        return (tokens, *inputs[1:])

    def _before_attention(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen.keep("attention", inputs[0].detach())

    def _after_norm(self, module: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
        self._seen.keep("final", outputs)

    def _spread(self, patches: Tensor) -> Tensor:
        """Values of patches [batch, patches] at each embedding [batch, rows, columns]."""
        merge = self.layout.merge
        grid = patches.view(len(patches), self._grid[0] // merge, self._grid[1] // merge)
        return grid.repeat_interleave(merge, dim=1).repeat_interleave(merge, dim=2) if merge > 1 else grid


def find_layout(model: nn.Module, method: str) -> Layout:
    """The layout of the vision transformer in `model`, wherever in it that is."""
    for module in model.modules():
        for read in (_timm, _torchvision, _small):
            layout = read(module)
            if layout is not None:
                return layout
    raise ValueError(
        f"{method} works on the tokens of a vision transformer, and {type(model).__name__} has none of a known layout: "
        "those of timm's VisionTransformer, torchvision's VisionTransformer and tidefast's SmallViT"
    )


def _timm(module: Any) -> Layout | None:
    if not _has(module, "patch_embed", "blocks", "norm", "head") or getattr(module, "rope", None) is not None:
        return None
    embedding, blocks = getattr(module.patch_embed, "proj", None), list(module.blocks)
    attention: Any = getattr(blocks[-1], "attn", None)
    if not isinstance(embedding, nn.Conv2d) or not isinstance(getattr(attention, "qkv", None), nn.Linear):
        return None
    known = {"qkv", "proj", "q_norm", "k_norm", "norm", "gate"}
    if {name.partition(".")[0] for name, _ in attention.named_parameters()} - known:
        return None  # a bias between pairs of tokens, for instance, which ties the block to their number
    has_class_token = getattr(module, "cls_token", None) is not None
    prefix: int = getattr(module, "num_prefix_tokens", int(has_class_token))
    return Layout(embedding, blocks, attention, module.norm, prefix)


def _torchvision(module: Any) -> Layout | None:
    if not _has(module, "conv_proj", "class_token", "encoder") or not _has(module.encoder, "layers", "ln"):
        return None
    blocks = list(module.encoder.layers)
    if not isinstance(getattr(blocks[-1], "self_attention", None), nn.MultiheadAttention):
        return None
    return Layout(module.conv_proj, blocks, blocks[-1].self_attention, module.encoder.ln, prefix=1)


def _small(module: Any) -> Layout | None:
    """Tokens of SmallViT have neighbours, so that none can be left out, and half-way they are merged."""
    if not _has(module, "stem", "early", "merge", "late", "norm"):
        return None
    blocks = [*module.early, *module.late]
    return Layout(module.stem, blocks, blocks[-1].attention, module.norm, merge=module.merge.stride[0], drops=False)


def _has(module: Any, *names: str) -> bool:
    return all(hasattr(module, name) for name in names)
