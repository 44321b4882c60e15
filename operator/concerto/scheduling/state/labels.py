"""Node labels as columns, and which nodes a node selector accepts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from concerto.api.node import NodeView
from concerto.api.selectors import NodeSelector, NodeSelectorTerm, Requirement, integer
from concerto.scheduling.state.columns import NO_ROWS, Bools, Ints, Rows, widened
from concerto.scheduling.state.node_rows import NodeRows

MAX_LABELS = 256
"""Labels that have a column at a time; pods choose which labels they ask for."""
_MIN_VALUES_KEPT = 256


class LabelColumn:
    """One label over all rows, as codes of its distinct values.

    Attributes:
        codes: by row; -1 where a node lacks the label.
        code_of: by value. A value keeps its code when no node has it any more.
    """

    def __init__(self, width: int) -> None:
        self.codes: Ints = np.full(width, -1, dtype=np.int64)
        self.code_of: dict[str, int] = {}
        self._numbers: list[int | None] = []
        self._rows_by_code: tuple[Ints, Ints] | None = None

    def put(self, row: int, value: str | None) -> None:
        """The row's node has this value, or lacks the label."""
        self.codes[row] = -1 if value is None else self.code_of.setdefault(value, len(self.code_of))
        self._rows_by_code = None

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self.codes = widened(self.codes, width, -1)
        self._rows_by_code = None

    def rows_with(self, code: int) -> Ints:
        """The rows with that value, in order."""
        if self._rows_by_code is None:
            order: Ints = np.argsort(self.codes, kind="stable")
            self._rows_by_code = order, np.searchsorted(self.codes[order], np.arange(len(self.code_of) + 1))
        order, starts = self._rows_by_code
        return order[starts[code] : starts[code + 1]]

    def matching(self, requirement: Requirement, rows: Rows) -> Bools:
        """Which rows meet a requirement on this label."""
        # By distinct value; the last entry answers code -1, a label that is not there
        accepted: Bools = np.zeros(len(self.code_of) + 1, dtype=np.bool_)
        match requirement.operator:
            case "In" | "NotIn":
                accepted[[self.code_of[value] for value in requirement.values if value in self.code_of]] = True
                accepted ^= requirement.operator == "NotIn"
            case "Exists" | "DoesNotExist":
                accepted[:-1] = True
                accepted ^= requirement.operator == "DoesNotExist"
            case "Gt" | "Lt":
                accepted[:-1] = self._compared(requirement)
        answer: Bools = accepted[self.codes[rows]]
        return answer

    def _compared(self, requirement: Requirement) -> Bools:
        """By distinct value, whether it is a number greater or less than the requirement's."""
        if len(self._numbers) != len(self.code_of):
            self._numbers = [integer(value) for value in self.code_of]
        limit = integer(requirement.values[0]) if len(requirement.values) == 1 else None
        if limit is None:
            return np.zeros(len(self.code_of), dtype=np.bool_)
        greater = requirement.operator == "Gt"
        found = [n is not None and (n > limit if greater else n < limit) for n in self._numbers]
        return np.array(found, dtype=np.bool_)


