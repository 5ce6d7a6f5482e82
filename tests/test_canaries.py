"""Canaries of a service: read from anywhere, asked now and then, and an alarm long before a collapse is total."""

from __future__ import annotations

import logging
import math

import numpy as np
import PIL.Image
import pytest
import torch

pytest.importorskip("fastapi", reason="left out: the extra `serve` is not installed")

from canaries import first_with, watched
from hypothesis import given
from hypothesis import strategies as st

from test_serve import LEVELS, lone, net, running, send
from tidefast import SnapshotError, cli, datasets, serve
from tidefast.core.record import StepRecord
from tidefast.datasets import DatasetError
from tidefast.serve.canaries import Canaries, Look, summary
from tidefast.serve.watch import ImageStatistics, Watch
from tidefast.streams import as_tensor

NORMAL = ImageStatistics(0.45, 0.22, 0.0, 1.0, count=16)
KNOWN = as_tensor(LEVELS[:10].reshape(80, 16, 16, 3))


# -- where they come from -------------------------------------------------------------------------------------------


def test_canaries_are_read_from_a_folder_an_array_or_a_data_set(tmp_path):
    levels = LEVELS[:3].reshape(24, 16, 16, 3)
    for place, image in enumerate(levels):
        folder = tmp_path / "photos" / f"class-{place % 3}" / "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(image).save(folder / f"{place}.png")
    np.save(tmp_path / "levels.npy", levels)
    np.save(tmp_path / "floats.npy", as_tensor(levels).numpy())
    np.savez(tmp_path / "some.npz", images=levels)
    expected = {image.tobytes() for image in as_tensor(levels).numpy()}
    for name in ("photos", "levels.npy", "floats.npy", "some.npz"):
        images = datasets.open_unlabelled(tmp_path / name)
        assert {image.tobytes() for image in images.numpy()} == expected, name
        assert torch.equal(images, datasets.open_unlabelled(str(tmp_path / name)))  # the same order, whoever asks
    assert datasets.open_unlabelled(tmp_path / "photos", 10).shape == (10, 3, 16, 16)
    assert datasets.open_unlabelled(f"{tmp_path / 'photos'}:resize=12,crop=8").shape == (24, 3, 8, 8)
    sized = datasets.open_unlabelled(f"{tmp_path / 'photos'}:size=8")
    labelled = as_tensor(datasets.open(f"{tmp_path / 'photos'}", size=8)[list(range(24))].images)
    assert {image.tobytes() for image in sized.numpy()} == {image.tobytes() for image in labelled.numpy()}


def test_what_a_data_set_holds_sorted_comes_mixed():
    held = datasets.open("bundled:part=held")
    sets = {image.tobytes(): label for image, label in zip(as_tensor(held.images).numpy(), held.labels, strict=True)}
    labels = [sets[image.tobytes()] for image in datasets.open_unlabelled("bundled:part=held", 100).numpy()]
    assert len(set(labels[:20])) > 5


def _stored(path, array):
    np.save(path, array)
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder / "nothing", "there is no such file or folder"),
        (lambda folder: folder, "no image files in"),
        (lambda folder: f"{folder}:width=3", "a folder of images has no option width"),
        (lambda folder: _stored(folder / "a.npy", np.zeros((4, 16, 16), np.uint8)), r"got uint8 \[4, 16, 16\]"),
        (lambda folder: _stored(folder / "a.npy", np.zeros((0, 16, 16, 3), np.uint8)), "holds no images"),
        (lambda folder: _stored(folder / "a.npy", np.full((4, 3, 8, 8), 7, np.float32)), "got 7 to 7"),
        (lambda folder: _stored(folder / "a.npy", np.array([{}], object)), "holds no images that can be used"),
    ],
)
def test_what_cannot_be_canaries_is_told_in_one_sentence(make, words, tmp_path):
    with pytest.raises(DatasetError, match=words):
        datasets.open_unlabelled(make(tmp_path))


def test_images_of_different_sizes_are_named(tmp_path):
    for side in (8, 9):
        PIL.Image.new("RGB", (side, 8)).save(tmp_path / f"{side}.png")
    with pytest.raises(DatasetError, match=r"9\.png is 9x8.*:size=224"):
        datasets.open_unlabelled(tmp_path)


@pytest.mark.parametrize(
    ("canaries", "words"),
    [
        (torch.rand(32, 3, 8, 8), "canaries must be 16x16 .* got 8x8: of a folder, --canaries FOLDER:resize=N,crop=N"),
        (torch.rand(4, 3, 16, 16), "4 canaries are too few to tell anything: give 16 or more"),
    ],
)
def test_canaries_that_do_not_fit_the_model_are_refused_at_the_start(canaries, words, tmp_path):
    settings = serve.Settings(state=tmp_path, side=(16, 16), threads=1)
    with pytest.raises(ValueError, match=words):
        serve.Service(settings, net(), {"method": "eta"}, canaries=canaries)


