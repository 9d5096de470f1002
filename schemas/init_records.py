"""Record of the weights that a run starts from (`model.init`), and of what they were trained on."""

from __future__ import annotations

from pydantic import Field

from schemas.init_config import SeenRows
from schemas.references import FileRef, Record, SplitTables, TableRef


class InitInputs(Record):
    """Inputs and classes that weights were trained for, in the network's order.

    `categorical`, `bags`: values of each column. `tokens`: the vocabulary of a language model.
    `molecules`: tokens of each column of SMILES that a transformer reads; the record is written
    without them where there are none. `classes`: of the label, or of each of several.
    """

    numeric: tuple[str, ...] = ()
    categorical: dict[str, tuple[str, ...]] = {}
    tensor: tuple[str, ...] = ()
    bags: dict[str, tuple[str, ...]] = {}
    molecules: dict[str, tuple[str, ...]] = Field({}, exclude_if=lambda found: not found)
    tokens: tuple[str, ...] | None = None
    classes: tuple[tuple[str, ...], ...] = ()


class Origin(Record):
    """A Bulkhead run that trained the weights, or weights that these began from.

    `source_sha256`, `train_sha256`: digests of its source and of its train rows. `fitted`: tables
    of the rows that weights were fitted on, `chosen`: of those that chose among them; empty where
    the files of the run are not on this machine. `hashes`: of the ids of both together, of a
    registered version. `val_sha256`: digest of its validation rows. `id`, `group`, `features`,
    `texts`, `smiles`: columns of its table; `id` is null of a version without them. `scaffold`: of
    `smiles`, whose scaffolds its split keeps whole.
    """

    run_id: str
    name: str
    version: str | None = None
    source_sha256: str
    train_sha256: str
    val_sha256: str
    fitted: tuple[TableRef, ...] = ()
    chosen: tuple[TableRef, ...] = ()
    hashes: FileRef | None = None
    id: tuple[str, ...] | None = None
    group: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    smiles: tuple[str, ...] = Field((), exclude_if=lambda found: not found)
    scaffold: str | None = Field(None, exclude_if=lambda found: found is None)

    @property
    def words(self) -> str:
        """Name of the version, or of the run."""
        return f"version {self.version} of {self.name}" if self.version else f"run {self.run_id}"


class SeenReport(Record):
    """Held-out rows that the weights were trained on.

    `by`: how rows were recognised, of each origin. `found`: their number by split, and `first`
    some of their ids.
    """

    asked: SeenRows
    by: tuple[str, ...] = ()
    found: dict[str, int] = {}
    first: dict[str, tuple[str, ...]] = {}


class InitialWeights(Record):
    """Weights that a run starts from, resolved once.

    `given`: as declared; `resolved`: with the number of a version. `file`: a state dict of torch,
    by the names of the source. `sha256`: over names, types, shapes and bytes of its tensors.
    `inputs`: null where nothing is known, as of a file. `origins`: the run that trained them first,
    then those that it began from; empty of a file. `is_whole`: false where an origin began from
    weights of which nothing is known.
    """

    given: str
    resolved: str
    file: FileRef
    sha256: str
    inputs: InitInputs | None = None
    origins: tuple[Origin, ...] = ()
    is_whole: bool = False
    seen: SeenReport | None = Field(None, exclude_if=lambda found: found is None)


class HeldOut(Record):
    """Validation and test rows of another run, as `fitted` of its `origin`.

    `given`: as declared; `resolved`: with the number of a version.
    """

    given: str
    resolved: str
    origin: Origin


class SeenSplit(Record):
    """Splits after rows were looked for that the weights were trained on, or another run tests."""

    split: SplitTables
    report: SeenReport
