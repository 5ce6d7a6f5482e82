"""Names with options: one language, in Python, on the command line and in files."""

from __future__ import annotations

import math

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tidefast.bench import text
from tidefast.core import notation
from tidefast.core.specification import Specification

# -- values ------------------------------------------------------------------------------------------------------------

words = st.text("0123456789_.eE+-xbainfNULtruesyo~ ", max_size=8).map(str.strip) | st.sampled_from(
    [*("True", "FALSE", "Yes", "no", "ON", "Off", "Null", "~", "tRue"), *("-.inf", ".nan", ".5", "1_000", "017", "08")]
)


@given(words)
@example("1e-3")
def test_a_word_says_what_it_says_in_yaml(word: str):
    """But for what people do not expect of YAML 1.1: 1e-3 as text, dates, and numbers to base 60."""
    try:
        said = yaml.safe_load(f"[{word}]")[0] if word else None
    except (yaml.YAMLError, ValueError, IndexError):
        return
    ours = notation.scalar(word)
    if isinstance(said, str) and isinstance(ours, float):
        assert ours == float(word.replace("_", ""))
        assert "e" in word.lower()
    elif isinstance(said, (str, int, float, bool)) or said is None:
        assert (type(ours), str(ours)) == (type(said), str(said))


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab ,:[]{}'\"=#1", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc:, ", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["level", "speed", "_x1"]), plain, max_size=3))
def test_options_in_flow_style_are_read_like_a_file(options: dict[str, object]):
    written = {
        key: yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()
        for key, value in options.items()
    }
    given_ = "name:" + ",".join(f"{key}={value}" for key, value in written.items()) if options else "name"
    expected = {key: text.parse(value) for key, value in written.items()}
    assert expected == options
    assert Specification.parse(given_) == Specification("name", options)
