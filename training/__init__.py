"""The torchrun program and everything it needs. Importing it loads neither Prefect nor MLflow."""

import os

# Read when torch is loaded. Threads that spin while they wait make every operation up to 50 times
# slower as soon as
# another process wants the same cores; sleeping costs little where none does.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
