"""The exchangeable parts of ASR, each against plain numbers, and the named variants of the paper's tables."""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
import math
import pickle
import re
import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import recorded
import tidefast
from recorded import NETWORKS
from tidefast import bench, cli, resets
from tidefast.core import losses
from tidefast.core.network import Network
from tidefast.errors import UnknownNameError
from tidefast.resets.asr import Measure, Strength, Trigger, expressions, measures, triggers
from tidefast.resets.asr.measures import PROBE, spread
from tidefast.resets.base import registry
from tidefast.testing import check_adapter, small_network

SGD = functools.partial(torch.optim.SGD, lr=0.6, momentum=0.9)
STEPS = 24
CONV = NETWORKS[0]
EAGER = {"alpha0": 0.94, "source_stats": "running"}
"""With ten classes: several resets in these steps, and not at every one; and a phi that is seldom 0."""
ALL = [*resets.ABLATIONS]


def play(policy, steps=STEPS):
    """An adapter after some steps of the recorded stream, in float64, and the records of them."""
    history = tidefast.History()
    adapter = tidefast.adapt(recorded.network(CONV), "tent", reset=policy, optimizer=SGD, callbacks=[history])
    for images in recorded.stream(CONV)[:steps]:
        adapter(images)
    return adapter, list(history)


def variant(name, **changes):
    return registry.make(name, **{**EAGER, **changes})


@functools.cache
def plain():
    return play(resets.ASR(**EAGER))


def fired(records):
    return [record.step for record in records if record.reset_fraction]


# -- how a part is given ------------------------------------------------------------------------------------------


def test_a_part_is_an_object_a_name_with_options_or_a_mapping():
    spelled = resets.ASR(when="interval:every=7", extent="fixed: part = 0.2")
    mapped = resets.ASR(when={"name": "interval", "every": 7}, extent={"name": "fixed", "part": 0.2})
    made = resets.ASR(when=triggers.Interval(7), extent=resets.asr.extents.Fixed(0.2))
    assert spelled == mapped == made
    assert len({spelled, mapped, made, resets.ASR()}) == 2
    assert spelled.when.every == 7


def test_asr_is_copied_replaced_and_shown_with_its_parts():
    policy = resets.ASR(when="interval:every=7")
    changed = dataclasses.replace(policy, extent="full")
    assert changed.when == policy.when
    assert changed.extent == resets.asr.extents.Full()
    assert pickle.loads(pickle.dumps(changed)) == copy.deepcopy(changed) == changed
    assert "when=Interval(every=7)" in repr(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.when = "adaptive"
    defaults = {field.name: field.default for field in dataclasses.fields(resets.ASR)}
    assert defaults["when"] == "adaptive"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"when": "intervall"}, UnknownNameError, "unknown trigger 'intervall'; did you mean 'interval'.*adaptive"),
        ({"measure": "softmax"}, UnknownNameError, "unknown measure 'softmax'.*softmax-of-mean"),
        ({"when": "interval:evry=3"}, ValueError, "trigger 'interval' has no option 'evry'; its options: every"),
        ({"extent": "full:part=0.5"}, ValueError, "extent 'full' has no option 'part'; its options: none"),
        ({"when": "interval:512"}, ValueError, "expected name:key=value,key=value, got 'interval:512'"),
        ({"when": "interval:every="}, ValueError, "expected name:key=value"),
        ({"when": "interval:every=0"}, ValueError, "every must be a whole number of at least 1, got 0"),
        ({"when": "interval:every=often"}, TypeError, "every must be a whole number"),
        ({"extent": "fixed:part=0"}, ValueError, "part must lie in"),
        ({"momentum": "constant:value=1.5"}, ValueError, "value must lie in"),
        ({"measure": "spread:factor=0.5"}, ValueError, "factor must lie in"),
        ({"measure": "without-largest:share=1"}, ValueError, "share must lie in"),
        ({"strength": 5.0}, TypeError, "strength must be a Strength, its name, or a mapping with its name, got 5.0"),
        ({"when": resets.asr.extents.Full()}, TypeError, "trigger must be a Trigger"),
    ],
    ids=str,
)
def test_a_wrong_part_is_answered_with_what_is_known(settings, error, message):
    with pytest.raises(error, match=message):
        resets.ASR(**settings)


