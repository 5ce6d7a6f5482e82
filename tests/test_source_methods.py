"""RMT, SANTA and DPLOT, which learn from source data first, against plain torch code and the checks of their papers."""

from __future__ import annotations

import copy
import functools
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import tidefast
from tidefast import methods
from tidefast.core import losses
from tidefast.core.network import Network
from tidefast.core.source import SourceData
from tidefast.methods.dplot import block_names, spans_of
from tidefast.methods.shared.contrastive import class_means, contrastive_loss, nearest_prototype, prototypes
from tidefast.methods.shared.warmup import WarmTeacher
from tidefast.probes.features import Features, head_of
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = functools.partial(torch.optim.Adam, lr=1e-3)
# In float64: Adam makes whole steps of the rounding errors of gradients that are 0, as of biases before BatchNorm.
RANDOM = functools.partial(torch.rand, dtype=torch.float64)
IMAGES = RANDOM(5, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
SOURCE = RANDOM(24, 3, 16, 16, generator=torch.Generator().manual_seed(2)), torch.arange(24) % 10
LOADER = [(SOURCE[0][start : start + 8], SOURCE[1][start : start + 8]) for start in (0, 8, 16)]
CLOSE = functools.partial(torch.testing.assert_close, rtol=1e-6, atol=1e-8)


def mirrored(images: torch.Tensor) -> torch.Tensor:
    return images.flip(3)


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).double().eval()


def plain() -> nn.Sequential:
    """The small network with batch statistics, as a user would write it."""
    net = network()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
            module.track_running_stats = False
    return net


def plain_projector() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128)).double()


def sce(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    one = -(teacher.softmax(1) * student.log_softmax(1)).sum(1)
    other = -(student.softmax(1) * teacher.log_softmax(1)).sum(1)
    return (0.5 * one + 0.5 * other).mean()


def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.mul_(momentum).add_(fast, alpha=1.0 - momentum)


def flat(*modules: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for module in modules for p in module.parameters()])


def contrast_by_hand(points: list[torch.Tensor], temperature: float) -> torch.Tensor:
    """Views of a batch, each [batch, width] at length 1; sums written out."""
    batch, terms = len(points[0]), []
    vectors = [vector for view in points for vector in view]
    for a, anchor in enumerate(vectors):
        products = [anchor @ other / temperature for o, other in enumerate(vectors) if o != a]
        total = sum(product.exp() for product in products)
        positives = [o for o in range(len(vectors)) if o != a and o % batch == a % batch]
        terms.append(-sum(torch.log((anchor @ vectors[o] / temperature).exp() / total) for o in positives) / 2)
    return sum(terms) / len(terms)