class LabelIndex:
    """Columns of the labels that pods ask for, made when they are first asked for.

    Args:
        rows: names and rows.
        nodes: the Nodes by row; kept by the owner of the index.

    Attributes:
        version: grows with each change of a node's labels.
    """

    def __init__(self, rows: NodeRows, nodes: Mapping[int, NodeView]) -> None:
        self._rows = rows
        self._nodes = nodes
        self.version = 0
        self._width = 0
        self._columns: OrderedDict[str, LabelColumn] = OrderedDict()
        self._rows_with: dict[str, set[int]] = {}  # by label
        self._keys_of: dict[int, tuple[str, ...]] = {}
        self._nowhere = LabelColumn(0)  # stands for every label that no node has

    def grow(self, width: int) -> None:
        """Make room for rows up to that number."""
        self._width = width
        for column in self._columns.values():
            column.grow(width)
        self._nowhere = LabelColumn(width)

    def put(self, row: int, labels: Mapping[str, str]) -> None:
        """The row's node has these labels."""
        self.version += 1
        for key in self._keys_of.pop(row, ()):
            self._rows_with[key].discard(row)
            if not self._rows_with[key]:
                del self._rows_with[key]
        if labels:
            self._keys_of[row] = tuple(labels)
            for key in labels:
                self._rows_with.setdefault(key, set()).add(row)
        for key, column in self._columns.items():
            column.put(row, labels.get(key))

    def forget_values(self) -> None:
        """Drop columns with many values that no node has any more. They are made anew when they are asked for."""
        limit = 2 * len(self._nodes) + _MIN_VALUES_KEPT
        for key in [key for key, column in self._columns.items() if len(column.code_of) > limit]:
            del self._columns[key]

    def is_on_nodes(self, key: str) -> bool:
        """Whether any node has the label."""
        return key in self._rows_with

    def column(self, key: str) -> LabelColumn:
        """One label's column. What no node has needs none of its own, whatever pods ask for."""
        if not self.is_on_nodes(key):
            return self._nowhere
        column = self._columns.get(key)
        if column is not None:
            self._columns.move_to_end(key)
        else:
            if len(self._columns) >= MAX_LABELS:
                self._columns.popitem(last=False)
            column = self._columns[key] = LabelColumn(self._width)
            for row in sorted(self._rows_with[key]):
                column.put(row, self._nodes[row].labels[key])
        return column

    def selected(self, selector: NodeSelector, rows: Rows) -> Bools:
        """Which rows a pod's node selector and required affinity accept."""
        mask = self.matching(selector.labels, rows)
        if selector.terms is not None:
            any_term: Bools = np.zeros_like(mask)
            for term in selector.terms:
                any_term |= self.in_term(term, rows)
            mask &= any_term
        return mask

    def matching(self, requirements: Iterable[Requirement], rows: Rows) -> Bools:
        """Which rows' labels meet every requirement."""
        mask = self._every(rows)
        for requirement in requirements:
            mask &= self.column(requirement.key).matching(requirement, rows)
        return mask

    def rows_matching(self, requirements: Sequence[Requirement]) -> Ints:
        """The rows whose labels meet every requirement, in order; looks at few rows if a label is required."""
        required = next((r for r in requirements if r.operator == "In" and len(r.values) == 1), None)
        if required is None:
            return np.flatnonzero(self.matching(requirements, slice(0, self._rows.size)))
        column = self.column(required.key)
        code = column.code_of.get(required.values[0])
        rows = NO_ROWS if code is None else column.rows_with(code)
        for requirement in requirements:
            if requirement is not required and len(rows):
                rows = rows[self.column(requirement.key).matching(requirement, rows)]
        return rows

    def rows_in_term(self, term: NodeSelectorTerm) -> Ints:
        """The rows that one term of a node affinity accepts, in order."""
        if term.labels and not term.names:
            return self.rows_matching(term.labels)
        return np.flatnonzero(self.in_term(term, slice(0, self._rows.size)))

    def in_term(self, term: NodeSelectorTerm, rows: Rows) -> Bools:
        """Which rows one term of a node affinity accepts; an empty term accepts none."""
        if not term.labels and not term.names:
            return ~self._every(rows)
        mask = self.matching(term.labels, rows)
        for requirement in term.names:
            named: Bools = np.zeros(self._rows.size, dtype=np.bool_)
            for value in requirement.values:
                if (row := self._rows.row_of.get(value)) is not None:
                    named[row] = True
            mask &= named[rows] if requirement.operator == "In" else ~named[rows]
        return mask

    def _every(self, rows: Rows) -> Bools:
        return np.ones(self._rows.size, dtype=np.bool_)[rows]
