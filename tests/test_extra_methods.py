"""RPL, DeYO, LAME, MEMO and T3A do what their sheets say, against plain formulas in float64."""

from __future__ import annotations

import copy
import functools
import math
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import recorded
import tidefast
from tidefast import methods, resets
from tidefast.augment import augmix
from tidefast.augment.augmix import AugMix
from tidefast.methods.deyo import destroy_shape
from tidefast.methods.rpl import generalized_cross_entropy
from tidefast.probes.features import Features
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.1)
TRAINED = "token-12"


def network(norm: str = "layer") -> nn.Module:
    torch.manual_seed(0)
    return small_network(norm).double().eval()


def images(seed: int = 0, count: int = 16) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).double()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def descended(adapter: tidefast.Adapter, loss: Tensor, net: nn.Module, rate: float = 0.1) -> Tensor:
    """The arena after one step of plain descent on `loss` from the source."""
    names = [span.name for span in adapter.network.arena.tensors]
    parts = torch.autograd.grad(loss, [net.get_parameter(name) for name in names])
    return adapter.network.arena.source - rate * torch.cat([part.flatten() for part in parts])


# -- RPL ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
def test_rpl_descends_the_generalised_cross_entropy_to_its_own_labels(norm):
    net = network(norm)
    adapter = tidefast.adapt(net, "rpl", optimizer=SGD)
    logits = net.train()(images())  # train mode: the batch's own statistics
    labels = logits.argmax(1)
    p = torch.exp(logits[range(16), labels]) / torch.exp(logits).sum(1)
    loss = ((1 - p**0.8) / 0.8).mean()
    assert torch.allclose(adapter(images()), logits)
    assert adapter.last.loss == pytest.approx(loss.item())
    assert adapter.last.selected == 16
    assert torch.allclose(adapter.network.arena.values, descended(adapter, loss, net))


def test_generalised_cross_entropy_lies_between_cross_entropy_and_absolute_error():
    logits, labels = torch.randn(32, 10, generator=generator()).double(), torch.arange(32) % 10
    chosen = logits.softmax(1)[range(32), labels]
    assert torch.allclose(generalized_cross_entropy(logits, labels, 1.0), 1 - chosen)
    assert torch.allclose(generalized_cross_entropy(logits, labels, 1e-9), -chosen.log(), atol=1e-6)
    far = generalized_cross_entropy(torch.tensor([[0.0, 2000.0]]), torch.tensor([0]), 0.8)
    assert far.item() == pytest.approx(1 / 0.8)


# -- DeYO ---------------------------------------------------------------------------------------------------------


def test_deyo_weighs_certain_samples_whose_prediction_needs_the_shape():
    net, batch = recorded.network(TRAINED), recorded.stream(TRAINED)[0]
    method = methods.DeYO(entropy_margin=0.05, shape_margin=0.6)
    adapter = tidefast.adapt(net, method, optimizer=SGD)
    logits = net(batch)
    p = logits.softmax(1)
    entropy = -(p * p.log()).sum(1)
    certain = [i for i in range(len(batch)) if entropy[i] < 0.05 * math.log(10)]
    destroyed = destroy_shape(batch[certain], "patches", 4, generator(1))  # seed 0, step 1
    q = net(destroyed).softmax(1)
    terms = []
    for row, i in enumerate(certain):
        y = int(p[i].argmax())
        difference = (p[i, y] - q[row, y]).item()
        if difference > 0.6:
            weight = math.exp(0.4 * math.log(10) - entropy[i].item()) + math.exp(difference)
            terms.append(weight * entropy[i])
    assert 0 < len(terms) < len(certain) < len(batch)  # else this test shows nothing
    adapter(batch)
    loss = torch.stack(terms).mean()
    assert adapter.last.selected == len(terms)
    assert adapter.last.loss == pytest.approx(loss.item())
    assert torch.allclose(adapter.network.arena.values, descended(adapter, loss, net))


@pytest.mark.parametrize("later", [methods.DeYO(entropy_margin=1e-12), methods.DeYO(shape_margin=1.0)])
def test_deyo_without_a_usable_sample_does_nothing_at_all_not_even_by_momentum(later):
    momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    every = methods.DeYO(entropy_margin=1.1, shape_margin=-1.0)
    adapter = tidefast.adapt(recorded.network(TRAINED), every, optimizer=momentum)
    first, second = recorded.stream(TRAINED)[:2]
    adapter(first)
    assert adapter.last.selected == len(first)
    values = adapter.network.arena.values.clone()
    adapter.method = later  # from here on one of the two filters lets nothing through
    adapter(second)
    assert (adapter.last.selected, adapter.last.loss) == (0, None)
    assert torch.equal(adapter.network.arena.values, values)


