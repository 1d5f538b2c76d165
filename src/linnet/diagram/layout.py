"""Where everything stands: rows from the top down, frames laid out from within.

The main line of a frame, its spine, runs straight down at x = 0; what else there is stands to its
right, what passes rows by runs in lanes of its own. So no box overlaps another, and no line runs
through a box.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from linnet.diagram.graph import Edge, Graph, Group, Node

LABEL, SUB, NOTE = 13.0, 11.0, 10.5  # font sizes: names, types below them, shapes on arrows
GAP, LANE, PAD, HEAD = 18.0, 5.0, 14.0, 26.0
STUB, TURN, ARRIVE = 8.0, 26.0, 14.0  # below a row: straight, where lines bend, above the next
CIRCLE = 13.0

Command = tuple[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Box:
    """A node's place: its centre, its width and height."""

    node: Node
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Frame:
    """A group's place: its top left corner."""

    group: Group
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Route:
    """A line: M, L and C commands as in SVG, and which ends have heads."""

    commands: tuple[Command, ...]
    start: bool
    end: bool


@dataclass(frozen=True, slots=True)
class Note:
    """The text beside an arrow: its left end, its baseline."""

    text: str
    x: float
    y: float


@dataclass(slots=True)
class Picture:
    """All places, from (0, 0) to (width, height)."""

    width: float = 0.0
    height: float = 0.0
    boxes: list[Box] = field(default_factory=list[Box])
    frames: list[Frame] = field(default_factory=list[Frame])
    routes: list[Route] = field(default_factory=list[Route])
    notes: list[Note] = field(default_factory=list[Note])


def arranged(graph: Graph) -> Picture:
    """A place for everything in a graph."""
    level = _levels(graph)
    picture = Picture(level.left + level.right, level.height)
    level.draw(picture, level.left, 0.0, graph)
    return picture


def is_symbol(node: Node) -> bool:
    """Whether a node is drawn as a small circle."""
    return node.kind == "op" and len(node.label) <= 2 and not node.sublabel


def lines_of(node: Node) -> list[str]:
    return node.sublabel.split("\n") if node.sublabel else []


def text_width(text: str, size: float, mono: bool = False) -> float:
    """A width that common system fonts stay within."""
    if mono:
        return 0.61 * size * len(text)
    narrow, wide = sum(c in "iljtfrI.,:;|!'()[] " for c in text), sum(c in "mwMW@%" for c in text)
    capital = sum(c.isupper() and c not in "IMW" for c in text)
    plain = len(text) - narrow - wide - capital
    return size * (0.42 * narrow + 0.98 * wide + 0.76 * capital + 0.65 * plain)


def size_of(node: Node) -> tuple[float, float]:
    if is_symbol(node):
        return 2 * CIRCLE, 2 * CIRCLE
    lines = lines_of(node)
    widest = max([text_width(node.label, LABEL), *(text_width(s, SUB, True) for s in lines)])
    small = node.kind in ("op", "param", "state")
    return max(widest + 24, 40.0 if small else 110.0), (26.0 if small else 32.0) + 15 * len(lines)


# ---------------------------------------------------------------- one frame


@dataclass(slots=True, eq=False)
class _Item:
    """What stands in a row: a node, a frame, or a port where lines cross the frame's border."""

    id: str
    left: float
    right: float
    height: float
    node: Node | None = None
    inner: _Level | None = None
    group: Group | None = None
    row: int = 0
    x: float = 0.0
    top: float = 0.0


@dataclass(slots=True, eq=False)
class _Link:
    """A line between two items; the ports are of frames, named by the node that it comes from."""

    a: _Item
    b: _Item
    source: str
    labels: list[str]
    both: bool

    def start(self) -> float:
        """Where it leaves, from the item's x."""
        return self.a.inner.outs[self.source].x if self.a.inner else 0.0

    def end(self) -> float:
        return self.b.inner.ins[self.source].x if self.b.inner else 0.0


@dataclass(slots=True, eq=False)
class _Column:
    """What stands above each other: items, and lanes in the rows between."""

    rows: dict[int, tuple[float, float]]
    items: list[_Item]
    index: int
    side: int = 0
    wanted: float = 0.0  # an x that keeps its lines straight
    beside: _Column | None = None  # whose lines these lanes carry on
    x: float = 0.0

    def is_free(self, rows: Iterable[int]) -> bool:
        """Whether it has lanes in all these rows."""
        taken = {item.row for item in self.items}
        return all(row in self.rows and row not in taken for row in rows)