def nearest_by_hand(features: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    chosen = []
    for feature in features:
        cosines = [float(feature @ c / feature.norm() / c.norm()) for c in candidates]
        chosen.append(candidates[max(range(len(cosines)), key=cosines.__getitem__)])
    return torch.stack(chosen)


def means_by_hand(net: nn.Sequential, loader=LOADER) -> torch.Tensor:
    """Mean features of the classes [10, width]; every class is there."""
    with torch.no_grad():
        features = torch.cat([net[:-1](images) for images, _ in loader])
    labels = torch.cat([labels for _, labels in loader])
    return torch.stack([features[labels == label].mean(0) for label in range(10)])


class Half(tidefast.resets.Never):
    """Resets the deeper half after every step."""

    def observe(self, step, state):
        return tidefast.resets.base.Verdict(fraction=0.5, cut=step.network.arena.cut(0.5))


# -- what they share ----------------------------------------------------------------------------------------------


def test_the_contrastive_loss_is_the_sum_written_out_by_hand():
    points = functional.normalize(torch.randn(3, 5, 7, dtype=torch.float64), dim=2).requires_grad_()
    ours = contrastive_loss(points, 0.1)
    by_hand = contrast_by_hand(list(points), 0.1)
    CLOSE(ours, by_hand)
    CLOSE(torch.autograd.grad(ours, points)[0], torch.autograd.grad(by_hand, points)[0])
    far = functional.normalize(torch.randn(3, 1, 7), dim=2)
    assert torch.isfinite(contrastive_loss(far, 0.001))  # a lone image, and products that exp() cannot hold


def test_the_nearest_prototype_is_that_of_the_largest_cosine():
    features, candidates = torch.randn(20, 6), torch.randn(4, 6) * torch.tensor([[9.0], [1.0], [0.1], [3.0]])
    assert torch.equal(nearest_prototype(features, candidates), nearest_by_hand(features, candidates))


def configured() -> Network:
    return Network(network(), methods.SANTA().configure)


def test_prototypes_are_class_means_under_batch_statistics():
    found = prototypes(configured(), SourceData(configured(), LOADER, "RMT"), 100)
    CLOSE(found, means_by_hand(plain()))


def test_prototypes_stop_after_enough_images_and_leave_out_classes_without_any():
    asked = []

    class Loader:
        def __iter__(self):
            for batch in LOADER:
                asked.append(len(batch[0]))
                yield batch

    net = configured()
    found = prototypes(net, SourceData(net, Loader(), "RMT"), 7)
    assert asked == [8]
    assert len(found) == 8
    means, seen = class_means(net, [(SOURCE[0][:4], torch.tensor([0, 0, 5, 5]))])
    assert means.shape == (10, 16)
    assert seen.nonzero()[:, 0].tolist() == [0, 5]


def test_labels_beyond_the_classes_are_refused():
    net = configured()
    with pytest.raises(ValueError, match=r"must lie in 0 to 9, .* got 0 to 12"):
        prototypes(net, SourceData(net, [(SOURCE[0][:2], torch.tensor([0, 12]))], "RMT"), 10)
    with pytest.raises(ValueError, match="SANTA needs labelled source data"):
        tidefast.adapt(network(), "santa", source=SOURCE[0])


def warmed_by_hand(optimizer, steps: int, momentum: float) -> tuple[nn.Sequential, nn.Sequential]:
    student, teacher = plain(), plain()
    rate = optimizer.keywords["lr"]
    moving = optimizer(student.parameters())
    for number, (images, _) in enumerate(itertools.islice(itertools.cycle(LOADER), steps)):
        moving.param_groups[0]["lr"] = rate * (number + 1) / steps
        loss = sce(student(images), teacher(images).detach())
        moving.zero_grad()
        loss.backward()
        moving.step()
        follow(teacher, student, momentum)
    return student, teacher


@pytest.mark.parametrize("adam", [True, False])
def test_the_warm_up_is_what_it_is_by_hand_and_is_where_resets_return_to(adam):
    method = methods.RMT(teacher_momentum=0.9, warmup_samples=40, adam=adam, learning_rate=1e-3)
    sgd = functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9, nesterov=True)
    student, teacher = warmed_by_hand(ADAM if adam else sgd, 5, 0.9)
    adapted = tidefast.adapt(network(), method, source=LOADER, num_classes=10, reset=Half())
    arena, size = adapted.network.arena, len(flat(student))
    CLOSE(arena.values[:size], flat(student))
    CLOSE(adapted.state["method"].tensor("teacher")[:size], flat(teacher))
    assert not torch.equal(flat(student), flat(plain()))
    projector = flat(plain_projector())
    assert torch.equal(arena.values[size:], projector)
    start, teacher_start = arena.values.clone(), adapted.state["method"].tensor("teacher").clone()
    adapted(IMAGES[0])
    cut = arena.cut(0.5)
    assert 0 < cut < len(arena)
    for now, before in ((arena.values, start), (adapted.state["method"].tensor("teacher"), teacher_start)):
        assert torch.equal(now[cut:], before[cut:])
        assert not torch.equal(now[:cut], before[:cut])
    adapted.reset()
    assert torch.equal(arena.values, start)
    assert torch.equal(adapted.state["method"].tensor("teacher"), teacher_start)


@pytest.mark.parametrize(
    ("samples", "passes", "steps"), [(50_000, 5, 15), (50_000, 1, 3), (40, 5, 5), (3, 5, 1), (0, 5, 0)]
)
def test_a_warm_up_goes_over_little_source_data_only_so_often(samples, passes, steps):
    method = WarmTeacher(warmup_samples=samples, warmup_passes=passes)
    net = Network(network(), method.configure)
    assert method._warmup_steps(SourceData(net, LOADER, "RMT")) == steps


# -- RMT ----------------------------------------------------------------------------------------------------------


