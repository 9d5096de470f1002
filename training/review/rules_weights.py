"""Rules BH447, BH142, BH538 and BH539: a slow copy that is quick or grows, weights of classes in
the order of their frequencies, words with the codes of padding.
"""

from __future__ import annotations

HALF, NEAR = 0.5, 1e-6
