"""Rule BH557: what combines models learns from rows that these were trained on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from training.review.findings import Place, Subject, rule
from training.review.lookups import spoken_words
from training.review.program import Program
from training.review.syntax import calls, identifiers, last_name, method, names_read, receiver, words

COMBINES = {"stacker", "stacking", "stack", "meta", "blender", "blend"}
APART = {"fold", "folds", "kfold", "oof", "holdout", "blend"}


@rule(
    "BH557",
    "stacked-on-its-own-rows",
    "error",
    title="What combines models learns from rows that these were trained on",
    why="On its own train rows each model is far too sure, the one that memorises most of all. A combination that learns from those scores trusts it most, which new rows do not bear out.",
    remedy="let it learn from predictions for rows that a model has not seen: out of folds (cross_val_predict), or a part kept for it",
    bad="""
        import numpy as np
        from sklearn.linear_model import LogisticRegression

        def combine(models, X_train, y_train, X_test):
            for model in models:
                model.fit(X_train, y_train)
            first = np.stack([m.predict_proba(X_train)[:, 1] for m in models], axis=1)
            stacker = LogisticRegression().fit(first, y_train)
            return stacker.predict(np.stack([m.predict_proba(X_test)[:, 1] for m in models], axis=1))
        """,
    good="""
        import numpy as np
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_predict

        def combine(models, X_train, y_train, X_test):
            first = np.stack([cross_val_predict(m, X_train, y_train, method="predict_proba")[:, 1] for m in models], axis=1)
            stacker = LogisticRegression().fit(first, y_train)
            for model in models:
                model.fit(X_train, y_train)
            return stacker.predict(np.stack([m.predict_proba(X_test)[:, 1] for m in models], axis=1))
        """,
)
def stacked_on_its_own_rows(subject: Subject) -> Iterator[Place]:
    """A learner that is named after stacking is fitted with the labels of train, in a file without folds or a part of its own for it."""
    program = subject.program
    if APART & spoken_words(program) or {"cross_val_predict", "StackingClassifier", "StackingRegressor"} & program.called_names:
        return
    for call in program.methods_of("fit"):
        if len(call.args) < 2 or not _is_combining(program, call):
            continue
        labels = words(last_name(call.args[1]))
        trained = [c for c in program.all_calls if c is not call and _trains_on(c, last_name(call.args[1]))]
        if {"train", "tr"} & labels and not {"val", "valid", "held", "dev", "test", "meta"} & labels and (trained or _is_scored(program, call.args[0])):
            yield call, f"{ast.unparse(call.args[0])} are scores of rows that the models were trained on"


def _is_combining(program: Program, call: ast.Call) -> bool:
    """Whether a fit is one of what combines models: by its own name, or by the name that what it gives is kept in."""
    statement = program.statement(call)
    kept = {w for t in getattr(statement, "targets", ()) for n in identifiers(t) for w in words(n)}
    return bool(COMBINES & (words(last_name(receiver(call))) | kept))


def _trains_on(call: ast.Call, labels: str) -> bool:
    return method(call) == "fit" and len(call.args) > 1 and last_name(call.args[1]) == labels


def _is_scored(program: Program, rows: ast.expr) -> bool:
    """Whether rows are what models give for train rows: a call that names these."""
    scope = program.scope(rows)
    values = [b.value for b in scope.bindings.get(rows.id, ())] if isinstance(rows, ast.Name) else [rows]
    for value in values:
        for call in calls(value):
            spoken = {w for a in call.args for n in names_read(a) for w in words(n)}
            if {"train", "tr", "xt"} & spoken and not {"val", "valid", "held", "test"} & spoken:
                return True
    return False
