"""Ways to break a file: values of the wrong kind, of the wrong size, at the wrong place, and bytes."""

import json
import re
from copy import deepcopy
from math import isfinite
from random import Random
from typing import Any

from checks import CANARY

#: Texts that mean something to a shell, a template, a terminal, YAML, Markdown, HTML or a file system.
HOSTILE = (
    f"$(touch {CANARY})", f"`touch {CANARY}`", f"; touch {CANARY} #", f"\ntouch {CANARY}\n", f"' ; touch {CANARY} '",
    f'"; touch {CANARY}; "', f"a\r\ntouch {CANARY}", f"&& touch {CANARY}", f"| touch {CANARY}", "{{ 7*7 }}",
    "{% raw %}", "[x](javascript:alert(1))", "![x](javascript:alert(1))", "<script>alert(1)</script>", "</script>",
    "- a: b", "a: b", "a: &x [*x]", "!!python/object/apply:os.system ['true']", "---", "```\n# title", "| a | b |",
    "../../../../etc/passwd", "/dev/zero", "/etc/passwd", "~", "~root", "*", "-n", "--", "#", "", " ", "\t", "%s%n",
    "\x1b[2J", "\u202egpj.exe", "\u2028", "ü €", "'", '"', "\\", "$HOME", "${HF_TOKEN}", "a,b=c", "=", "NaN", "null",
    "true", "0x10", "1e5", "1_000", "\ufeff", "A" * 300, "é" * 5000, "9" * 5000,
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 127, 2**31, 2**31 - 1, 2**53 + 1, 2**63, 2**64, 10**20, 10**40, 10**400, -(10**20), 0.0, -0.0,
    0.5, 1e-9, 1e-308, 5e-324, 1e9, 1e17, 1e100, 1e308, -1e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip


def junk(random: Random, depth: int = 0) -> Any:
    """A value that nobody expects."""
    if depth < 2 and random.random() < 0.2:
        size = random.choice((0, 1, 2, 5))
        if random.random() < 0.5:
            return [junk(random, depth + 1) for _ in range(size)]
        return {random.choice(HOSTILE): junk(random, depth + 1) for _ in range(size)}
    pool: tuple[Any, ...] = random.choice((NUMBERS, NUMBERS, HOSTILE, (None, True, False)))
    return random.choice(pool)


def nearby(random: Random, value: Any) -> Any:
    """A value of the same kind, or nearly."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        if isinstance(value, float) and not isfinite(value):
            return -value
        return random.choice(
            (value + 1, value - 1, value * 2, -value, value * 1000, value // 3, str(value), value * 3 // 2)
        )
    if isinstance(value, str):
        return random.choice((value + "x", value[:-1], value.upper(), value + random.choice(HOSTILE), [value]))
    if isinstance(value, list):
        return random.choice((value[:-1], value * 2, value[::-1], [value], dict(enumerate(value))))
    return junk(random)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in nested lists and objects."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [path] if path else []
    for key, value in inner:
        found += places(value, (*path, key))
    return found


def mutated(random: Random, data: Any, times: int | None = None) -> Any:
    """Nested data with some values changed, removed, moved or doubled."""
    data = deepcopy(data)
    for _ in range(times or random.choice((1, 1, 1, 2, 3, 6))):
        known = places(data)
        if not known:
            break
        *above, last = random.choice(known)
        holder = data
        for key in above:
            holder = holder[key]
        how = random.random()
        if how < 0.45:
            holder[last] = junk(random)
        elif how < 0.75:
            holder[last] = nearby(random, holder[last])
        elif how < 0.9:
            del holder[last]
        elif isinstance(holder, dict):
            holder[random.choice(HOSTILE)] = junk(random)
        else:
            holder.append(junk(random))
    return data


def json_text(random: Random, data: Any) -> str:
    """JSON of mutated data; now and then of what is no JSON."""
    text = json.dumps(mutated(random, data), indent=random.choice((None, 1)))
    if random.random() < 0.1:
        text = deep(random, text)
    return damaged(random, text) if random.random() < 0.15 else text


def deep(random: Random, text: str) -> str:
    """``text`` with a value nested further than anybody reads."""
    times = random.choice((100, 5000, 100_000))
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    return re.sub(r"[-\d.]+(?=[,}\]\s])", lambda _: opening * times + "1" + closing * times, text, count=1)


def token_text(random: Random, text: str) -> str:
    """TOML, CSV or any other text with some numbers, words or lines replaced."""
    for _ in range(random.choice((1, 1, 2, 4))):
        tokens = list(re.finditer(r'"[^"\n]*"|[\w.+-]+', text))
        if not tokens:
            break
        token = random.choice(tokens)
        value = random.choice((*HOSTILE, *map(str, NUMBERS[:12])))
        new = random.choice((value, json.dumps(value), repr(random.choice(NUMBERS)), "", token.group() * 2))
        text = text[: token.start()] + new + text[token.end() :]
    return damaged(random, text) if random.random() < 0.25 else text


def damaged(random: Random, text: str) -> str:
    """Text cut off, doubled, shuffled by lines, or with odd characters."""
    lines = text.splitlines(keepends=True) or [""]
    how = random.randrange(8)
    if how == 0:
        return text[: random.randrange(len(text) + 1)]
    if how == 1:
        return text + text
    if how == 2:
        random.shuffle(lines)
        return "".join(lines)
    if how == 3:
        del lines[random.randrange(len(lines))]
        return "".join(lines)
    if how == 4:
        at = random.randrange(len(text) + 1)
        return text[:at] + random.choice(("\0", "\ud800", "\r", "\r\n", '"', "'", "\ufeff", "\x1a")) + text[at:]
    if how == 5:
        return text.replace("\n", random.choice(("\r", "\r\n", "\n\n", " ")))
    if how == 6:
        return lines[0] * random.choice((2, 1000))
    return "".join(random.choice(text or " ") for _ in range(200))


def as_bytes(random: Random, text: str) -> bytes:
    """Text as a file may hold it."""
    raw = text.encode(random.choice(("utf-8",) * 12 + ("utf-16", "utf-8-sig")), "surrogatepass")
    if random.random() < 0.05 and raw:
        at = random.randrange(len(raw))
        raw = raw[:at] + bytes([random.randrange(256)]) + raw[at + 1 :]
    return raw