def test_a_bad_option_ends_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", "--canaries", "nowhere"]) == 2
    assert "no images at 'nowhere'" in capsys.readouterr().err


def test_canaries_tell_the_size_of_the_images_where_nobody_has(tmp_path):
    service = serve.Service(serve.Settings(state=tmp_path, threads=1), net(), {"method": "eta"}, canaries=KNOWN)
    assert (service.size, service.num_classes) == ((16, 16), 10)
    service.snapshots.close()


def test_they_are_the_guards_source_images(tmp_path):
    chosen = {"method": "tent", "reset": "guard", "state": tmp_path, "threads": 1}
    service = serve.open_service(serve.Settings(canaries="bundled:part=held", **chosen))
    assert service.fleet.policy.name == "guard"
    assert len(service.canaries) == 512
    with service.fleet._pool.lent() as adapter:
        theirs = {image.tobytes() for image in adapter.constants["guard_canaries"].numpy()}
    assert theirs == {image.tobytes() for image in service.canaries.images.numpy()}
    service.snapshots.close()


@pytest.mark.parametrize("others", [KNOWN[40:], None], ids=["others", "none"])
def test_a_guard_does_not_go_on_with_other_canaries_and_says_so(others, tmp_path):
    def served(canaries):
        settings = serve.Settings(state=tmp_path, side=(16, 16), threads=1)
        options = {"method": "tent", "reset": "guard", "source": canaries}
        return serve.Service(settings, net(), options, canaries=canaries)

    first = served(KNOWN[:40])
    first.fleet["x"](KNOWN[:16])
    first._take_snapshot()
    first.snapshots.close()
    with pytest.raises(SnapshotError, match=r"was saved with other source images \(or canaries\), or with none"):
        served(others)
    again = served(KNOWN[:40])
    assert again.fleet["x"].step == 1
    again.snapshots.close()


# -- asking ---------------------------------------------------------------------------------------------------------


def test_a_stream_is_asked_often_while_it_is_young_and_then_after_every_so_many_images():
    canaries = Canaries(KNOWN, torch.zeros(80, dtype=torch.long), every=256)
    asked = [step for step in range(1, 101) if canaries.is_due("a", 16)]
    assert asked == [1, 3, 7, 15, 31, 47, 63, 79, 95]
    assert canaries.is_due("b", 1)
    assert [canaries.is_due("b", 1, stepped=number == 3) for number in range(4)] == [False, False, False, True]
    canaries.forget("a")
    assert canaries.is_due("a", 1)


def test_a_stream_in_doubt_is_asked_again_sooner():
    numbers, doubts = torch.arange(80.0)[:, None], []
    canaries = Canaries(numbers, torch.zeros(80, dtype=torch.long), every=256)
    right, wrong = torch.eye(2)[0].expand(64, 2), torch.eye(2)[1].expand(64, 2)
    for step in range(1, 101):
        if canaries.is_due("a", 16):
            canaries.ask("a", lambda _, now=wrong if step > 60 else right: now, lambda _: right, like=numbers)
            doubts.append(step)
    assert doubts == [1, 3, 7, 15, 31, 47, *range(63, 101, 4)]


def test_all_canaries_have_their_turn():
    numbers = torch.arange(80.0)[:, None]  # what is no image is not dressed
    canaries = Canaries(numbers, torch.arange(80), asked=32)
    seen: list[torch.Tensor] = []

    def answering(images):
        seen.append(images)
        return torch.zeros(len(images), 80)

    for _ in range(5):
        canaries.ask("a", answering, answering, like=numbers[:8])
    assert [len(images) for images in seen] == [32] * 10
    assert torch.cat(seen[:5]).unique().tolist() == numbers.flatten().tolist()


@given(lost=st.integers(0, 64), gained=st.integers(0, 64))
def test_the_evidence_is_that_of_a_sign_test(lost, gained):
    look = Look(asked=128, kept=64 + gained - lost, reference=64, lost=lost, gained=gained)
    evidence = summary((look,))["canary_evidence"]
    assert abs(evidence) <= math.sqrt(lost + gained) + 1e-9
    assert (evidence > 0) == (lost > gained)
    assert summary((look, look))["canary_evidence"] == pytest.approx(math.sqrt(2) * evidence)


def test_asking_changes_no_bit_of_a_stream(tmp_path):
    with running(tmp_path, canaries=KNOWN, max_wait=0.0) as client:
        client.service.canaries._every = 1  # after every step
        adapter = lone()
        for step in range(6):
            said = send(client, "same", LEVELS[step], logits="true")
            assert torch.equal(torch.tensor(said["logits"]), adapter(as_tensor(LEVELS[step])))
        assert [record["measurements"].keys() >= {"canary_agreement"} for record in history(client)] == [True] * 6
        with client.service.fleet._lent("same", begin=False) as (_, served):
            assert torch.equal(served.network.arena.values, adapter.network.arena.values)
            assert served.step == adapter.step


