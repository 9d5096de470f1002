"""Text in, losses and completions out: what training, evaluation and the registered language model share.

Shipped with the model as it is (see training/serving.py), so it imports nothing of the project that holds it.
"""

from __future__ import annotations
