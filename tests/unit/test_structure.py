"""The count of a body's parts, against a parser."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from deskside.server.structure import Parts, parts_of

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a"\\\\,:{[é'),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='a"\\\\,:{['), inner, max_size=4)
    ),
)


def counted(value: Any) -> Parts:
    if isinstance(value, dict):
        inner = [counted(one) for one in value.values()]
        own = Parts(len(value), 1, max(0, len(value) - 1))
    elif isinstance(value, list):
        inner = [counted(one) for one in value]
        own = Parts(0, 1, max(0, len(value) - 1))
    else:
        return Parts(0, 0, 0)
    return Parts(*map(sum, zip(own, *inner, strict=True)))  # type: ignore[arg-type]


@given(value=VALUES, plain=st.booleans())
def test_signs_within_texts_do_not_count(value: Any, plain: bool) -> None:
    body = json.dumps(value, ensure_ascii=plain).encode()
    assert parts_of(body, Parts(-1, -1, -1)) == counted(value)
    assert not parts_of(body, Parts(99, 99, 99)).exceeds(Parts(len(body), len(body), len(body)))