def test_a_question_that_fails_harms_no_answer(tmp_path, caplog):
    with running(tmp_path, canaries=KNOWN, max_wait=0.0) as client, caplog.at_level(logging.ERROR):
        client.service.canaries.images = torch.rand(80, 2, 16, 16)  # the network cannot take them
        adapter = lone()
        said = send(client, "same", LEVELS[0], logits="true")
        assert torch.equal(torch.tensor(said["logits"]), adapter(as_tensor(LEVELS[0])))
        assert "could not be asked about the canaries" in caplog.text


def history(client):
    return client.get("/v1/streams/same/history").json()


def test_what_it_says_is_in_status_metrics_history_and_info(tmp_path):
    with running(tmp_path, canaries=KNOWN, max_wait=0.0, reset="never") as client:
        for step in range(2):
            send(client, "same", LEVELS[step])
        first, second = history(client)
        assert first["measurements"].keys() >= {"canary_agreement", "canary_reference", "canary_evidence"}
        assert "canary_agreement" not in second["measurements"]  # it was not asked again yet,
        measured = first["measurements"]
        (stream,) = client.get("/v1/streams").json()
        assert stream["lately"]["canaries"] == pytest.approx(
            {name: measured[name] for name in measured if name.startswith("canary")}, abs=1e-4
        )
        shown = f'tidefast_stream_canary_agreement{{stream="same"}} {measured["canary_agreement"]}'
        assert shown in client.get("/metrics").text  # and what it said stays
        info = client.get("/v1/info").json()
        assert info["canaries"] == 80
        assert info["measurements"]["canary_reference"]["beside"] == "canary_agreement"
        client.post("/v1/streams/same/reset")
        (stream,) = client.get("/v1/streams").json()
        assert stream["lately"]["canaries"] is None
        send(client, "same", LEVELS[0])
        assert history(client)[-1]["measurements"].keys() >= {"canary_agreement"}  # asked at once


# -- the alarm ------------------------------------------------------------------------------------------------------


def alarmed(looks):
    """The kinds of alarms after each of some measured steps."""
    watch = Watch()
    kinds = []
    for step, measured in enumerate(looks, start=1):
        watch.step("camera", StepRecord(step, measurements=measured), latency=0.01, images=NORMAL)
        kinds.append([alarm.kind for alarm in watch.alarms()])
    return watch, kinds


def measured(agreement, reference, evidence):
    return {"canary_agreement": agreement, "canary_reference": reference, "canary_evidence": evidence}


def test_the_alarm_says_from_where_to_where_and_stays_until_half_is_made_up_for():
    well, sick, better = measured(0.92, 0.94, 0.6), measured(0.61, 0.94, 4.5), measured(0.82, 0.94, 2.0)
    watch, kinds = alarmed([well, sick, {}, better])
    assert kinds == [[], ["canaries"], ["canaries"], ["canaries"]]
    (alarm,) = watch.alarms()
    assert alarm.message.startswith("answers to known images changed: 94 % to 61 %. ")
    assert (alarm.value, alarm.bound) == (0.61, 0.94)
    watch.step("camera", StepRecord(5, measurements=measured(0.9, 0.94, 1.0)), latency=0.01, images=NORMAL)
    assert watch.alarms() == []


def test_neither_chance_nor_little_raises_it():
    _, kinds = alarmed([measured(0.70, 0.80, 2.9), measured(0.76, 0.80, 6.0), measured(0.5, 0.3, -6.0)])
    assert kinds == [[], [], []]


def test_a_reset_ends_it():
    watch, _ = alarmed([measured(0.2, 0.9, 7.0)])
    watch.event("camera", "reset")
    assert watch.alarms() == []


@pytest.mark.slow
def test_a_slow_collapse_is_told_long_before_it_is_total():
    """Tent at ten times its rate without a policy: from 62 % right to 18 % within some 400 batches."""
    taken = watched("tent", 10, 256)
    first = first_with("canaries", taken)
    assert first is not None
    assert first < 200
    assert np.mean([step.right for step in taken[first - 16 : first]]) > 0.3  # it still knows a good part
    assert all("canaries" in step.alarms for step in taken[first:])
    assert first_with("concentration", taken) is None  # what would have told without canaries


@pytest.mark.slow
@pytest.mark.parametrize("canaries", [64, 256])
def test_a_healthy_stream_raises_no_alarm_by_its_canaries(canaries):
    taken = watched("roid", 1, 300, canaries=canaries)
    assert {step.alarms for step in taken} == {()}
    assert sum("canary_evidence" in step.measurements for step in taken) >= 8  # gaps double up to 2,048 images