@dataclass(slots=True, eq=False)
class _Level:
    """The inside of a frame, or the whole; after `arrange`, its items' places about the spine."""

    group: Group | None
    items: list[_Item] = field(default_factory=list[_Item])
    ins: dict[str, _Item] = field(default_factory=dict[str, _Item])
    outs: dict[str, _Item] = field(default_factory=dict[str, _Item])
    links: dict[tuple[str, str, str], _Link] = field(
        default_factory=dict[tuple[str, str, str], _Link]
    )
    spine: list[_Item] = field(default_factory=list[_Item])
    lanes: dict[tuple[str, str], _Column] = field(default_factory=dict[tuple[str, str], _Column])
    tops: list[float] = field(default_factory=list[float])
    bottoms: list[float] = field(default_factory=list[float])
    stubs: list[float] = field(default_factory=list[float])
    left: float = 0.0
    right: float = 0.0
    height: float = 0.0

    def link(self, a: _Item, b: _Item, source: str, label: str, both: bool) -> None:
        key = (a.id, b.id, source)
        if key not in self.links:
            self.links[key] = _Link(a, b, source, [], both)
        if label and label not in self.links[key].labels:
            self.links[key].labels.append(label)

    # ------------------------------------------------------------ rows and the spine

    def arrange(self) -> None:
        """Rows, columns and places of all items, whose own insides are arranged."""
        self._rows()
        for item in self.items:
            if item.inner is not None:
                item.left, item.right = item.inner.left, item.inner.right
        self._extents()
        self._columns()
        self._heights()

    def _into(self, item: _Item) -> list[_Link]:
        return [link for link in self.links.values() if link.b is item]

    def _out_of(self, item: _Item) -> list[_Link]:
        return [link for link in self.links.values() if link.a is item]

    def _rows(self) -> None:
        """Each item below those it takes from, the last ones in the last row."""
        ports = [*self.ins.values()]
        middle = [i for i in self.items if i not in ports and i not in self.outs.values()]
        last = [*self.outs.values()]
        if not last:
            last = [i for i in middle if i.node is not None and i.node.kind == "output"]
            middle = [i for i in middle if i not in last]
        for item in middle:
            item.row = max(
                [one.a.row + 1 for one in self._into(item)], default=1 if self.group else 0
            )
        end = max([i.row + 1 for i in self.items if i not in last], default=0)
        for item in last:
            item.row = end
        self.spine = self._main_line(last or middle[-1:])
        for item in reversed(middle):
            below = [link.b.row for link in self._out_of(item)]
            fed = any(link.a in self.spine for link in self._into(item))
            if below and item not in self.spine and not fed:
                item.row = max(item.row, min(below) - 1)

    def _main_line(self, ends: list[_Item]) -> list[_Item]:
        """The line to the first end, from the first value of each call and the latest of others."""
        line = ends[:1]
        while line and (into := self._into(line[0])):
            item = line[0]
            plain = [
                one for one in into if not one.a.node or one.a.node.kind not in ("param", "state")
            ]
            choice = (plain or into)[0]
            if item.inner is not None:
                first = item.inner.spine[0]
                choice = next(
                    (one for one in into if item.inner.ins.get(one.source) is first), choice
                )
            elif item.node is None or item.node.kind in ("op", "output"):
                choice = max(plain or into, key=lambda one: one.a.row)
            line.insert(0, choice.a)
        return line

    def _extents(self) -> None:
        """Room for the shapes beside what leaves an item."""
        for item in self.items:
            for x, text in self._notes(item).items():
                item.right = max(item.right, x + 9 + text_width(text, NOTE, True))

    def _notes(self, item: _Item) -> dict[float, str]:
        """The texts below an item, by where they stand."""
        texts: dict[float, dict[str, None]] = {}
        for link in self._out_of(item):
            if link.labels:
                texts.setdefault(link.start(), {}).update(dict.fromkeys(link.labels))
        return {x: ", ".join(found) for x, found in texts.items()}

    # ------------------------------------------------------------ columns

    def _columns(self) -> None:
        """The x of every item and lane."""
        columns: list[_Column] = []
        home: dict[str, _Column] = {}
        for item in self.items:
            if item in self.spine or item.id in home:
                continue
            column = _Column({}, [], len(columns))
            columns.append(column)
            at: _Item | None = item
            while at is not None:
                column.items.append(at)
                column.rows[at.row] = (at.left, at.right)
                home[at.id] = column
                after = [one.b for one in self._out_of(at) if self._into(one.b)[0] is one]
                after = [b for b in after if b not in self.spine and b.id not in home]
                before, at = at, after[0] if after else None
                if at is not None:
                    for row in range(before.row + 1, at.row):
                        column.rows[row] = (LANE, LANE)
                        self.lanes[
                            before.id,
                            next(one.source for one in self._out_of(before) if one.b is at),
                        ] = column
        self._passing(columns, home)
        self._sides(columns, home)
        self._place(columns)
        self.left = max([0.0, *(i.left - i.x for i in self.items), *(LANE - c.x for c in columns)])
        self.right = max(
            [0.0, *(i.right + i.x for i in self.items), *(LANE + c.x for c in columns)]
        )

    def _passing(self, columns: list[_Column], home: dict[str, _Column]) -> None:
        """Lanes for the lines that pass rows by: one for all that come from one place."""
        farthest: dict[tuple[str, str], _Link] = {}
        for link in self.links.values():
            key = (link.a.id, link.source)
            along = link.a in self.spine and self._next(link.a) is link.b and link.start() == 0
            if link.b.row - link.a.row > 1 and not along:
                if key not in farthest or link.b.row > farthest[key].b.row:
                    farthest[key] = link
        for key, link in farthest.items():
            rows = range(link.a.row + 1, link.b.row)
            own = home.get(link.a.id)
            if own is not None and own.items[-1] is link.a and key not in self.lanes:
                own.rows.update(dict.fromkeys(rows, (LANE, LANE)))
                self.lanes[key] = own
            elif key not in self.lanes or not self.lanes[key].is_free(rows):
                column = _Column(dict.fromkeys(rows, (LANE, LANE)), [], len(columns))
                column.beside = own
                if own is None:
                    column.side = -1 if link.start() <= 0 else 1
                columns.append(column)
                self.lanes[key] = column

    def _next(self, item: _Item) -> _Item | None:
        at = self.spine.index(item)
        return self.spine[at + 1] if at + 1 < len(self.spine) else None

    def _sides(self, columns: list[_Column], home: dict[str, _Column]) -> None:
        """Left or right: as a frame's port, as what a column is linked to, or where room is."""
        for column in columns:
            ends = [one.end() for i in column.items for one in self._out_of(i) if one.b.inner]
            ends += [one.start() for i in column.items for one in self._into(i) if one.a.inner]
            ports = [x for x in ends if x]
            if ports:
                column.wanted = sum(ports) / len(ports)
                column.side = 1 if column.wanted > 0 else -1
        for column in columns:
            if column.side:
                continue
            near = [column.beside.side] if column.beside is not None else []
            near += [
                home[other.id].side
                for i in column.items
                for one in (*self._into(i), *self._out_of(i))
                for other in (one.a, one.b)
                if other.id in home and home[other.id].side
            ]
            crowd = {
                side: sum(
                    c.side == side and not c.rows.keys().isdisjoint(column.rows) for c in columns
                )
                for side in (1, -1)
            }
            column.side = near[0] if near else 1 if crowd[1] <= crowd[-1] else -1

    def _place(self, columns: list[_Column]) -> None:
        """Outwards from the spine: what can stand near it first, then what passes fewer rows."""
        count = max((i.row for i in self.items), default=0) + 1
        for side in (1, -1):
            edge = [LANE] * count
            for item in self.spine:
                edge[item.row] = item.right if side > 0 else item.left
            mine: list[tuple[float, int, int, _Column]] = []
            for column in columns:
                if column.side == side:
                    nearest = max(side * column.wanted, _outside(edge, column, side))
                    mine.append((nearest, len(column.rows), column.index, column))
            for *_, column in sorted(mine, key=lambda one: one[:3]):
                column.x = side * max(_outside(edge, column, side), side * column.wanted)
                for row, (left, right) in column.rows.items():
                    edge[row] = abs(column.x) + (right if side > 0 else left)
                for item in column.items:
                    item.x = column.x

    # ------------------------------------------------------------ heights

    def _heights(self) -> None:
        """The y of every row, with room below it for shapes and for lines to bend."""
        count = max((i.row for i in self.items), default=0) + 1
        top = HEAD if self.group else 0.0
        bends = {
            row
            for link in self.links.values()
            for row, (x, after, side) in self._steps(link).items()
            if x != after and not side
        }
        for row in range(count):
            here = [i for i in self.items if i.row == row]
            height = max((i.height for i in here), default=0.0)
            noted = any(self._notes(i) for i in here)
            self.tops.append(top)
            self.bottoms.append(top + height)
            self.stubs.append(top + height + (NOTE + 8 if noted else STUB))
            for item in here:
                item.top = top + (height - item.height) / 2
            top = self.stubs[-1] + (TURN if row in bends else 4.0) + ARRIVE
        self.height = self.bottoms[-1] + (PAD if self.group else 0.0)
        if self.group:
            ports = [i.x for i in self.ins.values()]
            title = text_width(self.group.label, LABEL) + 2 * PAD
            self.left = max(self.left + PAD, title - min(ports, default=title / 2))
            self.right = max(self.right + PAD, title - self.left)
            for port in self.outs.values():
                port.top = self.height

    def _steps(self, link: _Link) -> dict[int, tuple[float, float, bool]]:
        """By the row that a line leaves: its x, its x in the next, whether it ends sideways."""
        xs = [link.a.x + link.start()]
        lane = self.lanes.get((link.a.id, link.source))
        xs += [lane.x if lane is not None else 0.0] * (link.b.row - link.a.row - 1)
        end = link.b.x + link.end() + self._arrival(link, xs[-1])
        sideways = self._sideways(link, xs[-1])
        xs.append(end)
        steps: dict[int, tuple[float, float, bool]] = {}
        for i in range(len(xs) - 1):
            steps[link.a.row + i] = (xs[i], xs[i + 1], sideways and i == len(xs) - 2)
        return steps

    def _sideways(self, link: _Link, x: float) -> bool:
        """Whether a line can enter a circle from the side."""
        b = link.b
        if b.node is None or not is_symbol(b.node) or abs(x - b.x) < CIRCLE + 12:
            return False
        low, high = sorted((x, b.x))
        others = [(i.x, i.left) for i in self.items if i.row == b.row and i is not b]
        others += [(c.x, 0.0) for c in self.lanes.values() if b.row in c.rows and c.x != x]
        return not any(low < at + half and at - half < high for at, half in others)

    def _arrival(self, link: _Link, x: float) -> float:
        """Where on top of a box a line ends: straight ones in the middle, others beside it."""
        b = link.b
        if b.node is None or is_symbol(b.node):
            return 0.0
        others: list[tuple[float, int, _Link]] = []
        for n, other in enumerate(self._into(b)):
            lane = self.lanes.get((other.a.id, other.source))
            passes = b.row - other.a.row > 1
            at = (lane.x if lane else 0.0) if passes else other.a.x + other.start()
            others.append((at - b.x, n, other))
        if len(others) == 1:
            return 0.0
        side = [o for o in sorted(others, key=lambda o: (abs(o[0]), o[1])) if o[0] * (x - b.x) > 0]
        rank = next((k for k, o in enumerate(side) if o[2] is link), None)
        if rank is None:
            return 0.0
        step = min(14.0, (b.left - 10) / (len(side) + 0.5))
        return (rank + 1) * step * (1 if x > b.x else -1)

    # ------------------------------------------------------------ drawing

    def draw(self, into: Picture, dx: float, dy: float, graph: Graph) -> None:
        """Adds everything inside, the spine at dx and the top at dy."""
        for item in self.items:
            x, y = dx + item.x, dy + item.top
            if item.inner is not None and item.group is not None:
                inner = item.inner
                width = inner.left + inner.right
                into.frames.append(Frame(item.group, x - inner.left, y, width, inner.height))
                inner.draw(into, x, y, graph)
            elif item.node is not None:
                width, height = size_of(item.node)
                into.boxes.append(Box(item.node, x, y + height / 2, width, height))
            for at, text in self._notes(item).items():
                into.notes.append(Note(text, x + at + 6, dy + self.bottoms[item.row] + NOTE + 3))
        for link in self.links.values():
            into.routes.append(self._route(link, dx, dy))

    def _route(self, link: _Link, dx: float, dy: float) -> Route:
        a, b = link.a, link.b
        start = dy + a.top + (a.height if a.id not in self.ins_ids() else -HEAD)
        commands: list[Command] = [("M", (dx + a.x + link.start(), start))]
        for row, (x, after, sideways) in self._steps(link).items():
            x, after = dx + x, dx + after
            stub, turned = dy + self.stubs[row], dy + self.stubs[row] + TURN
            if sideways:
                middle, way = dy + b.top + b.height / 2, 1 if after > x else -1
                commands.append(("L", (x, middle - 10)))
                commands.append(("C", (x, middle - 4, x + way * 4, middle, x + way * 10, middle)))
                commands.append(("L", (after - way * (CIRCLE + 1), middle)))
                return Route(tuple(commands), link.both, True)
            if x != after:
                half = stub + TURN / 2
                commands.append(("L", (x, stub)))
                commands.append(("C", (x, half, after, half, after, turned)))
        end = dy + b.top - (1.0 if b.node is not None else 0.0)
        commands.append(("L", (dx + b.x + self._end_x(link), end)))
        return Route(tuple(commands), link.both, b.node is not None)

    def ins_ids(self) -> set[str]:
        return {i.id for i in self.ins.values()}

    def _end_x(self, link: _Link) -> float:
        *_, (_, after, _) = self._steps(link).values()
        return after - link.b.x