def test_a_part_of_another_package_is_used_by_name_and_as_an_object():
    @triggers.registry.register("test-early")
    @dataclasses.dataclass(frozen=True)
    class Early(Trigger):
        until: int = 3

        def fires(self, concentration, threshold, steps):
            return steps < self.until and concentration > threshold

    try:
        assert resets.ASR(when="test-early:until=2").when == Early(2)
    finally:
        del triggers.registry._classes["test-early"]

    class Halved(Strength):  # neither registered nor with options
        def of(self, inconsistency, lambda0):
            return lambda0 * inconsistency / 2

    _, records = play(resets.ASR(strength=Halved(), **EAGER))
    pairs = list(itertools.pairwise(records))
    assert any(before.inconsistency for before, _ in pairs)
    assert all(after.penalty == pytest.approx(2.5 * before.inconsistency) for before, after in pairs)


@pytest.mark.parametrize("part", ["measure", "when", "extent", "accumulation", "strength", "momentum"])
def test_a_snapshot_with_another_part_is_refused(part, tmp_path):
    other = {
        "measure": "mean-of-softmax",
        "when": "adaptive:delay=0.1",
        "extent": "full",
        "accumulation": "cumulative",
        "strength": "linear",
        "momentum": "squared",
    }[part]
    adapter, _ = play(resets.ASR(), steps=2)
    adapter.save(tmp_path / "state")
    stranger, _ = play(resets.ASR(**{part: other}), steps=1)
    with pytest.raises(tidefast.errors.SnapshotError, match=part):
        stranger.load(tmp_path / "state")


CONFIGURATIONS = [
    {"measure": "without-largest", "when": "adaptive:delay=0.01", "accumulation": "cumulative", "strength": "inverse"},
    {"measure": "spread:factor=3", "when": "interval:every=2", "accumulation": "exponential", "fisher": "total"},
]


@pytest.mark.parametrize("options", CONFIGURATIONS, ids=str)
def test_an_adapter_with_other_parts_keeps_every_promise(options):
    check_adapter(lambda model: tidefast.adapt(model, "eta", reset=resets.ASR(**EAGER, **options)))


@pytest.mark.parametrize(
    "options",
    [
        *({"accumulation": name} for name in ("hybrid", "cumulative", "exponential", "none")),
        *({"measure": name} for name in ("mean-of-softmax", "without-largest", "spread")),
        *({"strength": name} for name in expressions.strengths.names()),
        *({"momentum": name} for name in expressions.momenta.names()),
        *({"when": name} for name in ("adaptive:delay=0.01", "interval:every=4")),
        *({"extent": name} for name in ("fixed:part=0.2", "full")),
    ],
    ids=str,
)
def test_a_run_resumes_bit_for_bit(options, tmp_path):
    policy = resets.ASR(**EAGER, **options)
    whole, records = play(policy, steps=14)
    first, _ = play(policy, steps=9)
    first.save(tmp_path / "state")
    second = tidefast.adapt(recorded.network(CONV), "tent", reset=policy, optimizer=SGD)
    second.load(tmp_path / "state")
    for images in recorded.stream(CONV)[9:14]:
        second(images)
    assert torch.equal(second.network.arena.values, whole.network.arena.values)
    assert dataclasses.replace(second.last, seconds=0.0) == dataclasses.replace(records[-1], seconds=0.0)


# -- measures -----------------------------------------------------------------------------------------------------


def logits_of(rows=32, classes=10, seed=0):
    return 3 * torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def negative_entropy(p):
    return float(sum(x * math.log(x) for x in p))


def softmax(row):
    weights = [math.exp(x - max(row)) for x in row]
    return [weight / sum(weights) for weight in weights]