def test_rmt_steps_as_written_out_by_hand():
    """Three steps with every term of the loss, from a warmed start."""
    method = methods.RMT(
        teacher_momentum=0.9, warmup_samples=16, adam=True, learning_rate=1e-3, augment=mirrored, temperature=0.2,
        target_weight=0.9, contrastive_weight=0.8, source_weight=0.7,
    )  # fmt: skip
    adapted = tidefast.adapt(network(), method, optimizer=SGD, source=LOADER)
    centres = means_by_hand(plain())
    student, teacher = warmed_by_hand(ADAM, 2, 0.9)
    projector = plain_projector()
    optimizer = SGD([*student.parameters(), *projector.parameters()])
    for number, images in enumerate(IMAGES[:3], start=1):
        target = teacher(images).detach()
        features, views = student[:-1](images), student[:-1](mirrored(images))
        logits, of_views = student[-1](features), student[-1](views)
        CLOSE(adapted(images), (logits + target).detach() / 2)
        points = [nearest_by_hand(features.detach(), centres), features, views]
        contrast = contrast_by_hand([functional.normalize(projector(p), dim=1) for p in points], 0.2)
        drawn = torch.randperm(24, generator=torch.Generator().manual_seed(number))[:8]
        replay = functional.cross_entropy(student(SOURCE[0][drawn]), SOURCE[1][drawn])
        loss = 0.9 * 0.5 * (sce(logits, target) + sce(of_views, target)) + 0.8 * contrast + 0.7 * replay
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student, 0.9)
    CLOSE(adapted.network.arena.values, flat(student, projector))
    CLOSE(adapted.predict(IMAGES[4]), (student(IMAGES[4]) + teacher(IMAGES[4])).detach() / 2)


def test_rmt_without_its_source_terms_is_a_symmetric_mean_teacher():
    method = methods.RMT.source_free(contrastive_weight=0.0, warmup_samples=0, augment=torch.clone)
    assert method.needs_source is None
    adapted = tidefast.adapt(network(), method, optimizer=SGD)
    student, teacher = plain(), plain()
    optimizer = SGD(student.parameters())
    for images in IMAGES[:3]:
        loss = sce(student(images), teacher(images).detach())
        adapted(images)
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(teacher, student, 0.999)
    size = len(flat(student))
    CLOSE(adapted.network.arena.values[:size], flat(student))
    assert torch.equal(adapted.network.arena.values[size:], adapted.network.arena.source[size:])


def test_source_free_rmt_keeps_no_source_image():
    adapted = tidefast.adapt(network(), methods.RMT.source_free(), source=LOADER)
    assert sorted(adapted.constants) == ["prototypes", "start", "teacher_start"]
    assert methods.RMT.source_free().passes(1.0) == (3.0, 2.0)
    with_replay = tidefast.adapt(network(), methods.RMT(replay_samples=10, warmup_samples=0), source=LOADER)
    assert with_replay.constants["replay_images"].shape == (10, 3, 16, 16)
    assert with_replay.constants["replay_labels"].dtype == torch.int64


def test_rmt_runs_each_batch_through_the_network_no_more_often_than_it_says():
    calls = []
    for method in (methods.RMT(warmup_samples=0), methods.RMT.source_free(warmup_samples=0), methods.SANTA()):
        adapted = tidefast.adapt(network(), method, source=LOADER, num_classes=10)
        adapted.network.module.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
        calls.clear()
        adapted(IMAGES[0])
        assert calls == [8] * int(method.passes(1.0)[0])


# -- SANTA --------------------------------------------------------------------------------------------------------


def affine(net: nn.Module) -> list[nn.Parameter]:
    return [p for module in net.modules() if isinstance(module, nn.BatchNorm2d) for p in module.parameters()]


def test_santa_steps_as_written_out_by_hand():
    adapted = tidefast.adapt(network(), methods.SANTA(augment=mirrored), optimizer=SGD, source=LOADER)
    source, student, projector = plain(), plain(), plain_projector()
    centres = means_by_hand(source)
    optimizer = SGD([*affine(student), *projector.parameters()])
    for images in IMAGES[:3]:
        anchor = source(images).detach().log_softmax(1)
        features, views = student[:-1](images), student[:-1](mirrored(images))
        logits, of_views = student[-1](features), student[-1](views)
        CLOSE(adapted(images), logits.detach())
        align = -0.5 * ((logits.softmax(1) + of_views.softmax(1)) * anchor).sum(1).mean()
        points = [nearest_by_hand(features.detach(), centres), features, views]
        contrast = contrast_by_hand([functional.normalize(projector(p), dim=1) for p in points], 0.1)
        loss = align + contrast
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-6)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in [*affine(student), *projector.parameters()]])
    CLOSE(adapted.network.arena.values, expected)
    CLOSE(adapted.predict(IMAGES[4]), student(IMAGES[4]).detach())


