"""Methods of vision transformers: the tokens they work on, and their steps against plain torch code."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import tidefast
from tidefast import methods, models
from tidefast.core.normalization import Statistics
from tidefast.methods.rem import ranked_loss
from tidefast.methods.shared import hog
from tidefast.models.pixels import PixelNormalization
from tidefast.probes.features import head_of
from tidefast.probes.tokens import Tokens, find_layout
from tidefast.testing import small_network

SGD = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
IMAGES = torch.rand(5, 8, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    net = small_network("attention").eval()
    nn.init.uniform_(net.norm.weight, 0.5, 1.5)  # with equal ones, the channels of every token have the same mean
    return net


def adapter(method: methods.Method, model: nn.Module | None = None, **options) -> tidefast.Adapter:
    return tidefast.adapt(network() if model is None else model, method, **{"optimizer": SGD, **options})


@pytest.fixture(scope="module")
def transformers(torchvision, timm) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    own = functools.partial(timm.models.VisionTransformer, 32, 8, embed_dim=16, num_heads=2, num_classes=10)
    nets = {
        "torchvision": torchvision.models.VisionTransformer(32, 8, 4, 2, 16, 16, num_classes=10),
        "timm": own(depth=4),
        "timm without class token": own(depth=4, class_token=False, global_pool="avg", qk_norm=True),
        "timm with registers": own(depth=3, reg_tokens=2, dynamic_img_size=True),
        "small": small_network("attention"),
    }
    nn.init.normal_(nets["torchvision"].heads.head.weight)
    nets["wrapped"] = nn.Sequential(
        PixelNormalization(), nn.Upsample(32), nn.ModuleDict({"model": nets["timm"]})["model"]
    )
    return {name: net.eval() for name, net in nets.items()}


FAMILIES = ("torchvision", "timm", "timm without class token", "timm with registers", "small", "wrapped")


# -- tokens -------------------------------------------------------------------------------------------------------


def replayed(net: nn.Module, images: torch.Tensor, masked=None, by=None, kept=None) -> torch.Tensor:
    """Logits of a timm-like or torchvision-like transformer, its forward written out with some patches hidden."""
    if isinstance(net, nn.Sequential):
        images, net = net[1](net[0](images)), net[2]
    timm_like = hasattr(net, "patch_embed")
    patches = (net.patch_embed.proj if timm_like else net.conv_proj)(images).flatten(2).transpose(1, 2)
    if masked is not None:
        patches = patches.clone()
        for row, column in masked.nonzero().tolist():
            patches[row, column] = by
    first = [net.cls_token if timm_like else net.class_token]
    first += [net.reg_token] if getattr(net, "reg_token", None) is not None else []
    first = [token.expand(len(images), -1, -1) for token in first if token is not None]
    position = net.pos_embed if timm_like else net.encoder.pos_embedding
    if position.dim() == 4:  # the small one: for patches alone
        tokens = torch.cat([*first, patches + position.flatten(2).transpose(1, 2)], 1)
    else:
        tokens = torch.cat([*first, patches], 1) + position
    if kept is not None:
        prefix = sum(token.shape[1] for token in first)
        pairs = zip(tokens, kept, strict=True)
        tokens = torch.stack([torch.cat([row[:prefix], row[prefix:][sorted(of.tolist())]]) for row, of in pairs])
    for block in net.blocks if timm_like else net.encoder.layers:
        tokens = block(tokens)
    tokens = (net.norm if timm_like else net.encoder.ln)(tokens)
    pooled = tokens[:, 0] if first else tokens.mean(1)
    return net.head(getattr(net, "fc_norm", nn.Identity())(pooled)) if timm_like else net.heads(pooled)


@pytest.mark.parametrize("family", FAMILIES)
def test_patches_are_hidden_as_if_the_forward_had_been_written_for_it(family, transformers):
    plain = transformers[family]
    watched = tidefast.adapt(plain, "rem").network.module
    tokens, images = Tokens.of(watched), IMAGES[0, :3]
    masked, by = torch.rand(3, 16) < 0.5, torch.randn(16)
    kept = torch.rand(3, 16).argsort(1)[:, :11]
    torch.testing.assert_close(watched(images), plain(images))
    torch.testing.assert_close(replayed(plain, images), plain(images))
    with tokens.replaced(masked, by):
        torch.testing.assert_close(watched(images), replayed(plain, images, masked, by))
    with tokens.only(kept):
        torch.testing.assert_close(watched(images), replayed(plain, images, kept=kept))
        assert not torch.allclose(watched(images), plain(images))
    torch.testing.assert_close(watched(images), plain(images))


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_that_of_the_last_block_whatever_runs_in_between(family, transformers):
    net, images = transformers[family], IMAGES[0, :3]
    adapted = tidefast.adapt(net, "rem")
    tokens = Tokens.of(adapted.network.module)
    with tokens.watching("attention", "final") as seen:
        adapted.network(images)
    adapted.network.source_logits(images.flip(3))
    found = seen.attention()
    inner = net[2] if isinstance(net, nn.Sequential) else net
    blocks = inner.blocks if hasattr(inner, "blocks") else inner.encoder.layers
    attention = blocks[-1].attn if hasattr(inner, "blocks") else blocks[-1].self_attention
    given: list[torch.Tensor] = []
    with torch.no_grad():
        handle = attention.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
        net(images)
        handle.remove()
        if isinstance(attention, nn.MultiheadAttention):
            weights = attention(*3 * given, need_weights=True)[1]
        else:
            query, key, _ = attention.qkv(given[0]).chunk(3, 2)
            heads = []
            for q, k in zip(query.chunk(2, 2), key.chunk(2, 2), strict=True):
                if hasattr(attention, "q_norm"):
                    q, k = attention.q_norm(q), attention.k_norm(k)
                heads.append(torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8), -1))
            weights = (heads[0] + heads[1]) / 2
    patches = weights[:, :, -16:]
    torch.testing.assert_close(found, patches.mean(1) if "without" in family else patches[:, 0])
    with tokens.watching("final") as seen:
        adapted.network(images)
    with pytest.raises(ValueError, match="no attention was seen: run the model within watching"):
        seen.attention()


def test_the_bundled_transformer_merges_tokens_so_a_patch_is_what_a_last_token_covers():
    net = models.load("bundled-vit")
    watched = tidefast.adapt(net, "rem")
    layout, images = find_layout(net, "REM"), IMAGES[0, :3]
    assert (layout.patch, layout.merge, layout.width, layout.embedding_width, layout.channels) == (8, 2, 128, 64, 3)
    tokens, module = Tokens.of(watched.network.module), watched.network.module
    kept = torch.rand(3, 16).argsort(1)[:, :12]
    seen = torch.zeros(3, 8, 8)
    for row, of in enumerate(kept.tolist()):
        for patch in of:
            top, left = 2 * (patch // 4), 2 * (patch % 4)
            seen[row, top : top + 2, left : left + 2] = 1.0
    entered: list[torch.Tensor] = []
    handle = module.early[0].norm1.register_forward_pre_hook(lambda norm, inputs: entered.append(inputs[0]))
    with torch.no_grad():
        module(images)
        with tokens.only(kept):
            module(images)
        with tokens.replaced(seen[:, ::2, ::2].flatten(1) == 0, torch.ones(64)):
            module(images)
    handle.remove()
    whole, fewer, replaced = (values.unflatten(1, (8, 8)) for values in entered)
    torch.testing.assert_close(fewer, whole * seen[..., None])
    position = net.position.unflatten(1, (8, 8))
    torch.testing.assert_close(replaced, torch.where(seen[..., None] > 0, whole, 1.0 + position))
    with tokens.watching("attention") as attended:
        module(images)
    scores = attended.attention()
    assert scores.shape == (3, 16)
    torch.testing.assert_close(scores.sum(1), torch.ones(3))


def test_layouts_tell_patches_and_widths_apart(torchvision, timm, transformers):
    for family in FAMILIES:
        layout = find_layout(transformers[family], "CMAE")
        assert (layout.patch, layout.width, layout.embedding_width, layout.channels) == (8, 16, 16, 3)
    assert [find_layout(transformers[name], "CMAE").prefix for name in FAMILIES] == [1, 1, 0, 3, 1, 1]
    beit = timm.models.Beit(32, 16, embed_dim=16, depth=1, num_heads=2)
    for other in (beit, torchvision.models.swin_t(), nn.Linear(3, 2)):
        with pytest.raises(ValueError, match="REM works on the tokens of a vision transformer, and"):
            find_layout(other, "REM")
    with pytest.raises(ValueError, match="no hooks on its tokens"):
        Tokens.of(network())


# -- histograms ---------------------------------------------------------------------------------------------------


def histogram_by_hand(image: torch.Tensor, top: int, left: int, cell: int) -> list[float]:
    """Of one channel [height, width], by loops."""
    padded = functional.pad(image[None, None], (1, 1, 1, 1), mode="reflect")[0, 0]
    bins = [0.0] * 9
    for y, x in itertools.product(range(top, top + cell), range(left, left + cell)):
        (a, b, c), (d, _, f), (g, h, i) = padded[y : y + 3, x : x + 3].tolist()
        across, down = (a - c) + 2 * (d - f) + (g - i), (a - g) + 2 * (b - h) + (c - i)
        bins[math.floor(9 * math.atan2(across, down) / math.pi) % 9] += math.sqrt(across**2 + down**2)
    length = math.sqrt(sum(value**2 for value in bins))
    return [value / length for value in bins]


@pytest.mark.parametrize(("patch", "cell"), [(16, 8), (8, 8), (4, 4)])
def test_histograms_are_those_of_loops_over_pixels(patch, cell):
    images = torch.rand(2, 3, 16, 32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = hog.histograms(images, patch)
    side, columns = patch // cell, 32 // patch
    assert found.shape == (2, 16 // patch * columns, hog.values_per_patch(patch))
    for number in (0, columns - 1, found.shape[1] - 1):
        by_part = found[1, number].view(3, 9, side, side)
        for channel, row, column in itertools.product(range(3), range(side), range(side)):
            top, left = number // columns * patch + row * cell, number % columns * patch + column * cell
            expected = histogram_by_hand(images[1, channel], top, left, cell)
            torch.testing.assert_close(by_part[channel, :, row, column].tolist(), expected)


def test_histograms_of_flat_images_are_zero_and_contrast_does_not_matter():
    assert torch.equal(hog.histograms(torch.full((1, 3, 32, 32), 0.3), 16), torch.zeros(1, 4, 108))
    images = IMAGES[0].double()
    torch.testing.assert_close(hog.histograms(PixelNormalization()(images), 8), hog.histograms(images, 8))
    assert hog.histograms(torch.rand(1, 3, 30, 20), 8).shape == (1, 3 * 2, 27)


# -- REM ----------------------------------------------------------------------------------------------------------


def test_rem_steps_as_written_out_by_hand():
    adapted, plain = adapter(methods.REM(rank_weight=0.7, margin=0.01)), network()
    learning = [p for block in plain.blocks[:2] for norm in (block.norm1, block.norm2) for p in norm.parameters()]
    optimizer = SGD(learning)
    given: list[torch.Tensor] = []
    plain.blocks[2].norm1.register_forward_hook(lambda norm, inputs, outputs: given.append(outputs))
    for images in IMAGES[:3]:
        del given[:]
        views = [plain(images)]
        query, key = (part.unflatten(2, (2, 8)) for part in plain.blocks[2].attn.qkv(given[0]).chunk(3, 2)[:2])
        scores = torch.einsum("nhd,nthd->nht", query[:, 0], key).div(math.sqrt(8)).softmax(2).mean(1)[:, 1:]
        for number in (14, 12):
            views.append(replayed(plain, images, kept=scores.topk(number, largest=False).indices))
        log = [view.log_softmax(1) for view in views]
        entropy = [-(line.exp() * line).sum(1) for line in log]
        loss = torch.zeros(())
        for i, j in ((1, 0), (2, 0), (2, 1)):
            loss = loss - (log[j].detach().exp() * log[i]).sum(1).mean()
            loss = loss + 0.7 * functional.relu(entropy[j] - entropy[i].detach() + 0.01 * math.log(10)).mean()
        torch.testing.assert_close(adapted(images), views[0].detach())
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(adapted.network.arena.values, torch.cat([p.detach().flatten() for p in learning]))
    torch.testing.assert_close(adapted.predict(IMAGES[4]), plain(IMAGES[4]).detach())


def test_rem_teaches_the_more_hidden_view_and_calms_the_less_hidden_one():
    views = [torch.randn(4, 10, requires_grad=True) for _ in range(3)]
    rank_only = ranked_loss(views, 1.0, 5.0) - ranked_loss(views, 0.0)
    taught = torch.autograd.grad(ranked_loss(views, 0.0), views)
    calmed = torch.autograd.grad(rank_only, views[:2])
    assert taught[0].abs().max() == 0
    assert all(part.abs().max() > 1e-3 for part in (*taught[1:], *calmed))
    (last,) = torch.autograd.grad(ranked_loss(views, 1.0, 5.0) - ranked_loss(views, 0.0), [views[2]])
    assert last.abs().max() < 1e-6
    ordered = [torch.tensor([[sure, 0.0]]) for sure in (3.0, 2.0, 1.0)]
    assert float(ranked_loss(ordered) - ranked_loss(ordered, 0.0)) == 0.0


def test_rem_without_anything_hidden_minimises_three_times_the_entropy():
    adapted = adapter(methods.REM(hidden_step=0.0))
    logits = adapted(IMAGES[0])
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    assert adapted.last.loss == pytest.approx(3 * entropy.item(), rel=1e-4)


def test_rem_with_one_view_learns_nothing():
    adapted = adapter(methods.REM(views=1))
    adapted(IMAGES[0])
    assert adapted.last.loss is None
    assert torch.equal(adapted.network.arena.values, adapted.network.arena.source)


def test_rem_adapts_the_published_number_of_parameters(torchvision, timm):
    with torch.device("meta"):
        vits = [timm.create_model("vit_base_patch16_224"), torchvision.models.vit_b_16()]
        wrapped = [nn.Sequential(nn.Identity(), vit) for vit in vits]
    for vit in [*vits, *wrapped]:
        names = methods.REM().configure(vit, Statistics(vit))
        assert sum(vit.get_parameter(name).numel() for name in names) == 27_648
        assert len(names) == 4 * 9
    names = methods.REM(skip=0.0).configure(vits[0], Statistics(vits[0]))
    assert names[-1] == "blocks.11.norm2.bias"
    layers = [span.name for span in tidefast.adapt(models.load("bundled-vit"), "rem").network.arena.layers]
    assert layers[0].startswith("stem")
    assert layers[-1] == "late.1.norm2"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ["rem", "cmae"])
def test_every_family_adapts(family, method, transformers):
    adapted = adapter(methods.base.registry.get(method)(), transformers[family])
    for images in IMAGES[:2]:
        before = adapted.predict(images)
        torch.testing.assert_close(adapted(images), before)
    assert math.isfinite(adapted.last.loss)
    assert not torch.equal(adapted.network.arena.values, adapted.network.arena.source)


# -- CMAE ---------------------------------------------------------------------------------------------------------


class Rolling:
    """Views that are moved by one pixel more each time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return images.roll(self.count, 3)


