"""Online clustering: a few centroids that follow a stream of vectors, and grow in number where it goes far from all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tidefast.core import losses
from tidefast.core.state import Field, State, Value

_WEIGHT_DECAY, _BETAS, _EPSILON = 0.01, (0.9, 0.999), 1e-8  # AdamW's own
_LARGEST_COUNT = 10  # of points, times those held: later ones replace as many as these would


@dataclass(frozen=True)
class Clusters:
    """Up to `most` centroids in the space of `center`, which is the first; all of them learn from a buffer of points.

    Kept in declared state: centroids as offsets from the center, AdamW's moments of them, and the points held. The
    points are a sample of the stream, of `buffer` / `most` for each centroid.

    >>> clusters = Clusters(torch.zeros(2), most=2, buffer=8)
    >>> state, point = State(clusters.fields()), torch.tensor([3.0, 4.0])
    >>> clusters.distances(state, point).tolist()
    [5.0]
    >>> state.update(clusters.learn(state, point, torch.Generator(), opens=True))
    >>> clusters.distances(state, point).round(decimals=3).tolist()
    [5.0, 0.0]
    """

    center: Tensor
    """[channels]"""
    most: int
    buffer: int
    rate: float = 1e-4
    """At which the centroids learn."""

    def fields(self) -> list[Field]:
        """What survives from one point to the next."""

        def zeros(rows: int) -> Tensor:
            return self.center.new_zeros((rows, len(self.center)))

        return [
            Field("opened", lambda: 1, "stream"),
            Field("offsets", lambda: zeros(self.most), "stream"),
            Field("offset_mean", lambda: zeros(self.most), "stream"),
            Field("offset_square", lambda: zeros(self.most), "stream"),
            Field("offset_steps", lambda: 0, "stream"),
            Field("points", lambda: zeros(self.buffer), "stream"),
            Field("points_held", lambda: 0, "stream"),
            Field("points_seen", lambda: 0, "stream"),
        ]

    def distances(self, state: State, point: Tensor) -> Tensor:
        """From a point [channels] to each centroid [opened]."""
        offsets = state.tensor("offsets")[: int(state.number("opened"))]
        distances: Tensor = torch.linalg.vector_norm(point - self.center - offsets, dim=1)
        return distances

    def learn(self, state: State, point: Tensor, generator: torch.Generator, *, opens: bool) -> dict[str, Value]:
        """New state after a point; with `opens` a centroid begins there, and all of them begin to learn anew."""
        opened, steps = int(state.number("opened")), int(state.number("offset_steps"))
        offsets, mean, square = (state.tensor(name).clone() for name in ("offsets", "offset_mean", "offset_square"))
        if opens:
            offsets[opened] = point - self.center
            opened, steps = opened + 1, 0
            mean.zero_()
            square.zero_()
        if opened > 1:  # the gradient of a single one is zero
            steps += 1
            points = torch.cat([state.tensor("points")[: int(state.number("points_held"))], point[None]])
            gradient = clustering_gradient(points - self.center, offsets[:opened])
            _adamw(offsets[:opened], gradient, mean[:opened], square[:opened], steps, self.rate)
        return {
            "opened": opened,
            "offsets": offsets,
            "offset_mean": mean,
            "offset_square": square,
            "offset_steps": steps,
            **self._remember(state, point, generator, opened),
        }

    def _remember(self, state: State, point: Tensor, generator: torch.Generator, opened: int) -> dict[str, Value]:
        """Reservoir sampling: every point seen so far is as likely to be held."""
        held, seen = int(state.number("points_held")), int(state.number("points_seen")) + 1
        capacity = opened * (self.buffer // self.most)
        place = held if held < capacity else int(torch.randint(seen, (), generator=generator))
        updates: dict[str, Value] = {"points_seen": capacity if seen > _LARGEST_COUNT * capacity else seen}
        if place < capacity:
            points = state.tensor("points").clone()
            points[place] = point
            updates |= {"points": points, "points_held": max(held, place + 1)}
        return updates


def clustering_gradient(points: Tensor, centroids: Tensor) -> Tensor:
    """Gradient [centroids, channels] of mean H(P_i) - H(mean P), where row i of P is softmax_k -|point_i - centroid_k|.

    Its descent makes the assignment of each point sure, and the clusters alike in size.

    >>> points = torch.tensor([[0.0], [1.0], [9.0], [10.0]])
    >>> clustering_gradient(points, torch.tensor([[4.0], [6.0]])).sign().tolist()  # apart
    [[1.0], [-1.0]]
    """
    with torch.enable_grad():
        free = centroids.detach().clone().requires_grad_()
        scores = -torch.cdist(points, free, compute_mode="donot_use_mm_for_euclid_dist")  # exact for near points
        mean = scores.softmax(1).mean(0)
        loss = losses.entropy(scores).mean() + (mean * torch.log(mean + 1e-8)).sum()
        return torch.autograd.grad(loss, free)[0]


def _adamw(values: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, steps: int, rate: float) -> None:
    """Step number `steps` of AdamW, in place."""
    mean.lerp_(gradient, 1.0 - _BETAS[0])
    square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1.0 - _BETAS[1])
    scale = (square / (1.0 - _BETAS[1] ** steps)).sqrt_().add_(_EPSILON)
    values.mul_(1.0 - rate * _WEIGHT_DECAY).addcdiv_(mean, scale, value=-rate / (1.0 - _BETAS[0] ** steps))