def test_santa_begins_as_entropy_minimisation_and_then_keeps_to_the_source():
    method = methods.SANTA(contrastive_weight=0.0, augment=torch.clone)
    adapted = tidefast.adapt(network(), method, optimizer=functools.partial(SGD, lr=2.0))
    net = plain()
    entropy = losses.entropy(net(IMAGES[0])).mean()
    adapted(IMAGES[0])
    assert adapted.last.loss == pytest.approx(entropy.item(), rel=1e-6)
    entropy.backward()
    gradient = torch.cat([p.grad.flatten() for p in affine(net)])
    arena = adapted.network.arena
    CLOSE((arena.values - arena.source)[: len(gradient)], -2.0 * gradient)
    logits = adapted(IMAGES[0])
    expected = -(logits.softmax(1) * plain()(IMAGES[0]).log_softmax(1)).sum(1).mean().item()
    assert adapted.last.loss == pytest.approx(expected, rel=1e-6)
    assert adapted.last.loss != pytest.approx(losses.entropy(logits).mean().item(), rel=1e-5)


def test_a_projector_returns_with_the_deepest_layers():
    adapted = tidefast.adapt(network(), methods.SANTA(), optimizer=SGD, source=LOADER, reset=Half())
    adapted(IMAGES[0])
    arena = adapted.network.arena
    cut, first = arena.cut(0.5), next(span.start for span in arena.tensors if "projector" in span.name)
    assert cut <= first
    assert torch.equal(arena.values[cut:], arena.source[cut:])
    assert not torch.equal(arena.values[:cut], arena.source[:cut])


# -- DPLOT --------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, downsample: bool):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.downsample = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)) if downsample else None

    def forward(self, x):
        return self.bn1(self.conv1(x)) + (x if self.downsample is None else self.downsample(x))