def test_the_two_orders_of_mean_and_softmax():
    logits = logits_of() + torch.linspace(0.0, 3.0, 10)
    rows = logits.tolist()
    of_mean = negative_entropy(softmax([sum(column) / len(rows) for column in zip(*rows, strict=True)]))
    mean_of = negative_entropy([sum(c) / len(rows) for c in zip(*map(softmax, rows), strict=True)])
    assert float(measures.SoftmaxOfMean().of(logits)) == pytest.approx(of_mean, abs=1e-12)
    assert float(measures.MeanOfSoftmax().of(logits)) == pytest.approx(mean_of, abs=1e-12)
    assert of_mean != pytest.approx(mean_of, abs=0.01)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_the_largest_logits_are_left_out_wherever_they_are(share, layout):
    logits = logits_of(rows=7)
    count = max(1, round(share * 70))
    cells = sorted(((abs(x), i, j) for i, row in enumerate(logits.tolist()) for j, x in enumerate(row)), reverse=True)
    gone = {(i, j) for _, i, j in cells[:count]}
    columns = [[row[j] for i, row in enumerate(logits.tolist()) if (i, j) not in gone] for j in range(10)]
    expected = negative_entropy(softmax([sum(column) / len(column) for column in columns if column]))
    given_ = logits if layout == "rows" else logits.T.contiguous().T  # a head may give logits that are laid out so
    assert float(measures.WithoutLargest(share).of(given_)) == pytest.approx(expected, abs=1e-12)


def test_a_class_of_which_nothing_is_left_takes_no_part():
    logits = torch.tensor([[50.0, 1.0, 0.0], [-60.0, 0.0, 1.0]])
    assert float(losses.trimmed_concentration(logits, 2)) == pytest.approx(-math.log(2))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.5, 2.0, 4.0, 15.0]), st.integers(48, 96))
def test_spreading_multiplies_the_variance_of_lengths_and_keeps_mean_order_and_classes(seed, factor, rows):
    logits = logits_of(rows, seed=seed)
    after = spread(logits, factor)
    old, new = logits.norm(dim=1), after.norm(dim=1)
    assert float(new.var() / old.var()) == pytest.approx(factor, rel=1e-6)
    assert float(new.mean()) == pytest.approx(float(old.mean()), rel=1e-9)
    assert torch.equal(old.argsort(), new.argsort())
    assert torch.allclose(torch.nn.functional.cosine_similarity(logits, after), torch.ones(rows, dtype=torch.float64))
    assert torch.equal(logits.argmax(1), after.argmax(1))


@pytest.mark.parametrize(
    "logits",
    [torch.eye(4), torch.zeros(4, 3), torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[1.0, 2.0]])],
    ids=["equal lengths", "all zero", "one of length 0", "one sample"],
)
def test_logits_that_cannot_be_spread_stay_as_they_are(logits):
    assert torch.equal(spread(logits, 15.0), logits)


def test_a_batch_too_small_for_so_much_variance_is_spread_as_far_as_it_goes():
    logits = torch.tensor([[1.0, 0.0], [1.5, 0.0], [0.0, 2.0]])
    after = spread(logits, 1000.0)
    assert torch.isfinite(after).all()
    assert after.norm(dim=1).tolist() == pytest.approx([0.0, 0.0, 4.5], abs=1e-6)
    assert math.isfinite(measures.Spread(1000.0).of(logits))


# -- the probe ----------------------------------------------------------------------------------------------------


def source_of(classes=10, each=9, seed=3):
    """Images whose first pixel is their label, and their labels; later classes have more of them."""
    labels = torch.cat([torch.full((each + label,), label) for label in range(classes)])
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    images = torch.rand(len(labels), 3, 32, 32, generator=torch.Generator().manual_seed(seed))
    images[:, 0, 0, 0] = labels / 1000
    return images, labels


