"""What RMT and SANTA share: class prototypes from source data, and a contrastive loss that draws features to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.probes.features import Features, attach, head_of

_PROJECTOR = "projector"


def attach_projector(model: nn.Module, width: int) -> list[str]:
    """Give a private model a projector of its features to `width` numbers, and the names of its parameters."""
    features = head_of(model)[1].in_features

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width))

    return attach(model, _PROJECTOR, make)[1]


@torch.no_grad()
def class_means(network: Network, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean features of each class [classes, width] over batches of (images, labels), and which classes were there.

    >>> net = Network(nn.Sequential(nn.Identity(), nn.Linear(2, 3)))
    >>> means, seen = class_means(net, [(torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 0, 2]))])
    >>> means.tolist(), seen.tolist()
    ([[2.0, 0.0], [0.0, 0.0], [0.0, 4.0]], [True, False, True])
    """
    watched = Features.of(network.module)
    sums = counts = torch.zeros(0)
    for images, labels in batches:
        logits, features = watched.along(network, images)
        classes, features = logits.shape[1], features.to(network.dtype)
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(
                f"source labels must lie in 0 to {classes - 1}, the classes of the model; got "
                f"{int(labels.min())} to {int(labels.max())}"
            )
        if not len(sums):
            sums, counts = features.new_zeros(classes, features.shape[1]), features.new_zeros(classes)
        sums.index_add_(0, labels, features)
        counts += labels.bincount(minlength=classes)
    return sums / counts.clamp(min=1.0)[:, None], counts > 0


def prototypes(network: Network, source: SourceData, samples: int) -> Tensor:
    """Mean features [classes found, width] of the classes of source data, over a little more than `samples` images."""
    means, seen = class_means(network, _more_than(source, samples))
    return means[seen]


def _more_than(source: SourceData, samples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Labelled batches, up to the one that makes more than `samples` images."""
    count = 0
    for images, labels in source.labelled():
        yield images, labels
        count += len(images)
        if count > samples:
            return


def nearest_prototype(features: Tensor, prototypes: Tensor) -> Tensor:
    """The prototype [batch, width] with the largest cosine to each row of `features`.

    >>> nearest_prototype(torch.tensor([[0.2, 0.1]]), torch.tensor([[9.0, 0.0], [0.0, 1.0]])).tolist()
    [[9.0, 0.0]]
    """
    cosines = functional.normalize(features, dim=1) @ functional.normalize(prototypes, dim=1).T
    return prototypes[cosines.argmax(1)]


def contrast(model: nn.Module, prototypes: Tensor, features: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Contrastive loss of each image's features, those of another view of it, and the prototype nearest to it."""
    features, other = features.to(prototypes.dtype), other.to(prototypes.dtype)
    points = torch.stack([nearest_prototype(features.detach(), prototypes), features, other])
    projected: Tensor = head_of(model)[1].get_submodule(_PROJECTOR)(points)
    return contrastive_loss(functional.normalize(projected.to(points.dtype), dim=2), temperature)


def contrastive_loss(points: Tensor, temperature: float) -> Tensor:
    """Mean over all points [views, batch, width] of -log P of the other views of the same image.

    P is the softmax of the products with every other point, divided by `temperature`.

    >>> apart = torch.eye(2).expand(3, 2, 2)  # two images, the views of each alike
    >>> round(contrastive_loss(apart, 0.1).item(), 3)  # the best there is: P is shared by the two other views
    0.693
    """
    views, batch = points.shape[:2]
    flat = points.flatten(0, 1)
    itself = torch.eye(len(flat), dtype=torch.bool, device=flat.device)
    closeness = flat @ flat.T / temperature
    log_probabilities = closeness - closeness.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    image = torch.arange(batch, device=flat.device).repeat(views)
    others = ((image[:, None] == image) & ~itself).nonzero(as_tuple=True)
    return -log_probabilities[others].mean()
