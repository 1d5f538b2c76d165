"""The pool of pages that keys and values lie in: which are free, who holds which, what they say."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from hashlib import blake2b

NOBODYS = 0
"""The page that is given to nobody: what has no place of its own is written there."""

START = b""
"""The digest before the first page."""


def chained(digest: bytes, tokens: Sequence[int]) -> bytes:
    """What stands for a page's tokens and all before them, `digest` standing for the latter."""
    return blake2b(digest + array("q", tokens).tobytes(), digest_size=16).digest()


class PagePool:
    """Pages 1 to `pages`, each of `size` positions, held by none, one or several.

    A page whose content is known by a digest stays findable when its last holder lets go, until it
    is taken for something else: those let go of first are taken first, after pages without content.
    """

    def __init__(self, pages: int, size: int) -> None:
        self.pages = pages
        self.size = size
        self._holders = [0] * (pages + 1)
        self._blank = list(range(pages, 0, -1))
        self._reusable: dict[int, None] = {}  # in the order in which they were let go of
        self._found: dict[bytes, int] = {}
        self._content: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """How many pages can be taken."""
        return len(self._blank) + len(self._reusable)

    @property
    def reusable(self) -> int:
        """How many of the free pages have content that a prompt may find."""
        return len(self._reusable)

    def holders(self, page: int) -> int:
        """How many hold the page."""
        return self._holders[page]

    def take(self) -> int:
        """A page that nobody held, held once now; there must be a free one."""
        if self._blank:
            page = self._blank.pop()
        else:
            page = next(iter(self._reusable))
            del self._reusable[page]
            del self._found[self._content.pop(page)]
        self._holders[page] = 1
        return page

    def share(self, page: int) -> int:
        """The page, held once more."""
        self._reusable.pop(page, None)
        self._holders[page] += 1
        return page

    def release(self, pages: Iterable[int]) -> None:
        """Each of the pages is held once less."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                if page in self._content:
                    self._reusable[page] = None
                else:
                    self._blank.append(page)

    def remember(self, page: int, digest: bytes) -> None:
        """The page is found by the digest from now on, unless another one is."""
        if digest not in self._found and page not in self._content:
            self._found[digest] = page
            self._content[page] = digest

    def find(self, digest: bytes) -> int | None:
        """The page with this content; `share` it before anything else is taken."""
        return self._found.get(digest)

    def is_free(self, page: int) -> bool:
        """Whether nobody holds the page."""
        return self._holders[page] == 0

    def forget(self) -> None:
        """No content is found any more: keys and values are of other weights now."""
        self._blank += self._reusable
        self._reusable.clear()
        self._found.clear()
        self._content.clear()

    def forget_free(self, pages: Iterable[int]) -> list[int]:
        """Those of the pages that nobody holds, whose content is no longer found."""
        free = [page for page in dict.fromkeys(pages) if self.is_free(page)]
        for page in free:
            if page in self._reusable:
                del self._reusable[page]
                del self._found[self._content.pop(page)]
                self._blank.append(page)
        return free

    def check(self, held: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the books balance, given the pages of every holder."""
        counts = [0] * (self.pages + 1)
        for pages in held:
            for page in pages:
                counts[page] += 1
        assert counts == self._holders, f"held {counts}, in the books {self._holders}"
        assert not counts[NOBODYS], "the page of nobody is held"
        free = [*self._blank, *self._reusable]
        assert len(set(free)) == len(free), f"a page is free twice: {free}"
        assert {page for page in range(1, self.pages + 1) if not counts[page]} == set(free)
        assert {page: digest for digest, page in self._found.items()} == self._content
        assert set(self._reusable) <= set(self._content)
        assert not set(self._blank) & set(self._content)