@pytest.mark.parametrize(
    ("images", "classes", "each", "expected"),
    [
        (64, 10, 9, dict.fromkeys(range(10), 6)),
        (64, 10, 4, dict.fromkeys(range(10), 4)),
        (64, 3, 40, dict.fromkeys(range(3), 21)),
        (4, 10, 9, {0: 1, 2: 1, 5: 1, 7: 1}),
    ],
    ids=["as many as fit", "the rarest class decides", "few classes", "fewer images than classes"],
)
def test_a_probe_has_as_many_images_of_each_class_as_of_any_other(images, classes, each, expected):
    data = tidefast.core.source.SourceData(Network(small_network()), source_of(classes, each), "ASR")
    probe = measures.Probe(images).prepare(Network(small_network()), data)[PROBE]
    assert Counter((1000 * probe[:, 0, 0, 0]).round().int().tolist()) == expected


def test_a_probe_needs_labels_and_says_so():
    policy = resets.ASR(measure="probe")
    with pytest.raises(ValueError, match="ASR needs labelled source images"):
        tidefast.adapt(small_network(), "tent", reset=policy)
    with pytest.raises(ValueError, match="labelled source data"):
        tidefast.adapt(small_network(), "tent", reset=policy, source=torch.rand(64, 3, 32, 32))


def test_a_probe_measures_the_adapted_network_and_not_the_stream():
    torch.manual_seed(0)
    model, one_class = small_network(), torch.rand(1, 3, 32, 32).repeat(16, 1, 1, 1) + 0.01 * torch.rand(16, 3, 32, 32)
    still = functools.partial(torch.optim.SGD, lr=0.0)
    adapter = tidefast.adapt(model, "tent", reset=resets.ASR(measure="probe"), source=source_of(), optimizer=still)
    adapter(torch.rand(16, 3, 32, 32))
    first = adapter.last.concentration
    adapter(one_class)
    assert adapter.last.concentration == first
    policy = resets.ASR(measure="probe", alpha0=1e-9)  # never resets
    moving = tidefast.adapt(model, "tent", reset=policy, source=source_of(), optimizer=SGD)
    moving(one_class)
    expected = losses.concentration(moving.predict(moving.constants[PROBE]))
    assert moving.last.concentration == pytest.approx(float(expected), abs=1e-6)
    assert moving.last.concentration != first


def test_an_adapter_with_a_probe_keeps_every_promise():
    policy = resets.ASR(measure="probe:images=20", **EAGER)
    check_adapter(lambda model: tidefast.adapt(model, "eta", reset=policy, source=source_of()))


def test_streams_of_a_fleet_share_one_probe_and_a_preparation_belongs_to_its_options(tmp_path):
    policy, model = resets.ASR(measure="probe:images=20"), small_network()
    prepared = tidefast.prepare(model, "tent", source_of(), reset=policy)
    fleet = tidefast.Fleet(model, "tent", reset=policy, source=prepared, folder=tmp_path)
    alone = tidefast.adapt(model, "tent", reset=policy, source=prepared)
    for _ in range(3):
        images = torch.rand(8, 3, 32, 32)
        assert torch.allclose(fleet["left"](images), alone(images), atol=1e-6)
        fleet["right"](torch.rand(8, 3, 32, 32))
    other = resets.ASR(measure="probe:images=30")
    with pytest.raises(tidefast.errors.SnapshotError, match="other settings"):
        tidefast.adapt(model, "tent", reset=other, source=prepared)


def test_a_measurement_that_is_not_finite_tells_nothing():
    class Broken(Measure):
        def of(self, logits: Tensor) -> Tensor:
            return logits.new_tensor(math.nan)

    adapter, records = play(resets.ASR(measure=Broken()), steps=4)
    assert adapter.state["reset"].number("threshold") == pytest.approx(-math.log(5.0))
    assert not fired(records)
    assert all(record.concentration is None for record in records)


# -- when and how much --------------------------------------------------------------------------------------------


