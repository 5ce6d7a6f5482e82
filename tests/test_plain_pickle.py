"""The reader of published pickles: it reads what numpy writes, and a forged file gets a refusal and nothing else."""

from __future__ import annotations

import pickle
import pickletools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidefast.datasets import plainpickle
from tidefast.datasets.errors import DatasetError
from tidefast.datasets.plainpickle import read_pickle

ARRAY = {"data": np.arange(12, dtype="<u2").reshape(3, 4), "labels": [1, 2, 3], "batch_label": b"one of five"}
BEGUN = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"


def dtype(code: bytes, state: bytes) -> bytes:
    return b"cnumpy\ndtype\nU" + bytes([len(code)]) + code + b"K\x00K\x01\x87R" + state + b"b"


def plain_state(order: bytes = b"|") -> bytes:
    return b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"


def forged(state: bytes, code: bytes = b"V8", shape: bytes = b"K\x01\x85", data: bytes = b"U\x08AAAAAAAA") -> bytes:
    return BEGUN + b"(K\x01" + shape + dtype(code, state) + b"\x89" + data + b"tb."


FORGERIES = {
    "a record whose fields lie at addresses of the forger's choice": forged(
        b"(K\x03U\x01|N(U\x01at}U\x01a" + dtype(b"O8", plain_state()) + b"J\x00\x00\x00\x00\x86sK\x08K\x01K\x1bt"
    ),
    "objects, which are addresses": forged(plain_state(), code=b"O8"),
    "a size of an element that is not its own": forged(b"(K\x03U\x01|NNNJ\xff\xff\xff\x7fK\x01K\x00t", code=b"u1"),
    "flags that say objects": forged(b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ft", code=b"u8"),
    "more elements than bytes": forged(plain_state(), code=b"u1", shape=b"J\xff\xff\xff\x7f\x85"),
    "a side below nothing": forged(plain_state(), code=b"u1", shape=b"J\xff\xff\xff\xffJ\xf8\xff\xff\xff\x86"),
    "sides whose product overflows": forged(plain_state(), code=b"u1", shape=b"\x8a\x09" + b"\0" * 8 + b"\x01\x85"),
    "a memo of two billion entries": b"\x80\x02}r\xff\xff\xff\x7f.",
    "a memo at a number of eight bytes": b"\x80\x02K\x01p2305843009213693951\n0K\x02.",
    "a text of 2**62 bytes": b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"a.",
    "bytes of 2**62 bytes": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"a.",
    "a frame of 2**62 bytes around nothing": b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b".",
    "tuples of tuples, two to the power of sixty": b"\x80\x04)"
    + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))
    + b"\x8c\x05touch\x93.",
    "lists in lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "a list within itself": b"\x80\x02]q\x00h\x00a.",
    "keys that are no text": b"\x80\x02}K\x01K\x02s.",
    "a file that is cut": pickle.dumps(ARRAY)[:-9],
    "nothing": b"",
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", ["u1", "<u2", ">u2", "<f8", ">f8", "f4", "i8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_today_are_read_as_they_are(protocol: int, kind: str, order: str, tmp_path: Path):
    values = np.asarray(np.random.default_rng(0).integers(0, 2, (3, 5)).astype(kind), order=order)
    content = {"data": values, "again": values, "labels": [0, 9], "batch_label": "one of five"}
    (tmp_path / "p").write_bytes(pickle.dumps(content, protocol=protocol))
    found = read_pickle(tmp_path / "p")
    for name in ("data", "again"):
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert (found["labels"], found["batch_label"]) == ([0, 9], "one of five")


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_harms_nothing_and_takes_little_memory(name: str, tmp_path: Path):
    """In a process of its own: what it takes from the system is measured, and a crash is seen."""
    (tmp_path / "p").write_bytes(FORGERIES[name])
    script = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from tidefast.datasets.plainpickle import read_pickle\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    print('read', read_pickle(Path(sys.argv[1])))\n"
        "except Exception as error:\n    print(type(error).__name__, len(str(error)))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "p"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, (done.returncode, done.stderr)
    said, megabytes = done.stdout.splitlines()
    if name == "a memo of two billion entries":  # only its number is large: that costs nothing here
        assert said == "read {}"
    else:
        assert said.startswith("DatasetError ")
        assert int(said.split()[1]) < 600
    assert int(megabytes) < 64


def test_a_file_beyond_the_limit_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(plainpickle, "LARGEST_FILE", 100)
    (tmp_path / "p").write_bytes(b"\x80\x02" + b"N0" * 100 + b"N.")
    with pytest.raises(DatasetError, match="more than 100 bytes"):
        read_pickle(tmp_path / "p")


WHOLE = [pickle.dumps(ARRAY, protocol=protocol) for protocol in (0, 2, 4, 5)]
NUMBERS = st.sampled_from([0, 1, 2, 5, 8, 255, 2**31 - 1, 2**32 - 1])
INSTRUCTIONS = st.one_of(
    st.sampled_from([operation.code.encode("latin1") for operation in pickletools.opcodes]),
    st.builds(lambda code, n: code + (n % 256).to_bytes(1), st.sampled_from([b"K", b"h", b"q"]), NUMBERS),
    st.builds(lambda code, n: code + n.to_bytes(4, "little"), st.sampled_from([b"J", b"j", b"r", b"X", b"T"]), NUMBERS),
    st.builds(lambda text: b"U" + bytes([len(text)]) + text, st.sampled_from([b"b", b"u1", b"O8", b"V8", b"|", b"<"])),
    st.sampled_from([BEGUN[2:], dtype(b"u1", plain_state()), dtype(b"O8", plain_state()), plain_state()]),
    st.sampled_from([b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"c_codecs\nencode\n", b"cos\nsystem\n"]),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "p"


def attempt(place: Path, program: bytes) -> None:
    """It is read as plain data, or refused."""
    place.write_bytes(program)
    try:
        value = read_pickle(place)
    except DatasetError:
        return
    entries = value.values() if isinstance(value, dict) else [value]
    for entry in entries:
        for item in entry if isinstance(entry, list) else [entry]:
            assert item is None or isinstance(item, (bool, int, float, str, bytes, np.ndarray))
            assert not isinstance(item, np.ndarray) or (item.dtype.kind in "biuf" and item.nbytes <= len(program))


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUZZ
@given(program=st.lists(INSTRUCTIONS, max_size=30))
def test_any_program_is_read_as_plain_data_or_refused(program: list[bytes], place: Path):
    attempt(place, b"\x80\x02" + b"".join(program) + b".")


@FUZZ
@given(data=st.data())
def test_a_changed_file_is_read_as_plain_data_or_refused(data, place: Path):
    whole = bytearray(data.draw(st.sampled_from(WHOLE)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        piece = data.draw(st.one_of(st.binary(max_size=3), INSTRUCTIONS))
        whole[at : at + data.draw(st.integers(0, 3))] = piece
    attempt(place, bytes(whole))
