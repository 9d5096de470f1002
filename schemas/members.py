"""Members of an ensemble: what each of them is declared to be.

This is the only place that turns a declaration of several networks into declarations of one.
"""

from __future__ import annotations

import hashlib

from schemas.config import AutoModel, Declaration
from schemas.ensemble_config import member_folds
from schemas.recipes import candidate_declaration, candidate_for_rows

MAX_SEED = 2**31


def has_members(declaration: Declaration) -> bool:
    """Return True if the declaration trains several networks."""
    return declaration.ensemble is not None or isinstance(declaration.model, AutoModel)


def members_of(declaration: Declaration) -> tuple[Declaration, ...]:
    """Return the declaration of each member, in the order in which they are trained."""
    model = declaration.model
    if isinstance(model, AutoModel):
        bare = [candidate_declaration(declaration, candidate) for candidate in model.candidates]
    else:
        count = 1 if declaration.ensemble is None else declaration.ensemble.members
        bare = [declaration.model_copy(update={"ensemble": None})] * count
    return tuple(
        one.model_copy(
            update={
                "train": one.train.model_copy(
                    update={"seed": member_seed(declaration.train.seed, number)}
                ),
                # the temperature divides the scores of the mean prediction, not a member's
                "evaluate": one.evaluate.model_copy(
                    update={"calibrate": "none", "intervals": None}
                ),
            }
        )
        for number, one in enumerate(bare, start=1)
    )


def member_for_rows(declaration: Declaration, number: int, rows: int) -> Declaration:
    """Return the declaration of a member, counted from 1, for its number of train rows."""
    member, model = members_of(declaration)[number - 1], declaration.model
    return (
        candidate_for_rows(member, rows, model.effort) if isinstance(model, AutoModel) else member
    )


def first_network_number(declaration: Declaration) -> int:
    """Return the number of the first member that is a network with hidden layers, else 1.

    It is the member that is checked before training, and that the checklist is about.
    """
    kinds = [member.model.kind for member in members_of(declaration)]
    simple = ("boosting", "linear")
    return next((number for number, kind in enumerate(kinds, start=1) if kind not in simple), 1)


def last_without_limit(declaration: Declaration) -> int:
    """Return the number of the last member that is trained whatever time the others took.

    Those up to the first network and the first boosting are: a blend of both is better than either.
    """
    kinds = [member.model.kind for member in members_of(declaration)]
    trees = kinds.index("boosting") + 1 if "boosting" in kinds else 1
    return max(first_network_number(declaration), trees)


def folded(declaration: Declaration) -> Declaration | None:
    """Return the declaration with the section `cv` that divides its members; None if none does."""
    config = declaration.ensemble
    if config is None or config.over == "seeds":
        return None
    cv = member_folds(config, declaration.cv, declaration.split.kind, declaration.grouped)
    return declaration.model_copy(update={"cv": cv})


def member_seed(seed: int, number: int) -> int:
    """Return the seed of a member, counted from 1; the first one has the run's.

    Others have a hash of both, so that neighbouring seeds of runs share no member.
    """
    if number == 1:
        return seed
    digest = hashlib.sha256(f"member:{seed}:{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % MAX_SEED
