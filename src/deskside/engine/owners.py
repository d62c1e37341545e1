"""The state owners of one rank, the ledger over all of them, and how a sequence enters them."""

from collections.abc import Sequence
from dataclasses import dataclass

from deskside.core import SequenceId
from deskside.state.grammar import Grammars
from deskside.state.kv import KvState
from deskside.state.owner import Ledger
from deskside.state.pages import PageTable
from deskside.state.prefix_tree import PrefixTree
from deskside.state.prefixes import Prefixes
from deskside.state.rings import RingGroup, Rings
from deskside.state.snapshots import Snapshots
from deskside.state.tokens import TokenStore

__all__ = ["Owners"]


@dataclass(frozen=True, slots=True)
class Owners:
    """The state owners of a rank."""

    tokens: TokenStore
    pages: PageTable
    rings: Rings
    grammars: Grammars
    prefixes: Prefixes
    copies: Snapshots

    @staticmethod
    def allocate(
        state: KvState,
        pages: int,
        slots: int,
        groups: Sequence[RingGroup] = (),
        *,
        snapshots: int = 0,
        whole: bool = False,
    ) -> "Owners":
        """Make owners over an allocated cache and further groups of rings.

        Args:
            state: the cache; with snapshots it has staging for their borders.
            pages: of the cache.
            slots: of the rings.
            groups: further rings.
            snapshots: places for copies of a slot's rings; without one no prefix is reused.
            whole: whether generated rows have the bits that prompt rows of their tokens have.
        """
        groups = (*state.groups, *groups)
        tree = PrefixTree(snapshots)
        table = PageTable(pages, tree)
        prefixes = Prefixes(tree, table, whole=whole)
        copies = Snapshots(snapshots, groups)
        rings = Rings(slots, groups, prefixes, copies)
        return Owners(TokenStore(), table, rings, Grammars(), prefixes, copies)

    @property
    def free(self) -> tuple[int, int]:
        """Pages and ring slots that no sequence holds."""
        return self.pages.free, self.rings.free

    @property
    def kept(self) -> tuple[int, int]:
        """Free pages that can be found again, and snapshots."""
        return self.pages.cached, self.prefixes.snapshots

    def ledger(self) -> Ledger:
        """Return the ledger over all of them."""
        return Ledger([self.tokens, self.pages, self.rings, self.grammars, self.prefixes])

    def admit(self, sequence: SequenceId, prompt: Sequence[int], reused: int = 0) -> None:
        """Let a sequence enter, the first `reused` tokens of its prompt computed before.

        Raises:
            CapacityError: those need a ring slot, and every slot is taken.
        """
        self.tokens.admit(sequence, prompt, reused)
        place = self.prefixes.admit(sequence, prompt, reused)
        if place is not None:
            self.rings.resume(sequence, place)

    def emit(self, sequence: SequenceId, tokens: Sequence[int]) -> None:
        """Take in the tokens behind a committed span, and share what it made whole."""
        store = self.tokens
        store.emit(sequence, tokens)
        self.prefixes.settle(sequence, store.known(sequence), store.frontier(sequence))