def test_the_triggers():
    adaptive = triggers.Adaptive()
    assert adaptive.fires(-1.0, -1.5, 1)
    assert not adaptive.fires(-1.5, -1.5, 1)
    late = triggers.Adaptive(delay=0.6)
    assert not late.fires(-1.0, -1.5, 1)
    assert late.fires(-0.8, -1.5, 1)
    assert not triggers.Adaptive(factor=0.5).fires(-1.0, -1.5, 1)
    assert triggers.Adaptive(factor=2.0).fires(-2.5, -1.5, 1)
    assert [triggers.Interval(3).fires(math.nan, math.nan, steps) for steps in (1, 2, 3)] == [False, False, True]


def test_the_extents():
    extents = resets.asr.extents
    assert extents.Proportional().share(0.01, 0.5, 20.0) == pytest.approx(0.7)
    assert extents.Proportional().share(9.0, 0.5, 20.0) == 1.0
    assert extents.Proportional().share(-0.1, 0.5, 20.0) == 0.5
    assert extents.Fixed(0.2).share(9.0, 0.5, 20.0) == 0.2
    assert extents.Full().share(0.0, 0.5, 20.0) == 1.0


def test_an_interval_resets_exactly_every_so_many_steps_the_smallest_share():
    adapter, records = play(resets.ASR(when="interval:every=7"))
    assert fired(records) == [7, 14, 21]
    assert {record.reset_fraction for record in records} == {0.0, 0.5}
    assert all(record.concentration is record.threshold is record.momentum is None for record in records)
    assert any(record.penalty for record in records)  # recovery goes on
    assert adapter.state["reset"].number("threshold") == pytest.approx(-math.log(5.0))


def test_below_the_delay_the_average_follows_what_it_would_have_reset_at():
    _, records = play(resets.ASR(when="adaptive:delay=0.02", **EAGER))
    between = [(a, b) for a, b in itertools.pairwise(records) if 0 < a.concentration - a.threshold <= 0.02]
    assert between
    for now, later in between:
        assert not now.reset_fraction
        followed = now.momentum * now.threshold + (1 - now.momentum) * now.concentration
        assert later.threshold == pytest.approx(followed)


# -- recovery and its coefficients --------------------------------------------------------------------------------


STRENGTHS = {
    "squared": lambda phi: 5 * phi * phi,
    "linear": lambda phi: 5 * phi,
    "inverse": lambda phi: 5 * (1 - phi) * (1 - phi),
    "inconsistency": lambda phi: phi,
    "constant": lambda phi: 5.0,
}
MOMENTA = {
    "linear": lambda phi: 1 - 0.3 * (1 - phi),
    "squared": lambda phi: 1 - 0.3 * (1 - phi * phi),
    "inverse": lambda phi: 1 - 0.3 * phi,
    "inconsistency": lambda phi: phi,
    "constant": lambda phi: 0.7,
    "constant:value=0.995": lambda phi: 0.995,
}


@pytest.mark.parametrize("name", STRENGTHS)
def test_lambda_f_follows_the_inconsistency_of_the_step_before(name):
    _, records = play(resets.ASR(strength=name, **EAGER))
    assert fired(records)
    phis = [0.0, *(record.inconsistency for record in records)]
    assert max(phis) > 0.1
    assert [record.penalty for record in records] == pytest.approx([STRENGTHS[name](phi) for phi in phis[:-1]])


@pytest.mark.parametrize("name", MOMENTA)
def test_c_bar_follows_with_mu_c_of_the_same_step(name):
    _, records = play(resets.ASR(momentum=name, mu0=0.3, **EAGER))
    bar = start = -math.log(9.4)
    for record in records:
        assert record.threshold == pytest.approx(bar, abs=1e-12)
        mu = MOMENTA[name](record.inconsistency)
        assert record.momentum == pytest.approx(mu, abs=1e-12)
        assert bool(record.reset_fraction) == (record.concentration > bar)
        bar = start if record.reset_fraction else mu * bar + (1 - mu) * record.concentration


@dataclasses.dataclass(frozen=True)
class Watched(resets.ASR):
    """ASR that notes what it is given to accumulate."""

    seen: list = dataclasses.field(default_factory=list, compare=False)

    def adjust_gradient(self, step, state):
        arena = step.network.arena
        self.seen.append((arena.gradients.numpy().copy() ** 2, arena.values.numpy().copy()))
        super().adjust_gradient(step, state)