def _outside(edge: list[float], column: _Column, side: int) -> float:
    """How far out a column stands beside what its rows hold up to the edge."""
    inner = 0 if side > 0 else 1
    return max(edge[row] + GAP + extents[inner] for row, extents in column.rows.items())


# ---------------------------------------------------------------- all frames


def _levels(graph: Graph) -> _Level:
    """The whole, arranged from the innermost frames out."""
    levels: dict[str | None, _Level] = {None: _Level(None)}
    levels |= {group.id: _Level(group) for group in graph.groups}
    parents = {group.id: group.parent for group in graph.groups}
    items: dict[str, _Item] = {}
    homes: dict[str, list[str]] = {}  # the frames around a node, the innermost first
    for node in graph.nodes:
        width, height = size_of(node)
        item = items[node.id] = _Item(node.id, width / 2, width / 2, height, node)
        homes[node.id], at = [], node.group
        while at is not None:
            homes[node.id].append(at)
            at = parents[at]
        for at in homes[node.id]:
            levels[at].items.append(item)
            if at in items:
                break
            level = levels[at]
            item = items[at] = _Item(at, 0.0, 0.0, 0.0, None, level, level.group)
        else:
            levels[None].items.append(item)
    for edge in graph.edges:
        _link(levels, items, homes[edge.src], homes[edge.dst], edge)
    for level in [*(levels[group.id] for group in reversed(graph.groups)), levels[None]]:
        level.items = [*level.ins.values(), *level.items, *level.outs.values()]
        level.arrange()
        if level.group is not None:
            items[level.group.id].height = level.height
    return levels[None]


def _link(
    levels: dict[str | None, _Level],
    items: dict[str, _Item],
    up: list[str],
    down: list[str],
    edge: Edge,
) -> None:
    """An edge, as a line in each frame that it crosses, from border to border."""
    a, b = items[edge.src], items[edge.dst]
    for group in (g for g in up if g not in down):
        port = levels[group].outs.setdefault(edge.src, _Item(f"out {edge.src}", 4, 4, 0.0))
        port.right += 9 + text_width(edge.label, NOTE, True)
        levels[group].link(a, port, edge.src, "", False)
        a = items[group]
    for group in (g for g in down if g not in up):
        port = levels[group].ins.setdefault(edge.src, _Item(f"in {edge.src}", 4, 4, 0.0))
        levels[group].link(port, b, edge.src, "", False)
        b = items[group]
    shared = next((g for g in up if g in down), None)
    levels[shared].link(a, b, edge.src, edge.label, edge.both)