def test_deyo_with_one_certain_sample_on_batch_statistics():
    torch.manual_seed(0)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 10)).double()
    adapter = tidefast.adapt(net, methods.DeYO(shape_margin=-1.0), optimizer=SGD)
    logits = adapter.predict(images())
    entropy = tidefast.core.losses.entropy(logits).sort().values
    margin = float(entropy[:2].mean()) / math.log(10)
    adapter.method = methods.DeYO(entropy_margin=margin, shape_margin=-1.0)
    adapter(images())
    assert (adapter.last.selected, adapter.last.nonfinite) == (1, 0)


def test_shuffled_patches_are_the_images_own_in_an_order_of_their_own():
    batch = images(count=3)
    shuffled = destroy_shape(batch, "patches", 4, generator())

    def tiles(image: Tensor) -> list[Tensor]:
        return [image[:, r : r + 4, c : c + 4] for r in range(0, 16, 4) for c in range(0, 16, 4)]

    orders = []
    for before, after in zip(batch, shuffled, strict=True):
        order = [next(i for i, old in enumerate(tiles(before)) if torch.equal(old, new)) for new in tiles(after)]
        assert sorted(order) == list(range(16))
        orders.append(tuple(order))
    assert len(set(orders)) == 3


def test_patches_of_a_side_that_does_not_divide():
    batch = torch.full((2, 3, 18, 21), 0.25)
    shuffled = destroy_shape(batch, "patches", 4, generator())
    assert torch.allclose(shuffled, batch)
    with pytest.raises(ValueError, match=r"2 x 8 pixels cannot be cut into 4 x 4 tiles: choose a smaller grid"):
        destroy_shape(torch.rand(1, 3, 2, 8), "patches", 4, generator())
    with pytest.raises(ValueError, match=r"images \[batch, channels, height, width\], got shape \(4, 7\)"):
        destroy_shape(torch.rand(4, 7), "patches", 4, generator())


def test_shuffled_pixels_keep_their_colours_and_a_covered_centre_its_surroundings():
    batch = images(count=2)
    pixels = destroy_shape(batch, "pixels", 4, generator())
    for before, after in zip(batch, pixels, strict=True):
        assert sorted(before.flatten(1).T.tolist()) == sorted(after.flatten(1).T.tolist())
        assert not torch.equal(before, after)
    place = destroy_shape(torch.arange(256.0).view(1, 1, 16, 16).expand(2, 3, 16, 16), "pixels", 4, generator())
    assert torch.equal(place[0], place[1])  # one order for the whole batch
    covered = destroy_shape(batch, "occlusion", 4, generator())
    centre = covered[:, :, 4:12, 4:12]
    assert torch.allclose(centre, batch.mean((2, 3), keepdim=True).expand_as(centre))
    assert int((covered != batch).any(1).sum()) == 2 * 64


def test_deyo_and_sar_leave_the_deepest_stage_alone(torchvision, timm):
    resnet = torchvision.models.resnet18()
    vit = torchvision.models.VisionTransformer(32, 16, 12, 2, 16, 16)
    own = timm.models.VisionTransformer(img_size=32, patch_size=16, embed_dim=16, depth=12, num_heads=2)
    expected = {"bn1": 0, "layer1": 0, "layer4": 1, "encoder_layer_8": 0, "encoder_layer_9": 1, "encoder.ln": 1}
    expected |= {"blocks.8": 0, "blocks.10": 1}
    found = set()
    for model, count in ((resnet, 15), (vit, 18), (own, 18)):
        arena = tidefast.adapt(model, "deyo").network.arena
        assert [s.name for s in arena.layers] == [s.name for s in tidefast.adapt(model, "sar").network.arena.layers]
        assert len(arena.layers) == count
        for part, skipped in expected.items():
            if any(part in name for name, _ in model.named_modules()):
                found.add(part)
                assert any(part in span.name for span in arena.layers) != bool(skipped)
        assert "norm" not in [span.name for span in arena.layers]
    assert found == set(expected)


# -- features -----------------------------------------------------------------------------------------------------


