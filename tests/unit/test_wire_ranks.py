"""What the leader tells its ranks comes out as it went in, and half of it is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deskside.wire.ranks import Admitted, Choice, Leave, Record, Rows, Word, Work, pack, unpack

NUMBERS = st.integers(-(2**63), 2**63 - 1)
LISTS = st.lists(NUMBERS, max_size=6).map(tuple)
ROWS = st.builds(Rows, NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans(), NUMBERS)
RECORDS: st.SearchStrategy[Record] = st.one_of(
    st.builds(
        Work,
        NUMBERS,
        LISTS,
        st.lists(st.builds(Admitted, NUMBERS, LISTS), max_size=3).map(tuple),
        st.lists(ROWS, max_size=3).map(tuple),
        NUMBERS,
    ),
    st.builds(Choice, st.lists(LISTS, max_size=4).map(tuple)),
    st.builds(Word, LISTS, st.lists(LISTS, max_size=4).map(tuple), st.booleans()),
    st.just(Leave()),
)


@given(RECORDS)
def test_a_record_comes_out_as_it_went_in(record: Record) -> None:
    assert unpack(pack(record)) == record


@given(RECORDS, st.data())
def test_a_record_that_ends_early_is_refused(record: Record, data: st.DataObject) -> None:
    whole = pack(record)
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError):
        unpack(whole[:kept])


@given(RECORDS, NUMBERS)
def test_a_record_with_more_behind_it_is_refused(record: Record, more: int) -> None:
    with pytest.raises(ValueError):
        unpack(pack(record) + more.to_bytes(8, "little", signed=True))


def test_a_record_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ValueError):
        unpack((99).to_bytes(8, "little"))