class ResNet50(nn.Module):
    """Named and nested as torchvision's."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
        for stage, count in enumerate((3, 4, 6, 3), start=1):
            self.add_module(f"layer{stage}", nn.Sequential(*(Bottleneck(block == 0) for block in range(count))))
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        x = self.bn1(self.conv1(x))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(x.mean((2, 3)))


RESNET50_BLOCKS = [f"layer{s}.{b}" for s, count in enumerate((3, 4, 6, 3), start=1) for b in range(count)]


def test_the_blocks_of_a_resnet50_are_its_sixteen_bottlenecks_also_behind_a_normalisation():
    assert block_names(ResNet50()) == RESNET50_BLOCKS
    assert block_names(nn.Sequential(nn.Identity(), ResNet50())) == [f"1.{name}" for name in RESNET50_BLOCKS]
    headless = ResNet50()
    headless.fc = nn.Identity()
    with_head = nn.Sequential(nn.Identity(), headless, nn.Linear(4, 10))
    assert block_names(with_head) == [f"1.{name}" for name in RESNET50_BLOCKS]


def test_the_blocks_of_other_networks():
    assert block_names(small_network()) == ["0", "1", "3", "4", "6", "7"]
    assert block_names(small_network("attention")) == ["blocks.0", "blocks.1", "blocks.2"]
    single = nn.Module()
    single.body, single.fc = nn.ModuleList([nn.Conv2d(3, 3, 1)]), nn.Linear(3, 2)
    assert block_names(single) == ["body.0"]


def test_a_network_without_blocks_and_a_block_that_is_not_there_are_told():
    bare = nn.Module()
    bare.conv, bare.fc = nn.Conv2d(3, 3, 1), nn.Linear(3, 2)
    with pytest.raises(ValueError, match="name its blocks"):
        block_names(bare)
    with pytest.raises(ValueError, match="no module of that name"):
        tidefast.adapt(network(), methods.DPLOT(blocks=("layer1",)), source=LOADER)
    flat_net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    adapted = tidefast.adapt(flat_net, methods.DPLOT(warmup_samples=0, training_batches=0))
    with pytest.raises(ValueError, match="mirrors images"):
        adapted(torch.rand(4, 4))


def test_the_parameters_of_a_block_lie_together_in_the_arena():
    net = Network(ResNet50(), methods.DPLOT().configure)
    for name in RESNET50_BLOCKS:
        (span,) = spans_of(net.arena, name)
        block = ResNet50().get_submodule(name)
        assert span.stop - span.start == sum(p.numel() for p in block.parameters())


def test_blocks_are_selected_as_by_hand():
    """For each block: train it alone on noisy source images, compare prototypes, scale, keep those above 0.75."""
    method = methods.DPLOT(warmup_samples=0, block_rate=0.02)
    before, scores = means_by_hand(plain()), []
    for name in ("0", "1", "3", "4", "6", "7"):
        net, generator = plain(), torch.Generator().manual_seed(0)
        optimizer = torch.optim.Adam(net[int(name)].parameters(), lr=0.02)
        for images, _ in LOADER:
            logits = net(images + 0.5 * torch.randn(images.shape, generator=generator, dtype=torch.float64))
            optimizer.zero_grad()
            functional.cross_entropy(logits, logits.softmax(1)).backward()
            optimizer.step()
        scores.append(functional.cosine_similarity(before, means_by_hand(net)).mean().item())
    low, high = min(scores), max(scores)
    expected = [place for place, score in enumerate(scores) if (score - low) / (high - low) > 0.75]
    assert 0 < len(expected) < 6
    prepared = tidefast.prepare(network(), method, LOADER)
    assert prepared.tensors["selected_blocks"].tolist() == expected


def test_selection_reads_no_more_source_batches_than_it_says():
    read = []

    class Loader:
        def __iter__(self):
            for batch in LOADER:
                read.append(1)
                yield batch

    method = methods.DPLOT(warmup_samples=0, training_batches=2, prototype_batches=1)
    tidefast.prepare(network(), method, Loader())
    assert len(read) == 1 + 6 * (2 + 1)


def dplot_by_hand(adapted: tidefast.Adapter, blocks: tuple[str, ...], steps: int = 4) -> None:
    """Both gradients of one forward; optimiser A on the blocks, then B on all; the teacher follows."""
    student, teacher = plain(), plain()
    of_blocks = [p for name in blocks for p in student[int(name)].parameters()]
    first = torch.optim.Adam(of_blocks, lr=1e-3) if blocks else None
    second = torch.optim.Adam(student.parameters(), lr=1e-4)
    for images in IMAGES[:steps]:
        both = torch.cat([images, mirrored(images)])
        taught = teacher(both).detach()
        target = (taught[:8] + taught[8:]) / 2
        logits = student(both)
        CLOSE(adapted(images), (logits[:8] + logits[8:] + taught[:8] + taught[8:]).detach() / 4)
        loss = sce(logits[:8], target) + sce(logits[8:], target)
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-6)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        one = torch.autograd.grad(entropy, of_blocks, retain_graph=True) if blocks else ()
        two = torch.autograd.grad(loss, list(student.parameters()))
        for parameter, gradient in zip(of_blocks, one, strict=True):
            parameter.grad = gradient
        if first is not None:
            first.step()
        for parameter, gradient in zip(student.parameters(), two, strict=True):
            parameter.grad = gradient
        second.step()
        follow(teacher, student, 0.9)
    CLOSE(adapted.network.arena.values, flat(student))
    CLOSE(adapted.predict(IMAGES[4]), sum(
        net(torch.cat([IMAGES[4], mirrored(IMAGES[4])])).detach().view(2, 8, 10).sum(0) for net in (student, teacher)
    ) / 4)  # fmt: skip


def test_dplot_steps_as_written_out_by_hand():
    method = methods.DPLOT(teacher_momentum=0.9, blocks=("3", "4", "7"), training_batches=0, warmup_samples=0)
    assert method.needs_source is None
    dplot_by_hand(tidefast.adapt(network(), method), ("3", "4", "7"))


def test_dplot_without_blocks_is_a_mean_teacher_over_mirrored_pairs():
    method = methods.DPLOT(teacher_momentum=0.9, blocks=(), warmup_samples=0)
    assert method.needs_source is None
    dplot_by_hand(tidefast.adapt(network(), method), ())


def test_dplot_moves_the_selected_blocks_alone_when_only_their_optimiser_moves():
    still = functools.partial(torch.optim.SGD, lr=0.0)
    method = methods.DPLOT(warmup_samples=0, block_rate=0.02)
    adapted = tidefast.adapt(network(), method, optimizer=still, source=LOADER)
    adapted(IMAGES[0])
    arena, names = adapted.network.arena, block_names(network())
    chosen = [names[place] for place in adapted.constants["selected_blocks"].tolist()]
    for span in arena.tensors:
        moved = not torch.equal(arena.values[span.start : span.stop], arena.source[span.start : span.stop])
        assert moved == (span.name.rpartition(".")[0] in chosen)


def test_dplot_sees_a_symmetric_image_twice_alike():
    adapted = tidefast.adapt(network("group"), methods.DPLOT(warmup_samples=0, training_batches=0))
    images = torch.cat([IMAGES[0][..., :8], IMAGES[0][..., :8].flip(3)], dim=3)
    CLOSE(adapted(images), network("group")(images).detach())


def test_the_memory_of_dplots_block_optimiser_goes_with_any_reset_and_with_a_snapshot(tmp_path):
    method = methods.DPLOT(warmup_samples=8, training_batches=0)
    adapted = tidefast.adapt(network(), method, source=SOURCE[0], reset=Half())
    adapted(IMAGES[0])
    state = adapted.state["method"]
    assert state.number("block_steps") == 0
    assert not state.tensor("block_mean").any()
    one, two = (tidefast.adapt(network(), method, source=SOURCE[0]) for _ in range(2))
    for images in IMAGES[:2]:
        one(images)
    assert one.state["method"].number("block_steps") == 2
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    assert torch.equal(one(IMAGES[2]), two(IMAGES[2]))
    assert torch.equal(one(IMAGES[3]), two(IMAGES[3]))


# -- all three ----------------------------------------------------------------------------------------------------

SMALL = {
    "rmt": methods.RMT(warmup_samples=16),
    "santa": methods.SANTA(),
    "dplot": methods.DPLOT(warmup_samples=16, training_batches=1, prototype_batches=3),
}


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("norm", ["batch", "attention"])
def test_a_saved_preparation_serves_as_the_source_data_did(name, norm, tmp_path):
    method = SMALL[name]
    tidefast.prepare(network(norm), method, LOADER).save(tmp_path / "prepared")
    one = tidefast.adapt(network(norm), method, source=LOADER)
    two = tidefast.adapt(network(norm), method, source=str(tmp_path / "prepared"))
    for images in IMAGES[:3]:
        assert torch.equal(one(images), two(images))
        assert torch.isfinite(one.predict(IMAGES[4])).all()


def test_a_preparation_with_other_settings_is_refused():
    prepared = tidefast.prepare(network(), SMALL["rmt"], LOADER)
    with pytest.raises(tidefast.errors.SnapshotError, match="other settings"):
        tidefast.adapt(network(), methods.RMT.source_free(warmup_samples=16), source=prepared)


def test_the_callers_model_has_no_projector_afterwards():
    model = network()
    before = copy.deepcopy(model.state_dict())
    tidefast.adapt(model, "rmt", source=LOADER)(IMAGES[0])
    assert list(model.state_dict()) == list(before)
    assert not list(head_of(model)[1].children())
    assert not any(isinstance(hook, Features) for hook in head_of(model)[1]._forward_pre_hooks.values())


def test_the_published_settings():
    rmt, cifar = methods.RMT(), methods.RMT.for_cifar()
    assert (rmt.target_weight, rmt.contrastive_weight, rmt.source_weight) == (1.0, 1.0, 1.0)
    assert (rmt.temperature, rmt.projection, rmt.teacher_momentum, rmt.warmup_samples) == (0.1, 128, 0.999, 50_000)
    assert (cifar.learning_rate, cifar.adam) == (1e-3, True)
    assert methods.RMT.source_free(adam=True) == methods.RMT(source_weight=0.0, adam=True)
    dplot = methods.DPLOT()
    assert (dplot.block_threshold, dplot.noise, dplot.block_rate) == (0.75, 0.5, 1e-3)
    assert (dplot.prototype_batches, dplot.training_batches) == (501, 2001)
    parameters = [nn.Parameter(torch.zeros(2))]
    for method, kind, rate in (
        (rmt, torch.optim.SGD, 0.01),
        (cifar, torch.optim.Adam, 1e-3),
        (methods.SANTA(), torch.optim.SGD, 0.01),
        (dplot, torch.optim.Adam, 1e-4),
    ):
        optimizer = method.optimizer(parameters)
        assert type(optimizer) is kind
        assert optimizer.param_groups[0]["lr"] == rate


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: methods.RMT(temperature=0.0),
        lambda: methods.RMT(source_weight=-1.0),
        lambda: methods.RMT(replay_samples=1),
        lambda: methods.RMT(warmup_passes=0),
        lambda: methods.SANTA(projection=0),
        lambda: methods.SANTA(contrastive_weight=math.nan),
        lambda: methods.DPLOT(blocks=["layer1"]),
        lambda: methods.DPLOT(block_threshold=1.5),
        lambda: methods.DPLOT(augment=mirrored),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises((ValueError, TypeError)):
        wrong()
