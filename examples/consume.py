"""Use a registered model without Bulkhead: python examples/consume.py clinic-visits
rows.parquet scores.parquet

Needs mlflow, torch, numpy, pandas and pyarrow. MLFLOW_TRACKING_URI is the registry: the address of
a server, or sqlite:////path/to/.bulkhead/mlflow.db.
"""

import sys

import mlflow
import pandas as pd

name, source, target = sys.argv[1:]
# resolve once: the alias may move meanwhile
version = mlflow.MlflowClient().get_model_version_by_alias(name, "champion").version
model = mlflow.pyfunc.load_model(f"models:/{name}/{version}")

rows = pd.read_parquet(source)  # raw columns in any order; nothing to scale, encode or fill
predictions = model.predict(rows)  # raises, with column and row, on what training never saw

rows.join(predictions).assign(model_version=version).to_parquet(target)
print(f"{len(rows):,} rows scored by version {version} of {name} → {target}")
