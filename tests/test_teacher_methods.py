"""Methods with a mean teacher, against plain torch code and the checks of their papers."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import tidefast
from tidefast import methods
from tidefast.augment.colour import ColourAffine, ColourAffineBlur, _blur
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
IMAGES = torch.rand(5, 8, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def network(norm: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).eval()


def adapter(method: methods.Method, norm: str = "batch", **options) -> tidefast.Adapter:
    return tidefast.adapt(network(norm), method, optimizer=SGD, **options)


def test_blur_and_noise_are_what_the_longer_augmentation_adds():
    images = torch.rand(2, 3, 32, 32)
    flat = torch.full((1, 3, 16, 16), 0.3)
    torch.testing.assert_close(_blur(flat, 0.4), torch.full((1, 3, 12, 12), 0.3))
    impulse = torch.zeros(1, 1, 9, 9)
    impulse[..., 4, 4] = 1.0
    spread = _blur(impulse, 0.5)[0, 0]
    kernel = torch.exp(-0.5 * (torch.arange(-2.0, 3.0) / 0.5) ** 2)
    kernel /= kernel.sum()
    torch.testing.assert_close(spread, kernel[:, None] * kernel[None, :])
    torch.testing.assert_close(_blur(impulse, 0.001)[0, 0], impulse[0, 0, 2:-2, 2:-2])
    seeded = [torch.Generator().manual_seed(3) for _ in range(2)]
    short, long = ColourAffine("edge")(images, generator=seeded[0]), ColourAffineBlur()(images, generator=seeded[1])
    assert 0.002 < float((short - long).abs().mean()) < 0.08  # the same motion and colours
    assert float((images - long).abs().mean()) > 0.05


@pytest.mark.parametrize("symmetric", [True, False])
def test_cotta_steps_as_written_out_by_hand(symmetric):
    """Three steps of student, teacher and moments, with a confidence that never calls for views."""
    adapted = adapter(methods.CoTTA(confidence=0.0, restore=0.0, symmetric=symmetric, teacher_momentum=0.9))
    student, teacher = network(), network()
    for module in [*student.modules(), *teacher.modules()]:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
            module.track_running_stats = False
    optimizer = SGD(student.parameters())
    for images in IMAGES[:3]:
        answer = teacher(images).detach()
        torch.testing.assert_close(adapted(images), answer)
        logits = student(images)
        loss = functional.cross_entropy(logits, answer.softmax(1))
        if symmetric:
            loss = 0.5 * loss - 0.5 * (logits.softmax(1) * answer.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
    assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-4)
    assert len(adapted.network.arena) == sum(p.numel() for p in student.parameters())
    torch.testing.assert_close(adapted.predict(IMAGES[4]), teacher(IMAGES[4]).detach())


def test_cotta_answers_with_the_mean_over_views_where_the_source_is_unsure():
    method = methods.CoTTA(confidence=1.0, views_averaged=4, augment=lambda images: images.flip(3))
    adapted, plain = adapter(method), network()
    for module in plain.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = module.running_var = None
    torch.testing.assert_close(adapted(IMAGES[0]), plain(IMAGES[0].flip(3)).detach())


def test_cotta_with_certain_return_stays_at_the_source_and_with_a_frozen_teacher_answers_as_it():
    returning = adapter(methods.CoTTA(restore=1.0, confidence=0.0))
    frozen = adapter(methods.CoTTA(teacher_momentum=1.0, confidence=0.0))
    for images in IMAGES:
        returning(images)
        assert torch.equal(returning.network.arena.values, returning.network.arena.source)
        torch.testing.assert_close(frozen(images), frozen.network.source_logits(images))
    assert not torch.equal(frozen.network.arena.values, frozen.network.arena.source)


def test_cotta_returns_the_asked_share_of_weights():
    adapted = adapter(methods.CoTTA(restore=0.3, confidence=0.0))
    adapted(IMAGES[0])
    arena = adapted.network.arena
    moved = arena.values != arena.source
    whole = adapter(methods.CoTTA(restore=0.0, confidence=0.0))
    whole(IMAGES[0])
    could = whole.network.arena.values != whole.network.arena.source
    assert float(moved.sum() / could.sum()) == pytest.approx(0.7, abs=0.03)


def test_a_selective_reset_takes_the_same_layers_of_student_and_teacher():
    adapted = adapter(methods.CoTTA(teacher_momentum=0.5, restore=0.0, confidence=0.0), reset=Half())
    for images in IMAGES[:3]:
        adapted(images)
    arena, teacher = adapted.network.arena, adapted.state["method"].tensor("teacher")
    cut = arena.cut(0.5)
    assert 0 < cut < len(arena)
    for values in (arena.values, teacher):
        assert torch.equal(values[cut:], arena.source[cut:])
        assert not torch.equal(values[:cut], arena.source[:cut])


class Half(tidefast.resets.Never):
    """Resets the deeper half after every step."""

    def observe(self, step, state):
        return tidefast.resets.base.Verdict(fraction=0.5, cut=step.network.arena.cut(0.5))


def test_the_published_settings():
    assert methods.CoTTA() == methods.CoTTA(0.999, True, None, restore=0.001, confidence=0.1, views_averaged=32)
    ten, hundred = methods.CoTTA.for_cifar(), methods.CoTTA.for_cifar(100)
    assert (ten.restore, ten.confidence, ten.symmetric) == (0.01, 0.92, False)
    assert hundred.confidence == 0.72
    optimizer = tidefast.adapt(network(), methods.CoTTA()).optimizer
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.param_groups[0]["lr"] == 0.01


@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_a_teacher_is_saved_and_continued(norm, tmp_path):
    one, two = (adapter(methods.CoTTA(confidence=0.0), norm, num_classes=10) for _ in range(2))
    for images in IMAGES[:2]:
        one(images)
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    assert torch.equal(one.predict(IMAGES[3]), two.predict(IMAGES[3]))
    assert torch.equal(one(IMAGES[3]), two(IMAGES[3]))
    assert torch.equal(one(IMAGES[4]), two(IMAGES[4]))