def test_features_are_what_the_head_of_a_published_network_is_given(torchvision, timm):
    batch = torch.rand(2, 3, 32, 32)
    torch.manual_seed(0)
    for model, head in (
        (torchvision.models.resnet18(num_classes=7), "fc"),
        (torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 16, num_classes=7), "heads.head"),
        (timm.models.VisionTransformer(img_size=32, patch_size=16, embed_dim=16, depth=2, num_heads=2), "head"),
        (small_network("layer"), "head"),
    ):
        model.eval()
        features = Features.of(model)
        logits, seen = features.along(model, batch)
        assert features.name == head
        assert torch.allclose(model.get_submodule(head)(seen), logits)
        assert seen.requires_grad


def test_features_are_watched_once_and_are_those_of_the_pass_asked_for():
    net = small_network()
    assert Features.of(net) is Features.of(net)
    net(torch.rand(2, 3, 8, 8))
    with pytest.raises(ValueError, match="'11', did not run; it must be the classifier head"):
        Features.of(net).along(lambda images: images, torch.rand(2, 3, 8, 8))


def test_a_network_without_a_linear_head_is_refused_with_its_layers():
    net = nn.Sequential(nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ValueError, match=r"has none \(its layers: AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Flatten\)"):
        tidefast.adapt(net, "lame")


# -- LAME ---------------------------------------------------------------------------------------------------------


def affinity_by_hand(kind: str, features: Tensor, neighbours: int) -> Tensor:
    unit = [row / row.norm() for row in features]
    count = len(unit)
    distance = [[float((a - b).norm()) for b in unit] for a in unit]
    width = sum(sorted(row)[min(neighbours, count) - 1] for row in distance) / count
    w = torch.zeros(count, count).double()
    for i in range(count):
        others = sorted((j for j in range(count) if j != i), key=lambda j: distance[i][j])
        for j in range(count):
            if kind == "rbf":
                w[i, j] = math.exp(-(distance[i][j] ** 2) / (2 * width**2))
            elif kind == "linear":
                w[i, j] = float(unit[i] @ unit[j])
            else:
                w[i, j] = float(j in others[:neighbours])
    return w


@pytest.mark.parametrize("kind", ["rbf", "knn", "linear"])
@pytest.mark.parametrize("norm", ["batch", "layer"])
def test_lame_answers_with_the_fixed_point_of_its_update_on_the_source_model(kind, norm):
    net = network(norm)
    if norm == "batch":
        with torch.no_grad():
            net.train()(images(7))  # running statistics of their own
        net.eval()
    adapter = tidefast.adapt(net, methods.LAME(kind), num_classes=10)
    features = Features.of(net)
    logits, seen = features.along(net, images())
    q = logits.detach().softmax(1)
    w = affinity_by_hand(kind, seen.detach(), 5)
    y = q
    for _ in range(100):
        y = torch.stack([torch.exp((q[i] + 1e-10).log() + w[i] @ y) for i in range(16)])
        y = y / y.sum(1, keepdim=True)
    answer = adapter(images())
    assert torch.allclose(answer.exp(), y, atol=1e-6)
    assert torch.allclose(answer.exp().sum(1), torch.ones(16).double())
    assert (answer - q.log()).abs().max() > 0.1
    assert torch.allclose(adapter(images(1)[:3]).exp().sum(1), torch.ones(3).double())  # fewer than the neighbours


def test_lame_counts_the_first_batch_too():
    assert torch.equal(
        tidefast.adapt(network(), "lame")(images()), tidefast.adapt(network(), "lame", num_classes=10)(images())
    )


def test_lame_knows_no_order_and_treats_alike_images_alike():
    adapter = tidefast.adapt(network(), "lame", num_classes=10)
    order = torch.randperm(16, generator=generator())
    assert torch.allclose(adapter(images()[order]), adapter(images())[order])
    same = adapter(images()[:1].expand(16, -1, -1, -1).clone())
    assert torch.allclose(same, same[:1].expand(16, -1))
    assert torch.isfinite(same).all()


def test_lame_leaves_a_lone_image_its_class():
    for kind in ("rbf", "knn", "linear"):
        lone = tidefast.adapt(network(), methods.LAME(kind), num_classes=10)(images()[:1])
        assert lone.shape == (1, 10)
        assert lone.argmax() == network()(images()[:1]).argmax()