def hybrid(episodes):
    average = np.mean(episodes[0], axis=0)
    for episode in episodes[1:]:
        average = 0.9 * average + 0.1 * np.mean(episode, axis=0)
    return average


def cumulative(episodes):
    return np.mean([value for episode in episodes for value in episode], axis=0)


def exponential(episodes):
    values = [value for episode in episodes for value in episode]
    weights = np.array([0.9**age for age in reversed(range(len(values)))])
    return np.tensordot(weights / weights.sum(), np.array(values), axes=1)


@pytest.mark.parametrize("reference", [hybrid, cumulative, exponential], ids=lambda one: one.__name__)
def test_the_averages_that_recovery_pulls_to(reference):
    policy = Watched(accumulation=reference.__name__, **EAGER)
    adapter, records = play(policy)
    ends = [0, *fired(records)]
    assert len(ends) > 4
    assert max(np.diff(ends)) > 1
    episodes = [policy.seen[a:b] for a, b in itertools.pairwise(ends)]
    state = adapter.state["reset"]
    for place, name in enumerate(("fisher", "theta")):
        expected = reference([[seen[place] for seen in episode] for episode in episodes])
        assert np.allclose(state.tensor(name).numpy(), expected, rtol=1e-9, atol=1e-15)


def test_a_sum_over_a_long_stream_loses_nothing_in_single_precision():
    accumulation, value = resets.asr.accumulations.Cumulative(), torch.full((3,), 1.0031)
    adapter = tidefast.adapt(small_network(), "tent", reset=resets.ASR(accumulation=accumulation))
    adapter(torch.rand(8, 3, 32, 32))
    dtype = adapter.state["reset"].tensor("theta_sum").dtype
    total = torch.full((3,), 1.0e5, dtype=dtype)  # in float32 neighbours are 0.0078 apart here
    accumulation.gather(total, value, None, 0.9)
    assert torch.allclose(total - 1.0e5, value.to(dtype), atol=1e-6)
    assert adapter.state["reset"].optional_tensor("theta") is None


# -- on the command line and in files -----------------------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs" / "experiments.md").read_text()


def test_the_commands_of_the_experiments_page_run_as_written(tmp_path, monkeypatch):
    section = PAGE.split("### Parts of ASR")[1].split("\n### ")[0]
    commands = re.findall("^tidefast (run .*)$", section, re.M)
    mapping = re.search("`(--reset '.*?')`", section)[1]
    commands.append(re.sub("--reset [^ ]+", mapping, commands[0]))
    monkeypatch.chdir(tmp_path)
    for number, command in enumerate(commands):
        folder = f"runs/{number}"
        assert cli.main([*shlex.split(command), "--steps", "1", "--batch", "8", "--out", folder]) == 0
        assert bench.load(folder).complete
    assert len(commands) == 4


def test_the_file_of_the_experiments_page_is_a_sweep_over_three_policies(tmp_path):
    section = PAGE.split("### Parts of ASR")[1].split("\n### ")[0]
    (tmp_path / "grid.yaml").write_text(re.search("```yaml\n(.*?)```", section, re.S)[1])
    found = [experiment.reset for experiment in bench.experiments(tmp_path / "grid.yaml")]
    assert [registry.make(part.name, **part.options) for part in found] == [
        resets.ASR(),
        resets.ASR(accumulation="none"),
        resets.ASR(when=triggers.Adaptive(0.01, 0.9), momentum=expressions.ConstantMomentum(0.995)),
    ]


