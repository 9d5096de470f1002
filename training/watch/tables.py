"""Tables with known train and held-out rows, traced from the batches back to variables."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from training.review.syntax import words
from training.watch.divided import QUESTIONS, Divided, Part, lines_of
from training.watch.events import Listener
from training.watch.loaders import Loaders
from training.watch.origins import Origins, places_of, same
from training.watch.record import Watch
from training.watch.rows import History, Rows
from training.watch.scopes import FEWEST, LABELS, Column, Scopes, Space, columns_of, row_keys
from training.watch.sets import source

LABELLED = 64  # least number of rows with labels
KNOWN = 0.9  # least share of them in the table
OVERLAP = 0.02  # most held-out rows that are train rows
APART = 0.3  # largest share of equal positions, and largest correlation


class Tables(Listener):
    """Listener that combines the scopes with the batches at the end."""

    def __init__(self, watch: Watch, scopes: Scopes, rows: Rows, loaders: Loaders) -> None:
        self.watch, self.scopes, self.rows, self.loaders = watch, scopes, rows, loaders

    def ended(self) -> None:
        """Check each table with train and held-out rows, and the rows paired by loaders."""
        self.origins = Origins(self.scopes)
        for history in (h for h in self.rows.all if h.steps):
            for space, parts in self._sides(history).items():
                self._look(history, space, parts)
        for used in (u for u in self.loaders.used.values() if u.steps):
            data = source(used.loader)
            if data is not None:
                self._rows_apart(self.scopes.held_by(data[0]))

    def _look(self, history: History, space: Space, parts: list[Part]) -> None:
        train = np.unique(np.concatenate([part.places[part.train] for part in parts]))
        held = np.unique(np.concatenate([part.places[~part.train] for part in parts]))
        both = np.intersect1d(train, held)
        columns = dict(columns_of(space))
        if min(len(train), len(held)) < FEWEST or len(both) > OVERLAP * len(held) or not columns:
            return
        table = Divided(
            columns,
            np.setdiff1d(train, both),
            np.setdiff1d(held, both),
            self._label(history, space, columns),
            [c.values for c in space.columns.values() if c.values is not None],
            lines_of(columns, parts),
        )
        place = max(parts, key=lambda part: part.train.sum()).seen
        told = {rule for rule, _ in self.watch.found}  # `rows` reports scales too
        for rule, question in QUESTIONS.items():
            message = next(question(table), None) if rule not in told else None
            if message is not None:
                self.watch.tell(rule, message, place)

    def _sides(self, history: History) -> dict[Space, list[Part]]:
        """Return the arrays that contain the network's train and held-out rows, by table."""
        trained = keys_of([*history.trained.rows.values()])
        held_out = keys_of([row for p in history.phases for row in p.batches.rows.values()])
        held_out = np.setdiff1d(held_out, trained)
        parts: dict[Space, list[Part]] = {}
        for column in (c for c in self.scopes.columns.values() if c.unlike):
            train = np.isin(column.rows, trained)
            given = np.flatnonzero(train | np.isin(column.rows, held_out))
            origin = self.origins.of(column) if len(given) >= FEWEST else None
            if origin is not None:
                values = column.values[given] if column.values is not None else None
                parts.setdefault(origin.space, []).append(
                    Part(values, origin.places[given], train[given], origin.place)
                )
        return parts

    def _label(self, history: History, space: Space, columns: dict[str, np.ndarray]) -> str | None:
        """Return the column that contains the labels of the losses. If rows were changed, find it
        by name.
        """
        keys = keys_of([row for batch in history.inputs for row in batch])
        if len(keys) >= LABELLED:
            y = np.concatenate([t.numpy() for t in history.labels])
            for column in (c for c in self.scopes.columns.values() if c.unlike):
                places = places_of(keys, column, least=KNOWN)
                origin = self.origins.of(column) if places is not None else None
                if origin is None or origin.space is not space:
                    continue
                where = origin.places[places]
                for name, values in columns.items():
                    numbers = values.dtype.kind in "iufb" and values.std() > 0
                    if numbers and same(values[where].astype(np.float64), y):
                        return name
        return next((name for name in columns if LABELS & words(name)), None)

    def _rows_apart(self, held: list[Column]) -> None:
        """Report a data set whose rows and labels come from one table, at different positions."""
        seen = [(c, self.origins.of(c)) for c in held if c.unlike and c.width > 1]
        for labels in (c for c in held if c.width == 1 and c.telling):
            verdicts = [
                self._stand_apart(origin.space, origin.places, labels)
                for column, origin in seen
                if origin is not None and len(column.rows) == len(labels.rows)
            ]
            if verdicts and all(verdicts):
                place = next(origin.place for _, origin in seen if origin is not None)
                told = "labels stand in another order than the rows that they are trained on with"
                self.watch.tell("BH537", told, place)

    def _stand_apart(self, space: Space, places: np.ndarray, labels: Column) -> bool:
        if any(
            c.width == 1 and (c.rows[places] == labels.rows).all() for c in space.columns.values()
        ):
            return False
        found = [*self.origins.by_rows(labels, space), *self.origins.by_choice(labels, space)]
        found += [np.arange(space.length)] if labels.key in space.columns else []
        return bool(found) and all(
            (p == places).mean() < APART and abs(np.corrcoef(p, places)[0, 1]) < APART
            for p in found
        )


def keys_of(rows: list[Tensor]) -> np.ndarray:
    """Return one hash per row [D], as `row_keys` does. The result is empty if shapes differ."""
    if not rows or len({row.shape for row in rows}) != 1:
        return np.empty(0, dtype=np.uint64)
    return row_keys(np.stack([row.float().numpy() for row in rows]) + np.float32(0))