@pytest.mark.slow
def test_lame_on_a_compiled_model_is_the_eager_one():
    net = network()
    compiled = tidefast.adapt(torch.compile(net, backend="aot_eager"), "lame", num_classes=10)
    eager = tidefast.adapt(net, "lame", num_classes=10)
    for seed in range(3):
        assert torch.allclose(compiled(images(seed)), eager(images(seed)))


# -- MEMO ---------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """BatchNorm with (1 - a) x source + a x batch statistics as constants."""

    def __init__(self, old: nn.BatchNorm2d, share: float) -> None:
        super().__init__()
        self.weight, self.bias, self.old, self.share = old.weight, old.bias, [old], share

    def forward(self, x: Tensor) -> Tensor:
        old, a = self.old[0], self.share
        mean = (1 - a) * old.running_mean + a * x.detach().mean((0, 2, 3))
        variance = (1 - a) * old.running_var + a * x.detach().transpose(0, 1).flatten(1).var(1)
        unit = (x - mean[:, None, None]) / (variance[:, None, None] + old.eps).sqrt()
        return self.weight[:, None, None] * unit + self.bias[:, None, None]


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_memo_answers_each_image_after_one_nesterov_step_on_its_views(norm):
    net = network(norm)
    method = methods.MEMO(views=6, lr=0.5, alpha=0.1)
    answer = tidefast.adapt(net, method, num_classes=10)(images(count=3))
    for image, logits in zip(images(count=3), answer, strict=True):
        own = copy.deepcopy(net)
        for i, layer in enumerate(own if norm == "batch" else ()):
            if isinstance(layer, nn.BatchNorm2d):
                own[i] = Mixed(layer, 0.1)
        optimizer = torch.optim.SGD(own.parameters(), lr=0.5, momentum=0.9, nesterov=True)
        views = AugMix(6)(image, generator(zlib.crc32(image.numpy().tobytes())))
        mean = own(views).softmax(1).mean(0)
        (-(mean * mean.log()).sum()).backward()
        optimizer.step()
        assert torch.allclose(own(image[None])[0], logits)
    assert (answer - tidefast.adapt(net, methods.MEMO(lr=0.0), num_classes=10)(images(count=3))).abs().max() > 0.01


def test_memo_is_a_function_of_the_image_alone():
    model = network("batch")
    before = copy.deepcopy(model.state_dict())
    adapter = tidefast.adapt(model, methods.MEMO(views=3, lr=0.1), reset=resets.Periodic(every=2), num_classes=10)
    whole = adapter(images(count=4))
    assert torch.allclose(adapter.predict(images(count=4)[2:3]), whole[2:3])
    assert torch.allclose(adapter(images(count=4).flip(0)), whole.flip(0))
    other = tidefast.adapt(model, methods.MEMO(views=3, lr=0.1, seed=1), num_classes=10)
    assert not torch.allclose(other(images(count=4)), whole)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_memo_counts_the_first_batch_too():
    make = functools.partial(tidefast.adapt, network(), methods.MEMO(views=2, lr=0.1))
    assert torch.equal(make()(images(count=2)), make(num_classes=10)(images(count=2)))


def test_memo_without_a_step_is_the_source():
    net = network()
    adapter = tidefast.adapt(net, methods.MEMO.for_cifar(views=2, lr=0.0), num_classes=10)
    assert torch.allclose(adapter(images()), net(images()))


def test_memo_keeps_channels_last_and_half_precision_usable():
    net = small_network().to(memory_format=torch.channels_last)
    adapter = tidefast.adapt(net, methods.MEMO(views=2), num_classes=10)
    expected = adapter(images().float())
    plain = tidefast.adapt(net.to(memory_format=torch.contiguous_format), methods.MEMO(views=2), num_classes=10)
    assert torch.allclose(plain(images().float()), expected, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(adapter(images().float())).all()


def test_memo_refuses_what_has_no_pixels():
    adapter = tidefast.adapt(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), "memo", num_classes=3)
    with pytest.raises(ValueError, match=r"MEMO augments images .*, got shape \(5, 4\)"):
        adapter(torch.rand(5, 4))