def own_parts(adapted: tidefast.Adapter) -> tuple[torch.Tensor, nn.Linear]:
    head = head_of(adapted.network.module)[1]
    return head.mask_token.weight, head.hog_head


def test_cmae_steps_as_written_out_by_hand():
    method = methods.CMAE(uncertainty_views=3, restore=0.0, hog_weight=0.8, augment=Rolling())
    adapted, student, views = adapter(method), network(), Rolling()
    token = torch.zeros(16, requires_grad=True)
    head = nn.Linear(16, 27)
    head.load_state_dict(own_parts(adapted)[1].state_dict())
    learning = [p for name, p in student.named_parameters() if not name.endswith(("_token", "_embed"))]
    optimizer = SGD([*learning, token, *head.parameters()])
    final: list[torch.Tensor] = []
    student.norm.register_forward_hook(lambda norm, inputs, outputs: final.append(outputs))
    for images in IMAGES[:3]:
        with torch.no_grad():
            target = student(images)
            del final[:]
            for _ in range(3):
                student(views(images))
            means = [outputs[:, 1:].mean(2) for outputs in final]
        centre = (means[0] + means[1] + means[2]) / 3
        variance = sum((mean - centre) ** 2 for mean in means) / 2
        masked = torch.zeros(8, 16, dtype=torch.bool)
        for row, values in enumerate(variance.tolist()):
            for patch in sorted(range(16), key=values.__getitem__)[8:]:
                masked[row, patch] = True
        logits = replayed(student, images, masked, token)
        teaching = -(target.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        error = (head(final[-1][:, 1:]) - hog.histograms(images, 8))[masked]
        loss = teaching + 0.8 * (error**2).mean()
        torch.testing.assert_close(adapted(images), target)
        assert adapted.last.loss == pytest.approx(loss.item(), rel=1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    expected = [*learning, token, *head.parameters()]
    torch.testing.assert_close(
        adapted.network.arena.values, torch.cat([p.detach().flatten() for p in expected]), rtol=1e-4, atol=1e-5
    )
    assert token.abs().max() > 1e-4
    torch.testing.assert_close(adapted.predict(IMAGES[4]), student(IMAGES[4]).detach(), rtol=1e-4, atol=1e-5)


def test_cmae_without_masks_and_histograms_moves_nothing():
    for ratio, weight in ((0.0, 0.0), (0.0, 1.0)):
        adapted = adapter(methods.CMAE(mask_ratio=ratio, hog_weight=weight, uncertainty_views=2, restore=0.0))
        logits = adapted(IMAGES[0])
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        assert adapted.last.loss == pytest.approx(entropy.item(), rel=1e-5)
        assert (adapted.network.arena.values - adapted.network.arena.source).abs().max() < 1e-7


def test_cmae_returns_weights_of_the_network_and_not_its_own_parts():
    adapted = adapter(methods.CMAE(uncertainty_views=2, restore=1.0))
    adapted(IMAGES[0])
    arena = adapted.network.arena
    own = len(arena) - 16 - 17 * 27
    assert torch.equal(arena.values[:own], arena.source[:own])
    assert (own_parts(adapted)[1].bias != 0).all()
    some, none = (adapter(methods.CMAE(uncertainty_views=2, restore=share)) for share in (0.3, 0.0))
    moved = []
    for each in (some, none):
        each(IMAGES[0])
        moved.append(int((each.network.arena.values[:own] != arena.source[:own]).sum()))
    assert moved[0] / moved[1] == pytest.approx(0.7, abs=0.03)


def test_a_reset_takes_the_mask_token_and_the_head_of_histograms_too():
    adapted = adapter(methods.CMAE(uncertainty_views=2), reset=tidefast.resets.Periodic(every=3))
    token, head = own_parts(adapted)
    weight = head.weight.detach().clone()
    assert 0.015 < weight.std() < 0.025
    for images in IMAGES[:2]:
        adapted(images)
    assert token.abs().max() > 0
    assert not torch.equal(head.weight, weight)
    adapted(IMAGES[2])
    assert adapted.last.reset_fraction == 1.0
    assert torch.equal(token, torch.zeros(16))
    assert torch.equal(head.weight, weight)
    assert torch.equal(head.bias, torch.zeros(27))


def test_cmae_masks_whole_images_and_histograms_follow_a_wrapper_that_resizes(transformers):
    torch.manual_seed(0)
    small = functional.interpolate(IMAGES[0], 16)
    method = methods.CMAE(mask_ratio=1.0, uncertainty_views=2, augment=lambda images: images)
    one = adapter(method, transformers["wrapped"])
    two = adapter(method, transformers["wrapped"])
    torch.testing.assert_close(one(small), two(nn.Upsample(32)(small)))
    assert one.last.loss == pytest.approx(two.last.loss, rel=1e-5)


@pytest.mark.parametrize("method", [methods.CMAE(uncertainty_views=2), methods.REM()], ids=["cmae", "rem"])
def test_a_run_is_saved_and_continued(method, tmp_path):
    one, two = (adapter(method, num_classes=10, optimizer=None, reset="asr") for _ in range(2))
    for images in IMAGES[:2]:
        one(images)
    one.save(tmp_path / "state.safetensors")
    two.load(tmp_path / "state.safetensors")
    for images in IMAGES[2:4]:
        assert torch.equal(one(images), two(images))
    assert torch.equal(one.network.arena.values, two.network.arena.values)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("method", [methods.CMAE(uncertainty_views=2), methods.REM()], ids=["cmae", "rem"])
def test_a_compiled_transformer_adapts_like_the_eager_one(method):
    eager, compiled = adapter(method), adapter(method, torch.compile(network(), backend="eager"))
    for images in IMAGES[:3]:
        torch.testing.assert_close(compiled(images), eager(images))
    torch.testing.assert_close(compiled.network.arena.values, eager.network.arena.values)


def test_the_published_settings_of_methods_of_vision_transformers():
    cmae, rem = methods.CMAE(), methods.REM()
    assert (cmae.mask_ratio, cmae.hog_weight, cmae.uncertainty_views, cmae.restore) == (0.5, 0.5, 10, 0.01)
    assert (rem.views, rem.hidden_step, rem.rank_weight, rem.margin) == (3, 0.1, 1.0, 0.0)
    assert cmae.passes(1.0) == (12.0, 1.0)
    assert rem.passes(1.0) == pytest.approx((2.7, 2.7))
    for method, rate in ((cmae, 1e-5), (rem, 1e-3)):
        optimizer = tidefast.adapt(network(), method).optimizer
        assert isinstance(optimizer, torch.optim.Adam)
        assert optimizer.param_groups[0]["lr"] == rate
    with pytest.raises(ValueError, match=r"3 views in steps of 0\.5 hide the whole image"):
        methods.REM(hidden_step=0.5)
    with pytest.raises(ValueError, match="uncertainty_views must be a whole number of at least 2"):
        methods.CMAE(uncertainty_views=1)
