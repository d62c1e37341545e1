"""The state owners of one rank, and the ledger over all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from deskside.state.grammar import Grammars
from deskside.state.kv import KvState
from deskside.state.owner import Ledger
from deskside.state.pages import PageTable
from deskside.state.rings import RingGroup, Rings
from deskside.state.tokens import TokenStore

__all__ = ["Owners"]


@dataclass(frozen=True, slots=True)
class Owners:
    """The state owners of a rank."""

    tokens: TokenStore
    pages: PageTable
    rings: Rings
    grammars: Grammars

    @staticmethod
    def allocate(
        state: KvState, pages: int, slots: int, groups: Sequence[RingGroup] = ()
    ) -> "Owners":
        """Make owners over an allocated cache and further groups of rings."""
        rings = Rings(slots, (*state.groups, *groups))
        return Owners(TokenStore(), PageTable(pages), rings, Grammars())

    @property
    def free(self) -> tuple[int, int]:
        """Pages and ring slots that no sequence holds."""
        return self.pages.free, self.rings.free

    def ledger(self) -> Ledger:
        """Return the ledger over all of them."""
        return Ledger([self.tokens, self.pages, self.rings, self.grammars])