# -- AugMix -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "name"), [(0, "autocontrast"), (1, "equalize"), (2, "posterize"), (3, "solarize")])
def test_tones_are_those_of_eight_bit_images(torchvision, number, name):
    levels = torch.randint(30, 190, (4, 3, 40, 38), generator=generator()).to(torch.uint8)
    levels[0, 0] = 77  # a channel without contrast
    strength = torch.tensor([0.03, 0.05, 0.08, 0.1])
    published = getattr(torchvision.transforms.functional, name)
    extra = {2: [4], 3: [256 - 12]}
    if name == "solarize":
        levels = (levels + 60).to(torch.uint8)
        strength = torch.full((4,), 0.05)  # 0.05 x 256 = 12.8
    expected = published(levels, *extra.get(number, [])).double() / 255
    ours = augmix._tone(number, levels.double() / 255, strength)
    assert torch.allclose(ours, expected, atol=1 / 255 + 1e-9 if number == 0 else 1e-9)
    assert not torch.allclose(ours, levels.double() / 255, atol=0.01)


def moved(image: Tensor, number: int, strength: float, sign: float) -> Tensor:
    motion = augmix._motions(torch.tensor([number]), torch.tensor([strength]), torch.tensor([sign]), image.shape[-2:])
    return augmix._warp(image, motion)


def moved_by_pillow(image: Tensor, number: int, strength: float, sign: float) -> Tensor:
    """The published operations, which are Pillow's, in floats."""
    height, width = image.shape[-2:]
    across, down = sign * int(width / 3 * strength), sign * int(height / 3 * strength)
    slope = sign * 0.3 * strength
    affine = [None, (1, slope, 0, 0, 1, 0), (1, 0, 0, slope, 1, 0), (1, 0, across, 0, 1, 0), (1, 0, 0, 0, 1, down)]
    channels = []
    for channel in image[0].float().numpy():
        picture, bilinear = Image.fromarray(channel), Image.Resampling.BILINEAR
        if number == 0:
            picture = picture.rotate(-sign * int(30 * strength), bilinear)
        else:
            picture = picture.transform((width, height), Image.Transform.AFFINE, affine[number], resample=bilinear)
        channels.append(torch.from_numpy(np.asarray(picture).copy()))
    return torch.stack(channels)[None].double()


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("number", range(5))
def test_motions_are_the_published_ones_up_to_the_border(number, sign):
    image = 0.5 + 0.5 * torch.rand(1, 3, 60, 91, generator=generator()).double()  # black is only what lies outside
    for strength in (0.04, 0.07, 0.1):
        ours, published = (move(image, number, strength, sign) for move in (moved, moved_by_pillow))
        assert torch.allclose(ours, published, atol=1e-4)
        assert torch.equal(ours == 0.0, published == 0.0)


def test_a_turned_image_is_black_only_where_it_looks_outside():
    even = torch.ones(1, 3, 32, 32)
    for number in range(3):
        turned = moved(even, number, 0.1, 1.0)
        assert bool(((turned == 0.0) | (turned > 0.999)).all())  # nothing fades
        assert 0 < int((turned == 0.0).sum()) < 3 * 32 * 6


def test_motions_move_by_whole_pixels_degrees_and_about_the_corner():
    image = torch.rand(1, 3, 60, 90, generator=generator()).double()
    assert torch.allclose(moved(image, 3, 0.08, 1.0)[..., :-2], image[..., 2:], atol=1e-5)  # 90 / 3 x 0.08 = 2.4: two
    assert torch.allclose(moved(image, 4, 0.07, -1.0)[..., 1:, :], image[..., :-1, :], atol=1e-5)
    first, row = image[0, 0, 0], image[0, 0, 49]  # their centres lie 0.5 and 49.5 below the corner, at a slope of 0.03
    assert torch.allclose(moved(image, 1, 0.1, 1.0)[0, 0, 0, :80], first[:80].lerp(first[1:81], 0.015), atol=1e-5)
    assert torch.allclose(moved(image, 1, 0.1, 1.0)[0, 0, 49, :80], row[1:81].lerp(row[2:82], 0.485), atol=1e-4)


def test_crops_are_flips_and_parts_of_the_image():
    ramp = torch.linspace(0, 1, 32).expand(3, 32, 32).double()
    resized = AugMix(200)._crops(ramp, generator())
    slope = resized[:, 0, 16, 1:] - resized[:, 0, 16, :-1]
    rising = (slope.mean(1) > 0).double().mean()
    assert 0.4 < rising < 0.6
    widths = (resized[:, 0, 16, -1] - resized[:, 0, 16, 0]).abs()  # a crop shows a part of the ramp
    assert widths.max() <= 1.0
    assert widths.min() < 0.4
    assert 0.6 < (widths**2).mean().sqrt() < 0.85  # the mean area is about 0.54 of the image
    padded = AugMix(100, "padded")._crops(ramp.mT + 0.01, generator())
    shifts = {round(float(v), 3) for v in ((padded[:, 0, 16, 16] - 0.01) * 31)}
    assert shifts == {float(s) for s in range(12, 21)}


