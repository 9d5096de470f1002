"""The torchrun program and its modules. Importing it loads neither Prefect nor MLflow."""

import os

# Read when torch is loaded. Waiting threads that spin make every operation up to 50 times slower
# when another process wants the same cores; sleeping costs little otherwise.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