# -- the named variants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_variant_is_asr_with_the_options_it_lists_and_runs(name):
    policy = registry.make(name)
    usual = resets.ASR()
    differing = {f.name for f in dataclasses.fields(usual) if getattr(policy, f.name) != getattr(usual, f.name)}
    assert differing == set(resets.ABLATIONS[name])
    adapter, records = play(variant(name))
    assert adapter.policy == variant(name)
    assert all(record.skipped is None for record in records)
    if not name.startswith("asr-interval") and name != "asr-delay-0.001":  # what is too rare for so few steps
        assert fired(records)
        measured = [(r.concentration, r.penalty, r.momentum, r.reset_fraction) for r in records]
        assert measured != [(r.concentration, r.penalty, r.momentum, r.reset_fraction) for r in plain()[1]]


def test_plain_asr_resets_a_share_between_half_and_all():
    fractions = [record.reset_fraction for record in plain()[1] if record.reset_fraction]
    assert 3 < len(fractions) < STEPS - 3
    assert all(0.5 < fraction <= 1.0 for fraction in fractions)


@pytest.mark.parametrize(
    ("name", "share", "layers"), [("asr-full", 1.0, 5), ("asr-share-20", 0.2, 1), ("asr-share-80", 0.8, 4)]
)
def test_variants_of_where_to_reset(name, share, layers):
    history = tidefast.History()
    adapter = tidefast.adapt(recorded.network(CONV), "tent", reset=variant(name), optimizer=SGD, callbacks=[history])
    arena = adapter.network.arena
    for images in recorded.stream(CONV)[:STEPS]:
        adapter(images)
        if adapter.last.reset_fraction:
            moved = [
                not torch.equal(arena.values[s.start : s.stop], arena.source[s.start : s.stop]) for s in arena.layers
            ]
            assert moved == [True] * (5 - layers) + [False] * layers
    assert {record.reset_fraction for record in history} == {0.0, share}


@pytest.mark.parametrize("name", ["asr-no-recovery", "asr-reset-only"])
def test_without_recovery_there_is_no_penalty_and_nothing_is_accumulated(name):
    adapter, records = play(variant(name))
    assert {record.penalty for record in records} == {0.0}
    assert set(adapter.state["reset"]) == {"threshold", "inconsistency", "steps"}


@pytest.mark.parametrize(
    ("name", "asks"),
    [("asr-no-adjustment", 0), ("asr-reset-only", 0), ("asr-no-recovery", STEPS), ("asr-strength-constant", STEPS)],
)
def test_the_source_model_is_asked_only_where_something_depends_on_it(name, asks, monkeypatch):
    calls = []
    original = Network.source_logits
    monkeypatch.setattr(Network, "source_logits", lambda *a, **k: calls.append(1) or original(*a, **k))
    _, records = play(variant(name))
    assert len(calls) == asks
    assert all((record.inconsistency is None) == (asks == 0) for record in records)


def test_a_delay_makes_resets_rarer_and_the_first_one_no_earlier():
    seen = [fired(play(variant(name))[1]) for name in ("asr", "asr-delay-0.001", "asr-delay-0.01")]
    assert seen[0][0] <= seen[1][0] <= seen[2][0]
    assert len(seen[0]) >= len(seen[1]) > len(seen[2]) > 0


@pytest.mark.parametrize("every", [1000, 10000, 20000, 50000])
def test_interval_variants_have_the_papers_intervals(every):
    assert registry.make(f"asr-interval-{every}").when == triggers.Interval(every)
    assert registry.make("asr-interval") == registry.make("asr-interval-20000")


@pytest.mark.parametrize("name", ["asr-momentum-constant", "asr-no-adjustment", "asr-reset-only"])
def test_the_constant_momentum_of_the_tables_is_0_995(name):
    assert {record.momentum for record in play(variant(name), steps=5)[1]} == {0.995}


def test_variants_work_with_reservoirs_and_other_methods():
    torch.manual_seed(0)
    for method, source in ((tidefast.Reservoir("tent", batch_size=8), torch.rand(64, 3, 32, 32)), ("rotta", None)):
        adapter = tidefast.adapt(small_network(), method, reset=variant("asr-cumulative"), source=source)
        for _ in range(4):
            assert torch.isfinite(adapter(torch.rand(16, 3, 32, 32))).all()