def test_views_differ_stay_in_range_and_repeat_with_the_generator():
    image = torch.rand(3, 24, 24, generator=generator())
    views = AugMix(16)(image, generator(3))
    assert views.shape == (16, 3, 24, 24)
    assert float(views.min()) >= 0.0
    assert float(views.max()) <= 1.0
    assert len({view.numpy().tobytes() for view in views}) == 16
    assert torch.equal(views, AugMix(16)(image, generator(3)))
    assert torch.isfinite(AugMix(4)(torch.full((3, 8, 8), 1e38), generator())).all()


def test_a_view_is_a_mean_of_its_chains_and_its_crop():
    # No operation changes the centre of an even image, but for tones that follow a black border of a motion.
    even = torch.full((3, 24, 24), 64 / 255)
    centres = AugMix(64)(even, generator())[:, 0, 12, 12]
    assert ((centres - 64 / 255).abs() < 1e-6).sum() > 32


# -- T3A ----------------------------------------------------------------------------------------------------------


def prototypes_by_hand(net: nn.Module, batches: list[Tensor], most: int) -> list[Tensor]:
    """The answers to batches, with every support that there ever was in one list."""
    head = Features.of(net)
    weight, bias = net.head.weight.detach(), net.head.bias.detach()
    supports, answers = list(weight), []
    verdicts = list(weight @ weight.T + bias)
    for batch in batches:
        logits, features = head.along(net, batch)
        supports += list(features.detach())
        verdicts += list(logits.detach())
        columns = []
        for label in range(len(weight)):
            own = [i for i, verdict in enumerate(verdicts) if int(verdict.argmax()) == label]
            own.sort(key=lambda i: float(-(verdicts[i].softmax(0) * verdicts[i].log_softmax(0)).sum()))
            total = sum((supports[i] / supports[i].norm() for i in own[:most]), torch.zeros_like(weight[0]))
            columns.append(total / total.norm() if own else total)
        answers.append(features.detach() @ torch.stack(columns, 1))
    return answers


@pytest.mark.parametrize("most", [1, 3, 20])
def test_t3a_answers_with_prototypes_of_the_surest_supports(most):
    net = network()
    adapted = tidefast.adapt(net, methods.T3A(filter_k=most), num_classes=10)
    batches = [3.0 * images(seed) for seed in range(4)]
    expected = prototypes_by_hand(network(), batches, most)
    for batch, answer in zip(batches, expected, strict=True):
        assert torch.allclose(adapted.predict(batch), answer, atol=1e-10)
        assert torch.allclose(adapted(batch), answer, atol=1e-10)
        assert adapted.last.selected == len(batch)
    assert not torch.allclose(adapted.predict(batches[0]), expected[0], atol=1e-3)  # the prototypes have moved
    held = adapted.numbers_held()
    adapted(images(9))
    assert adapted.numbers_held() == held
    adapted.reset()
    assert torch.allclose(adapted(batches[0]), expected[0], atol=1e-10)


def test_t3a_takes_one_forward_pass_and_no_backward():
    net, passes = network("batch"), []
    net.register_forward_hook(lambda module, inputs, output: passes.append(output.requires_grad))
    adapted = tidefast.adapt(net, "t3a", num_classes=10)
    for seed in range(3):
        adapted(images(seed))
    assert passes == [False] * 3
    assert methods.T3A().passes(1.0) == (1.0, 0.0)


# -- all ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: methods.RPL(q=0.0), "q must lie in"),
        (lambda: methods.DeYO(destroy="blur"), "destroy must be one of 'patches', 'pixels', 'occlusion'"),
        (lambda: methods.DeYO(shape_margin=2.0), "shape_margin must lie in"),
        (lambda: methods.LAME("cubic"), "affinity must be one of 'rbf', 'knn', 'linear'"),
        (lambda: methods.LAME(neighbours=0), "neighbours must be a whole number"),
        (lambda: methods.MEMO(views=0), "views must be a whole number"),
        (lambda: methods.MEMO(crop="centre"), "crop must be one of 'resized', 'padded'"),
        (lambda: AugMix(2, "centre"), "crop must be one of"),
    ],
)
def test_hyperparameters_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
