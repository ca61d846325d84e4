"""The lines of the random-effects model: what may differ, between which circumstances, and by how much."""

from __future__ import annotations

Scope = tuple[str, ...]
Line = tuple[str, Scope, float]

#: (target, circumstances, standard deviation of the logarithm). ``efficiency.circumstances`` explains the words.
STRUCTURE: tuple[Line, ...] = ()
